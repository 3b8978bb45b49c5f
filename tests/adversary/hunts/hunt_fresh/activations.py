"""Activations, at kinks and ties too."""

import torch
import torch.nn.functional as F

from ..rows import D64, Programs, nothing, values
from .given import T, fp32, fp64, of_scores

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


table(
    fp32,
    of=of_scores,
    weights_to_int=lambda s: s.to(torch.int32).to(torch.float32),
    weights_round=torch.round,
    weights_floor_frac=lambda s: s - s.floor(),
    weights_sign_sqrt=lambda s: s.sign() * s.abs().sqrt(),
    weights_fmod=lambda s: torch.fmod(s, 1.0),
    weights_remainder=lambda s: torch.remainder(s, 0.7),
    weights_nan_to_num=lambda s: torch.nan_to_num(torch.log(s), nan=-1.0),
    weights_hardshrink=lambda s: F.hardshrink(s, 0.3),
    weights_threshold=lambda s: F.threshold(s, 0.2, 7.0),
    weights_celu=lambda s: F.celu(s, -0.7),
    weights_elu_neg=lambda s: F.elu(s, 0.3),
    weights_leaky=lambda s: F.leaky_relu(s, -0.2),
    weights_softplus=lambda s: F.softplus(s, beta=3, threshold=1),
    weights_gelu_tanh=lambda s: F.gelu(s, approximate="tanh"),
    weights_prelu=lambda s: F.prelu(s, torch.tensor([0.1, 0.4])),
    weights_prelu_learned=(lambda s, a: F.prelu(s, a), values([0.1, 0.4], grad=True)),
    weights_prelu_learned1=(lambda s, a: F.prelu(s, a), values([0.4], grad=True)),
)


table(
    nothing,
    weights_glu_like=(lambda q, k, v: F.glu(torch.cat([q @ T(k), k @ T(q)], -1)) @ v, fp32),
)


table(
    fp64,
    of=of_scores,
    weights_pow_zero=lambda s: F.relu(s) ** 0,
    weights_pow_half=lambda s: F.relu(s) ** 0.5,
    weights_relu2_max=lambda s: torch.maximum(s, torch.zeros((), dtype=D64)).square(),
    clamp_reversed=lambda s: s.clamp(1, -1),
    hypot=lambda s: torch.hypot(s, torch.ones((), dtype=D64)),
    atan2=lambda s: torch.atan2(s, s + 1),
    logit_eps=lambda s: torch.logit(torch.sigmoid(s), eps=0.2),
    lerp=lambda s: torch.lerp(s, s.tanh(), 0.3),
    addcmul=lambda s: torch.addcmul(s, s, s.tanh(), value=0.3),
    add_alpha=lambda s: torch.add(s, s.tanh(), alpha=-2),
    rsub=lambda s: torch.rsub(s, 1, alpha=3).relu(),
    sinc_frac=lambda s: torch.sinc(s).frac(),
)


@case(fp64)
def relu_maximum_ties(q, k, v):
    s = q.round() @ T(k.round())
    return torch.maximum(s, torch.zeros_like(s)) @ v


@case(fp64)
def where_scores_positive(q, k, v):
    s = q.round() @ T(k.round())
    return torch.where(s > 0, s, 0.1 * s) @ v


table(
    fp64,
    relu_clamp_ties=lambda q, k, v: (q.round() @ T(k.round())).clamp(0, 1) @ v,
    relu_clamp_tensor=lambda q, k, v: (
        (q.round() @ T(k.round())).clamp(torch.zeros(1, dtype=D64), torch.ones(1, dtype=D64)) @ v
    ),
    clamp_learned=lambda q, k, v: (q @ T(k)).clamp(v.mean().detach() - 1, None) @ v,
    abs_at_zero=lambda q, k, v: (q.round() @ T(k.round())).abs() @ v,
    xlogy=lambda q, k, v: torch.xlogy(torch.sigmoid(q @ T(k)), torch.sigmoid(q @ T(k))) @ v,
    copysign=lambda q, k, v: torch.copysign(torch.sigmoid(q @ T(k)), q @ T(k)) @ v,
    heaviside=lambda q, k, v: (
        torch.heaviside((q.round() @ T(k.round())).detach(), torch.tensor(0.25, dtype=D64)) @ v
    ),
)
