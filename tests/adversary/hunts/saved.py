"""What autograd does not keep may change before the backward: by the graph, and by the caller."""

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from .rows import (
    D64,
    Programs,
    after,
    attended,
    fp64,
    frozen,
    normal,
    nothing,
    of_scores,
    plus,
    qkv,
    qkv32,
    scored,
    values,
    weighted,
)

CASES, MORE = Programs(), Programs()


attend = of_scores(torch.relu)
in_16_bits = lambda: qkv32(torch.bfloat16)
with_bias = plus(qkv32, lambda: (torch.randn(6, 7),))


def detached(*which):
    return lambda: tuple(x.detach() if i in which else x for i, x in enumerate(qkv32()))


def zero_frozen(*operands):
    for x in operands:
        if not x.requires_grad:
            x.zero_()


def zero_query(q, k, v):
    with torch.no_grad():
        q.zero_()


# The caller changes inputs that eager does not keep.
CASES.add("frozen_scores_are_reused", attend, detached(0, 1), zero_frozen)
CASES.add("step_on_q_before_backward", attend, detached(1), zero_query)


# What a graph returns, the next one changes.


@CASES.case(with_bias)
def bias_changed_after_a_break(q, k, v, r):
    bias = r * 0.5
    out = torch.relu(q @ k.mT + bias) @ v
    torch._dynamo.graph_break()
    bias.mul_(2)
    return out + bias.sum()


@CASES.case(qkv32)
def frozen_keys_changed_after_a_break(q, k, v):
    q2, k2 = q.detach() * 2, k.detach() * 2
    out = torch.relu(q2 @ k2.mT) @ v
    torch._dynamo.graph_break()
    k2.zero_()
    q2.zero_()
    return out + q2.sum()


# The graph itself changes operands after the region.


@CASES.case(qkv32)
def frozen_keys_changed_later(q, k, v):
    q2, k2 = q.detach() * 2, k.detach() * 2
    out = attend(q2, k2, v)
    k2.zero_()
    q2.zero_()
    return out + q2.sum()


# Inference mode: no history, and nothing to keep.


@CASES.case(in_16_bits)
def upcast_in_inference_mode(q, k, v):
    with torch.inference_mode():
        kf = k.float()
    return attend(q.detach().float(), kf, v.float())


@CASES.case(qkv32)
def view_in_inference_mode(q, k, v):
    with torch.inference_mode():
        kt = k.mT
    return torch.relu(q.detach() @ kt) @ v


# Checkpoints read their operands again.


@CASES.case(with_bias)
def checkpoint_reads_bias_later(q, k, v, r):
    b = r[0] * 1
    gated = of_scores(lambda s, b: torch.relu(s * b.sigmoid()))
    return checkpoint(gated, q, k, v, b, use_reentrant=False), b


# Writes in place, small ones

MASK = lambda: (torch.rand(5, 5) > 0.4,)


@CASES.case(frozen, of=scored)
def inplace_on_weights(w, v):
    w.sigmoid_()
    w.mul_(0.5)
    return w @ v


CASES.table(
    frozen,
    of=weighted(torch.tanh),
    inplace_on_weight_view=after(lambda w, v: w[..., 0].zero_(), lambda w, v: w @ v),
    inplace_diag_fill=after(
        lambda w, v: torch.diagonal(w, dim1=-2, dim2=-1).fill_(0.0), lambda w, v: w @ v
    ),
)


@CASES.case(frozen, of=weighted(F.silu))
def matmul_out_value(w, v):
    o = torch.empty_like(v)
    torch.matmul(w, v, out=o)
    return o


@CASES.case(plus(frozen, MASK))
def mask_written_between(q, k, v, m):
    w = F.silu(q @ k.mT) * m
    m.logical_not_()
    o = w @ v
    return o


@CASES.case(fp64)
def view_as_real(q, k, v):
    c = torch.view_as_complex(q.reshape(2, 2, 5, 2, 2)) * torch.polar(
        torch.ones(5, 2, dtype=D64), torch.arange(10.0, dtype=D64).view(5, 2)
    )
    q = torch.view_as_real(c).flatten(-2)
    return F.silu(q @ k.mT) @ v


@CASES.case(fp64)
def bias_ema_write_after(q, k, v):
    b = torch.zeros(5, 5, dtype=D64)
    o = torch.sigmoid(q @ k.mT + b) @ v
    b += 1
    return o, b


CASES.table(
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
    return torch.sigmoid(q @ k.mT + t[i[:, None] - i + 4]) @ v


def chosen_or_bias(q, k, v, b):
    return torch.where(b.detach() > 0, torch.tanh(q @ k.mT), b) @ v


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
    CASES.add("later_" + name, program, make, change)


# What the caller does before the backward.


def zero_all(*operands):
    with torch.no_grad():
        for x in operands:
            if not x.requires_grad:
                x.zero_()


def change_values(q, k, v, *_):
    v.data.add_(1)


def step(q, *_):
    with torch.no_grad():
        q.add_(1)


def some(which):
    """Query, key, value and a bias; those with a 1 ask for a gradient."""
    make = plus(qkv(), normal((5, 7)))
    return lambda: tuple(x.requires_grad_(flag == "1") for x, flag in zip(make(), which))


biased = of_scores(lambda s, bias: F.relu(s + bias))
for which in ("1110", "1111"):
    name = f"caller_zeroes_what_needs_no_gradient_{which}"
    MORE.add(name, biased, some(which), zero_all)
MORE.add("caller_changes_value_data", biased, some("1111"), change_values)
MORE.add("caller_changes_value_without_gradient", biased, some("1100"), change_values)


@MORE.case(some("0011"), zero_all)
def caller_changes_cast_query(q, k, v, bias):
    return F.relu(q.float() @ k.float().mT + bias.float()) @ v.float()


@MORE.case(some("0010"), zero_all)
def caller_changes_mask_of_index(q, k, v, bias):
    m = bias[:, :1] > torch.arange(7) - 3
    return (F.relu(q @ k.mT) * m) @ v


@MORE.case(some("0010"), lambda q, *_: q.data.zero_())
def query_is_an_output_too(q, k, v, bias):
    p = q * 2
    return F.relu(p @ k.mT) @ v, p


FIRST_LEARNS = plus(normal((2, 2, 5, 4)), normal((2, 2, 7, 4), (2, 2, 7, 3), grad=False))


@CASES.case(FIRST_LEARNS, of=scored)
def factory_that_is_returned_wants_gradient(scores, v):
    bias = scores.new_zeros(7, requires_grad=True)
    return F.silu(scores + bias) @ v, bias


def of_query(f):
    return lambda q, k, v: F.silu(f(q) @ k.mT) @ v


CASES.table(
    FIRST_LEARNS,
    of=of_query,
    prefix="caller_steps_query_behind_",
    before=step,
    dropout=lambda q: F.dropout(q, 0.0),
    dropout_eval=lambda q: F.dropout(q, 0.5, False),
)
MORE.table(
    FIRST_LEARNS,
    of=of_query,
    prefix="caller_steps_query_behind_",
    before=step,
    contiguous=lambda q: q.contiguous(),
    to=lambda q: q.to(torch.float64).reshape(2, 2, 5, 4),
    narrow_of_cat=lambda q: torch.cat([q]).narrow(2, 0, 5),
)
