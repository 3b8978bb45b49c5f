"""Writes in place, by the program and by the caller before the backward."""

import torch
import torch.nn.functional as F

from ..rows import D64, Programs, after, normal, nothing, plus, values
from .operands import T, attended, fp64, frozen, of_scores, scored, weighted

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table

MASK = lambda: (torch.rand(5, 5) > 0.4,)


@case(frozen, of=scored)
def inplace_on_weights(w, v):
    w.sigmoid_()
    w.mul_(0.5)
    return w @ v


table(
    frozen,
    of=weighted(torch.tanh),
    inplace_on_weight_view=after(lambda w, v: w[..., 0].zero_(), lambda w, v: w @ v),
    inplace_diag_fill=after(
        lambda w, v: torch.diagonal(w, dim1=-2, dim2=-1).fill_(0.0), lambda w, v: w @ v
    ),
)


@case(frozen, of=weighted(F.silu))
def matmul_out_value(w, v):
    o = torch.empty_like(v)
    torch.matmul(w, v, out=o)
    return o


@case(plus(frozen, MASK))
def mask_written_between(q, k, v, m):
    w = F.silu(q @ T(k)) * m
    m.logical_not_()
    o = w @ v
    return o


@case(fp64)
def view_as_real(q, k, v):
    c = torch.view_as_complex(q.reshape(2, 2, 5, 2, 2)) * torch.polar(
        torch.ones(5, 2, dtype=D64), torch.arange(10.0, dtype=D64).view(5, 2)
    )
    q = torch.view_as_real(c).flatten(-2)
    return F.silu(q @ T(k)) @ v


@case(fp64)
def bias_ema_write_after(q, k, v):
    b = torch.zeros(5, 5, dtype=D64)
    o = torch.sigmoid(q @ T(k) + b) @ v
    b += 1
    return o, b


table(
    nothing,
    version_counter=(attended(F.silu)(lambda o: (o, o._version, o.is_leaf, o.requires_grad)), fp64),
)


def no_grad(change):
    def changed(*operands):
        with torch.no_grad():
            change(*operands)

    return changed


def only(*which):
    """Query, key and value; the ones of these numbers ask for a gradient."""
    return lambda: tuple(x.requires_grad_(i in which) for i, x in enumerate(frozen()))


BIAS, FIXED = normal((5, 5)), normal((5, 5), grad=False)
tanh = of_scores(torch.tanh)
relu = of_scores(F.relu)
gate = of_scores(lambda s, b: torch.sigmoid(s) * b)
filled = of_scores(lambda s, b: torch.sigmoid(s).masked_fill(b > 0, 0.0))
lengths = of_scores(lambda s, l: torch.sigmoid(s) * (torch.arange(5) < l[:, None, None, None]))
shifted = of_scores(lambda s, shift: torch.tanh(s + shift))


bias = of_scores(lambda s, b: torch.sigmoid(s + b))


def parameter(which):
    return lambda: tuple(torch.nn.Parameter(x) if i == which else x for i, x in enumerate(frozen()))


def distances(q, k, v, t):
    i = torch.arange(5)
    return torch.sigmoid(q @ T(k) + t[i[:, None] - i + 4]) @ v


def chosen_or_bias(q, k, v, b):
    return torch.where(b.detach() > 0, torch.tanh(q @ T(k)), b) @ v


# name: the program, its operands, what the caller does
LATER = {
    "bias_data": (bias, plus(fp64, FIXED), lambda q, k, v, b: b.data.mul_(5)),
    "only_v_change_q": (tanh, only(2), lambda q, k, v: q.mul_(5)),
    "only_v_change_k": (tanh, only(2), lambda q, k, v: k.mul_(5)),
    "only_v_change_v": (tanh, only(2), no_grad(lambda q, k, v: v.mul_(5))),
    "only_q_change_q_data": (tanh, only(0), lambda q, k, v: q.data.mul_(5)),
    "only_k_change_k": (tanh, only(1), no_grad(lambda q, k, v: k.mul_(5))),
    "only_k_change_k_data": (tanh, only(1), lambda q, k, v: k.data.mul_(5)),
    "all_change_v_data": (relu, fp64, lambda q, k, v: v.data.mul_(5)),
    "requires_grad_off": (tanh, fp64, lambda q, k, v: q.requires_grad_(False)),
    "param_only_v_change_v_data": (tanh, parameter(2), lambda q, k, v: v.data.mul_(5)),
    "table_data": (distances, plus(fp64, normal(9)), lambda q, k, v, t: t.data.mul_(4)),
    "lengths": (lengths, plus(fp64, values([2, 4])), lambda q, k, v, l: l.fill_(5)),
    "bias_only_bias_learns": (bias, plus(only(), BIAS), no_grad(lambda q, k, v, b: b.mul_(5))),
    "bias_only_bias_learns_v": (bias, plus(only(), BIAS), lambda q, k, v, b: v.data.mul_(5)),
    "gate_only_v": (gate, plus(only(2), FIXED), lambda q, k, v, b: b.mul_(5)),
    "fill": (filled, plus(fp64, FIXED), lambda q, k, v, b: b.mul_(-5)),
    "shift_learned": (
        shifted,
        plus(fp64, values(0.5, dtype=D64, grad=True)),
        no_grad(lambda q, k, v, s: s.mul_(5)),
    ),
    "where_value": (chosen_or_bias, plus(fp64, BIAS), no_grad(lambda q, k, v, b: b.mul_(-1))),
}


for name, (program, make, change) in LATER.items():
    PROGRAMS.add("later_" + name, program, make, change)
