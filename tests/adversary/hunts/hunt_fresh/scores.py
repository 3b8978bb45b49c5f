"""What reduces, mixes or normalises scores, and scales taken from operands."""

import math

import torch
import torch.nn.functional as F

from ..rows import D64, Programs
from .given import T, fp64, of_scores

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


table(
    fp64,
    of=of_scores,
    cumsum_weights=lambda s: torch.tanh(s).cumsum(-1),
    softmax_over_heads=lambda s: s.softmax(1),
    conv_on_scores=lambda s: F.conv2d(s, torch.ones(2, 2, 1, 1, dtype=D64)).relu(),
    talking_heads=lambda s: torch.einsum("bhqk,hg->bgqk", s, torch.ones(2, 2, dtype=D64)).relu(),
    pool_on_scores=lambda s: F.max_pool2d(s, 3, 1, 1).relu(),
    norm_on_scores=lambda s: F.layer_norm(s, (5,)).relu(),
    scale_from_scores=lambda s: F.relu(s / s.std()),
    scale_from_scores_detached=lambda s: F.relu(s / s.detach().std()),
)


table(
    fp64,
    sigmoid_minus_logn=lambda q, k, v: torch.sigmoid(q @ T(k) - math.log(k.shape[-2])) @ v,
    group_norm_out=lambda q, k, v: F.layer_norm(F.relu(q @ T(k)) @ v, (4,)),
    item_scale=lambda q, k, v: F.relu(q @ T(k) * q.detach().abs().max()) @ v,
    std_scale=lambda q, k, v: F.relu(q @ T(k) / q.std()) @ v,
    batched_scale=lambda q, k, v: F.relu(q @ T(k) * q.norm(dim=-1, keepdim=True)) @ v,
    gate_output=lambda q, k, v: F.silu(q @ T(k)) @ v * torch.sigmoid(q),
    tensor_subclass_param=lambda q, k, v: F.silu(q @ T(torch.nn.Parameter(k.detach()))) @ v,
)
