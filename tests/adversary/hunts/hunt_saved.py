"""What autograd does not keep may change before the backward."""

import torch
from torch.utils.checkpoint import checkpoint

from .rows import Programs, nothing, qkv32

CASES = Programs()
case, table = CASES.case, CASES.table


def bf():
    return qkv32(torch.bfloat16)


def qkvr():
    return (*qkv32(), torch.randn(6, 7))


def frozen_qk():
    q, k, v = qkv32()
    return q.detach(), k.detach(), v


def zero01(q, k, v):
    q.zero_()
    k.zero_()


def zero0(q, k, v):
    with torch.no_grad():
        q.zero_()


def one_frozen(*frozen):
    return tuple(x.detach() if i in frozen else x for i, x in enumerate(qkv32()))


@case(frozen_qk, zero01)
def frozen_scores_are_reused(q, k, v):
    return torch.relu(q @ k.mT) @ v


@case(lambda: one_frozen(1), zero0)
def step_on_q_before_backward(q, k, v):
    return torch.relu(q @ k.mT) @ v


@case(lambda: (*qkv32(), torch.randn(6, 7)))
def bias_is_output(q, k, v, r):
    bias = r * 0.5
    return (torch.relu(q @ k.mT + bias) @ v, bias)


@case(qkvr)
def bias_changed_after_a_break(q, k, v, r):
    bias = r * 0.5
    out = torch.relu(q @ k.mT + bias) @ v
    torch._dynamo.graph_break()
    bias.mul_(2)
    return out + bias.sum()


@case(qkvr)
def input_bias_changed_after_a_break(q, k, v, r):
    out = torch.relu(q @ k.mT + r) @ v
    torch._dynamo.graph_break()
    r.mul_(2)
    return out + r.sum()


@case(qkvr)
def small_bias_changed_after_a_break(q, k, v, r):
    b = r[0] * 0.5
    out = torch.relu(q @ k.mT + b) @ v
    torch._dynamo.graph_break()
    b.mul_(2)
    return out + b.sum()


@case(qkvr)
def frozen_keys_changed_after_a_break(q, k, v, r):
    q2 = q.detach() * 2
    k2 = k.detach() * 2
    out = torch.relu(q2 @ k2.mT) @ v
    torch._dynamo.graph_break()
    k2.zero_()
    q2.zero_()
    return out + q2.sum()


@case(qkv32)
def frozen_keys_changed_later(q, k, v):
    q2 = q.detach() * 2
    k2 = k.detach() * 2
    out = torch.relu(q2 @ k2.mT) @ v
    k2.zero_()
    q2.zero_()
    return out + q2.sum()


@case(qkv32)
def no_grad_write_of_query_later(q, k, v):
    q2 = q * 1
    k2 = k.detach() * 1
    o = torch.relu(q2 @ k2.mT) @ v
    with torch.no_grad():
        q2.mul_(3)
    return o


@case(qkv32)
def detach_in_place_of_operand_later(q, k, v):
    k2 = k * 1
    o = torch.relu(q @ k2.mT) @ v
    k2.detach_()
    return o + k2.sum()


@case(bf)
def upcast_in_inference_mode(q, k, v):
    with torch.inference_mode():
        kf = k.float()
    return torch.relu(q.detach().float() @ kf.mT) @ v.float()


@case(qkv32)
def view_in_inference_mode(q, k, v):
    with torch.inference_mode():
        kt = k.mT
    return torch.relu(q.detach() @ kt) @ v


@case(bf)
def upcast_in_no_grad(q, k, v):
    with torch.no_grad():
        kf = k.float()
    return torch.relu(q.float() @ kf.mT) @ v.float()


@case(qkv32)
def nested_checkpoints(q, k, v):

    def inner(q, k, v):
        return torch.relu(q @ k.mT) @ v

    def outer(q, k, v):
        return checkpoint(inner, q, k, v, use_reentrant=False) * 2

    return checkpoint(outer, q, k, v, use_reentrant=False)


table(
    nothing,
    reentrant_checkpoint=(
        lambda q, k, v: checkpoint(
            lambda q, k, v: torch.relu(q @ k.mT) @ v, q, k, v, use_reentrant=True
        ),
        qkv32,
    ),
)


@case(qkv32)
def checkpoint_then_change(q, k, v):
    k2 = k * 1.0
    o = checkpoint(lambda q, k, v: torch.relu(q @ k.mT) @ v, q, k2, v, use_reentrant=False)
    return (o, k2)


@case(qkvr)
def checkpoint_reads_bias_later(q, k, v, r):
    b = r[0] * 1

    def f(q, k, v, b):
        return torch.relu(q @ k.mT * b.sigmoid()) @ v

    return (checkpoint(f, q, k, v, b, use_reentrant=False), b)
