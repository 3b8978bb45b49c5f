"""What autograd does not keep may change before the backward."""

import torch
from torch.utils.checkpoint import checkpoint


def leaves(*shapes, dtype=torch.float32):
    return tuple(torch.randn(*s, dtype=dtype).requires_grad_() for s in shapes)


def qkv(dtype=torch.float32):
    return leaves((2, 3, 6, 8), (2, 3, 7, 8), (2, 3, 7, 8), dtype=dtype)


def bf():
    return qkv(torch.bfloat16)


def qkvr():
    return (*qkv(), torch.randn(6, 7))


def frozen_qk():
    q, k, v = qkv()
    return q.detach(), k.detach(), v


def zero01(q, k, v):
    q.zero_()
    k.zero_()


def zero0(q, k, v):
    with torch.no_grad():
        q.zero_()


def one_frozen(*frozen):
    return tuple(x.detach() if i in frozen else x for i, x in enumerate(qkv()))


# The caller changes inputs that eager does not keep.


def frozen_scores_are_reused(q, k, v):
    return torch.relu(q @ k.mT) @ v


def step_on_q_before_backward(q, k, v):
    return torch.relu(q @ k.mT) @ v


# What a graph returns, the next one changes.


def bias_is_output(q, k, v, r):
    bias = r * 0.5
    return (torch.relu(q @ k.mT + bias) @ v, bias)


def bias_changed_after_a_break(q, k, v, r):
    bias = r * 0.5
    out = torch.relu(q @ k.mT + bias) @ v
    torch._dynamo.graph_break()
    bias.mul_(2)
    return out + bias.sum()


def input_bias_changed_after_a_break(q, k, v, r):
    out = torch.relu(q @ k.mT + r) @ v
    torch._dynamo.graph_break()
    r.mul_(2)
    return out + r.sum()


def small_bias_changed_after_a_break(q, k, v, r):
    b = r[0] * 0.5
    out = torch.relu(q @ k.mT + b) @ v
    torch._dynamo.graph_break()
    b.mul_(2)
    return out + b.sum()


def frozen_keys_changed_after_a_break(q, k, v, r):
    q2 = q.detach() * 2
    k2 = k.detach() * 2
    out = torch.relu(q2 @ k2.mT) @ v
    torch._dynamo.graph_break()
    k2.zero_()
    q2.zero_()
    return out + q2.sum()


# The graph itself changes operands after the region.


def frozen_keys_changed_later(q, k, v):
    q2 = q.detach() * 2
    k2 = k.detach() * 2
    out = torch.relu(q2 @ k2.mT) @ v
    k2.zero_()
    q2.zero_()
    return out + q2.sum()


def no_grad_write_of_query_later(q, k, v):
    q2 = q * 1
    k2 = k.detach() * 1
    o = torch.relu(q2 @ k2.mT) @ v
    with torch.no_grad():
        q2.mul_(3)
    return o


def detach_in_place_of_operand_later(q, k, v):
    k2 = k * 1
    o = torch.relu(q @ k2.mT) @ v
    k2.detach_()
    return o + k2.sum()


# Inference mode: no history, and nothing to keep.


def upcast_in_inference_mode(q, k, v):
    with torch.inference_mode():
        kf = k.float()
    return torch.relu(q.detach().float() @ kf.mT) @ v.float()


def view_in_inference_mode(q, k, v):
    with torch.inference_mode():
        kt = k.mT
    return torch.relu(q.detach() @ kt) @ v


def upcast_in_no_grad(q, k, v):
    with torch.no_grad():
        kf = k.float()
    return torch.relu(q.float() @ kf.mT) @ v.float()


# Checkpoints read their operands again.


def nested_checkpoints(q, k, v):

    def inner(q, k, v):
        return torch.relu(q @ k.mT) @ v

    def outer(q, k, v):
        return checkpoint(inner, q, k, v, use_reentrant=False) * 2

    return checkpoint(outer, q, k, v, use_reentrant=False)


def reentrant_checkpoint(q, k, v):
    return checkpoint(lambda q, k, v: torch.relu(q @ k.mT) @ v, q, k, v, use_reentrant=True)


def checkpoint_then_change(q, k, v):
    k2 = k * 1.0
    o = checkpoint(lambda q, k, v: torch.relu(q @ k.mT) @ v, q, k2, v, use_reentrant=False)
    return (o, k2)


def checkpoint_reads_bias_later(q, k, v, r):
    b = r[0] * 1

    def f(q, k, v, b):
        return torch.relu(q @ k.mT * b.sigmoid()) @ v

    return (checkpoint(f, q, k, v, b, use_reentrant=False), b)


CASES = [
    # The caller changes inputs that eager does not keep.
    ((frozen_scores_are_reused, zero01), frozen_qk),
    ((step_on_q_before_backward, zero0), lambda: one_frozen(1)),
    # What a graph returns, the next one changes.
    (bias_is_output, lambda: (*qkv(), torch.randn(6, 7))),
    (bias_changed_after_a_break, qkvr),
    (input_bias_changed_after_a_break, qkvr),
    (small_bias_changed_after_a_break, qkvr),
    (frozen_keys_changed_after_a_break, qkvr),
    # The graph itself changes operands after the region.
    (frozen_keys_changed_later, qkv),
    (no_grad_write_of_query_later, qkv),
    (detach_in_place_of_operand_later, qkv),
    # Inference mode: no history, and nothing to keep.
    (upcast_in_inference_mode, bf),
    (view_in_inference_mode, qkv),
    (upcast_in_no_grad, bf),
    # Checkpoints read their operands again.
    (nested_checkpoints, qkv),
    (reentrant_checkpoint, qkv),
    (checkpoint_then_change, qkv),
    (checkpoint_reads_bias_later, qkvr),
]
