"""What autograd does not keep may change before the backward."""

import torch
from torch.utils.checkpoint import checkpoint

from .rows import Programs, of_scores, plus, qkv32

CASES = Programs()
case, table = CASES.case, CASES.table
relu = of_scores(torch.relu)
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
def bias_changed_after_a_break(q, k, v, r):
    bias = r * 0.5
    out = torch.relu(q @ k.mT + bias) @ v
    torch._dynamo.graph_break()
    bias.mul_(2)
    return out + bias.sum()


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


# Checkpoints read their operands again.


@case(with_bias)
def checkpoint_reads_bias_later(q, k, v, r):
    b = r[0] * 1
    gated = of_scores(lambda s, b: torch.relu(s * b.sigmoid()))
    return checkpoint(gated, q, k, v, b, use_reentrant=False), b
