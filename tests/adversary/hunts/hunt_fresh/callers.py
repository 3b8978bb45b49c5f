"""What the caller changes between the forward and the backward."""

import torch
import torch.nn.functional as F

from ..rows import D64, Programs, normal, plus, values
from .given import T, fp64, frozen, of_scores

PROGRAMS = Programs()


def no_grad(change):
    def changed(*operands):
        with torch.no_grad():
            change(*operands)

    return changed


def only(*which):
    """Query, key and value; the ones of these numbers ask for a gradient."""
    return lambda: tuple(x.requires_grad_(i in which) for i, x in enumerate(frozen()))


def parameter(which):
    return lambda: tuple(torch.nn.Parameter(x) if i == which else x for i, x in enumerate(frozen()))


def parameter_bias(grad=True):
    return lambda: (torch.nn.Parameter(torch.randn(5, 5, dtype=D64), requires_grad=grad),)


BIAS, FIXED = normal((5, 5)), normal((5, 5), grad=False)
tanh = of_scores(torch.tanh)
relu = of_scores(F.relu)
bias = of_scores(lambda s, b: torch.sigmoid(s + b))
gate = of_scores(lambda s, b: torch.sigmoid(s) * b)
filled = of_scores(lambda s, b: torch.sigmoid(s).masked_fill(b > 0, 0.0))
lengths = of_scores(lambda s, l: torch.sigmoid(s) * (torch.arange(5) < l[:, None, None, None]))
shifted = of_scores(lambda s, shift: torch.tanh(s + shift))
condition = of_scores(lambda s, b: torch.tanh(s) * (b > 0))


def chosen(q, k, v, b):
    return torch.where(b > 0, torch.tanh(q @ T(k)), 0.0) @ v


def chosen_or_bias(q, k, v, b):
    return torch.where(b.detach() > 0, torch.tanh(q @ T(k)), b) @ v


def distances(q, k, v, t):
    i = torch.arange(5)
    return torch.sigmoid(q @ T(k) + t[i[:, None] - i + 4]) @ v


# name: the program, its operands, what the caller does
LATER = {
    "bias_grad_inplace": (bias, plus(fp64, BIAS), no_grad(lambda q, k, v, b: b.mul_(5))),
    "bias_grad_data": (bias, plus(fp64, BIAS), lambda q, k, v, b: b.data.mul_(5)),
    "bias_inplace": (bias, plus(fp64, FIXED), lambda q, k, v, b: b.mul_(5)),
    "bias_data": (bias, plus(fp64, FIXED), lambda q, k, v, b: b.data.mul_(5)),
    "gate_only_v": (gate, plus(only(2), FIXED), lambda q, k, v, b: b.mul_(5)),
    "fill": (filled, plus(fp64, FIXED), lambda q, k, v, b: b.mul_(-5)),
    "where": (chosen, plus(fp64, FIXED), lambda q, k, v, b: b.mul_(-5)),
    "only_v_change_q": (tanh, only(2), lambda q, k, v: q.mul_(5)),
    "only_v_change_k": (tanh, only(2), lambda q, k, v: k.mul_(5)),
    "only_v_change_v": (tanh, only(2), no_grad(lambda q, k, v: v.mul_(5))),
    "only_q_change_q": (tanh, only(0), no_grad(lambda q, k, v: q.mul_(5))),
    "only_q_change_q_data": (tanh, only(0), lambda q, k, v: q.data.mul_(5)),
    "only_k_change_k": (tanh, only(1), no_grad(lambda q, k, v: k.mul_(5))),
    "only_k_change_k_data": (tanh, only(1), lambda q, k, v: k.data.mul_(5)),
    "all_change_v_data": (relu, fp64, lambda q, k, v: v.data.mul_(5)),
    "requires_grad_off": (tanh, fp64, lambda q, k, v: q.requires_grad_(False)),
    "param_only_q_change_q": (tanh, parameter(0), no_grad(lambda q, k, v: q.mul_(5))),
    "param_only_k_change_k": (tanh, parameter(1), no_grad(lambda q, k, v: k.mul_(5))),
    "param_only_v_change_v": (tanh, parameter(2), no_grad(lambda q, k, v: v.mul_(5))),
    "param_only_q_change_q_data": (tanh, parameter(0), lambda q, k, v: q.data.mul_(5)),
    "param_only_v_change_v_data": (tanh, parameter(2), lambda q, k, v: v.data.mul_(5)),
    "param_relu_v": (relu, parameter(2), no_grad(lambda q, k, v: v.mul_(5))),
    "param_bias": (bias, plus(fp64, parameter_bias()), no_grad(lambda q, k, v, b: b.mul_(5))),
    "param_bias_data": (
        bias,
        plus(fp64, parameter_bias()),
        lambda q, k, v, b: b.data.clamp_(-0.1, 0.1),
    ),
    "frozen_param_bias": (
        bias,
        plus(fp64, parameter_bias(grad=False)),
        lambda q, k, v, b: b.mul_(5),
    ),
    "frozen_param_bias_data": (
        bias,
        plus(fp64, parameter_bias(grad=False)),
        lambda q, k, v, b: b.data.mul_(5),
    ),
    "table_inplace": (
        distances,
        plus(fp64, normal(9)),
        no_grad(lambda q, k, v, t: t.mul_(4)),
    ),
    "table_data": (distances, plus(fp64, normal(9)), lambda q, k, v, t: t.data.mul_(4)),
    "table_frozen": (
        distances,
        plus(fp64, normal(9, grad=False)),
        lambda q, k, v, t: t.mul_(4),
    ),
    "lengths": (lengths, plus(fp64, values([2, 4])), lambda q, k, v, l: l.fill_(5)),
    "lengths_data": (lengths, plus(fp64, values([2, 4])), lambda q, k, v, l: l.data.fill_(1)),
    "shift_learned": (
        shifted,
        plus(fp64, values(0.5, dtype=D64, grad=True)),
        no_grad(lambda q, k, v, s: s.mul_(5)),
    ),
    "where_value": (chosen_or_bias, plus(fp64, BIAS), no_grad(lambda q, k, v, b: b.mul_(-1))),
    "condition_of_learned": (condition, plus(fp64, BIAS), no_grad(lambda q, k, v, b: b.mul_(-1))),
    "bias_only_bias_learns": (bias, plus(only(), BIAS), no_grad(lambda q, k, v, b: b.mul_(5))),
    "bias_only_bias_learns_q": (
        bias,
        plus(only(), BIAS),
        lambda q, k, v, b: (q.mul_(5), k.mul_(5)),
    ),
    "bias_only_bias_learns_v": (bias, plus(only(), BIAS), lambda q, k, v, b: v.data.mul_(5)),
}


for name, (program, make, change) in LATER.items():
    PROGRAMS.add("later_" + name, program, make, change)
