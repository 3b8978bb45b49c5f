"""What autograd does not keep may change before the backward."""

import torch
from torch.utils.checkpoint import checkpoint

from .rows import Programs, of_scores, plus, qkv32

CASES = Programs()
case, table = CASES.case, CASES.table
relu = of_scores(torch.relu)
biased = of_scores(lambda s, bias: torch.relu(s + bias))
in_16_bits = lambda: qkv32(torch.bfloat16)
with_bias = plus(qkv32, lambda: (torch.randn(6, 7),))


def frozen(*which):
    return lambda: tuple(x.detach() if i in which else x for i, x in enumerate(qkv32()))


def zero_frozen(*operands):
    for x in operands:
        if not x.requires_grad:
            x.zero_()


def zero_query(q, k, v):
    with torch.no_grad():
        q.zero_()


# The caller changes inputs that eager does not keep.
CASES.add("frozen_scores_are_reused", relu, frozen(0, 1), zero_frozen)
CASES.add("step_on_q_before_backward", relu, frozen(1), zero_query)


# What a graph returns, the next one changes.


@case(with_bias)
def bias_is_output(q, k, v, r):
    bias = r * 0.5
    return biased(q, k, v, bias), bias


@case(with_bias)
def bias_changed_after_a_break(q, k, v, r):
    bias = r * 0.5
    out = torch.relu(q @ k.mT + bias) @ v
    torch._dynamo.graph_break()
    bias.mul_(2)
    return out + bias.sum()


@case(with_bias)
def input_bias_changed_after_a_break(q, k, v, r):
    out = torch.relu(q @ k.mT + r) @ v
    torch._dynamo.graph_break()
    r.mul_(2)
    return out + r.sum()


@case(with_bias)
def small_bias_changed_after_a_break(q, k, v, r):
    b = r[0] * 0.5
    out = torch.relu(q @ k.mT + b) @ v
    torch._dynamo.graph_break()
    b.mul_(2)
    return out + b.sum()


@case(qkv32)
def frozen_keys_changed_after_a_break(q, k, v):
    q2, k2 = q.detach() * 2, k.detach() * 2
    out = torch.relu(q2 @ k2.mT) @ v
    torch._dynamo.graph_break()
    k2.zero_()
    q2.zero_()
    return out + q2.sum()


# The graph itself changes operands after the region.


@case(qkv32)
def frozen_keys_changed_later(q, k, v):
    q2, k2 = q.detach() * 2, k.detach() * 2
    out = relu(q2, k2, v)
    k2.zero_()
    q2.zero_()
    return out + q2.sum()


@case(qkv32)
def no_grad_write_of_query_later(q, k, v):
    q2 = q * 1
    o = relu(q2, k.detach() * 1, v)
    with torch.no_grad():
        q2.mul_(3)
    return o


@case(qkv32)
def detach_in_place_of_operand_later(q, k, v):
    k2 = k * 1
    o = relu(q, k2, v)
    k2.detach_()
    return o + k2.sum()


# Inference mode: no history, and nothing to keep.


@case(in_16_bits)
def upcast_in_inference_mode(q, k, v):
    with torch.inference_mode():
        kf = k.float()
    return relu(q.detach().float(), kf, v.float())


@case(qkv32)
def view_in_inference_mode(q, k, v):
    with torch.inference_mode():
        kt = k.mT
    return torch.relu(q.detach() @ kt) @ v


@case(in_16_bits)
def upcast_in_no_grad(q, k, v):
    with torch.no_grad():
        kf = k.float()
    return relu(q.float(), kf, v.float())


# Checkpoints read their operands again.


table(
    qkv32,
    nested_checkpoints=lambda q, k, v: checkpoint(
        lambda *x: checkpoint(relu, *x, use_reentrant=False) * 2, q, k, v, use_reentrant=False
    ),
    reentrant_checkpoint=lambda q, k, v: checkpoint(relu, q, k, v, use_reentrant=True),
)


@case(qkv32)
def checkpoint_then_change(q, k, v):
    k2 = k * 1.0
    return checkpoint(relu, q, k2, v, use_reentrant=False), k2


@case(with_bias)
def checkpoint_reads_bias_later(q, k, v, r):
    b = r[0] * 1
    gated = of_scores(lambda s, b: torch.relu(s * b.sigmoid()))
    return checkpoint(gated, q, k, v, b, use_reentrant=False), b
