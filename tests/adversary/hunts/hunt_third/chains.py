"""Chains whose products overlap."""

import torch
import torch.nn.functional as F

from ..rows import Programs, square

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


table(
    square(),
    {
        "three_relus": lambda q, k, v: F.relu(F.relu(F.relu(q @ k.mT) @ v) @ k.mT) @ v,
    },
)


table(
    square(n=4),
    {
        "weights_times_weights": lambda q, k, v: F.relu(q @ k.mT) @ F.silu(k @ q.mT) @ v,
        "both_sides_are_weights": lambda q, k, v: F.relu(q @ k.mT) @ (F.silu(k @ q.mT) @ v),
    },
)


@case(square(n=4))
def one_output_is_the_next_key(q, k, v):
    k2 = F.relu(q @ k.mT) @ v
    o = F.silu(q @ k2.mT) @ k2
    return o, k2


@case(square(n=4))
def one_output_is_the_next_bias(q, k, v):
    b = F.relu(q @ k.mT) @ v
    return F.silu(q @ k.mT + b) @ v


@case(square(n=4))
def one_output_is_a_mask_and_written(q, k, v):
    b = F.relu(q @ k.mT) @ v
    m = b > 0
    b.mul_(2)
    return (F.silu(q @ k.mT) * m) @ b


@case(square(n=4))
def gate_of_pooled_scores(q, k, v):
    s = q @ k.mT
    g = (q @ k.mT).mean((-1, -2), keepdim=True).sigmoid()
    return F.silu(s * g) @ v


@case(square(n=4))
def gate_of_detached_pooled_scores(q, k, v):
    g = (q.detach() @ k.detach().mT).abs().amax(-1, keepdim=True)
    return F.silu(q @ k.mT / (g + 1)) @ v


@case(square(n=4))
def gram_gate(q, k, v):
    g = (q * k).sum(-1, keepdim=True)
    return (F.silu(q @ k.mT) * (g > 0)) @ v


@case(square(n=4))
def differential_attention(q, k, v):
    a = torch.sigmoid(q[..., :2] @ k[..., :2].mT)
    b = torch.sigmoid(q[..., 2:] @ k[..., 2:].mT)
    return (a - 0.3 * b) @ v


@case(square(n=4))
def differential_attention_apart(q, k, v):
    a = torch.sigmoid(q[..., :2] @ k[..., :2].mT) @ v
    b = torch.sigmoid(q[..., 2:] @ k[..., 2:].mT) @ v
    return a - 0.3 * b


@case(square(n=4))
def dead_attention(q, k, v):
    F.silu(q @ k.mT) @ v
    w = F.relu(q @ k.mT)
    w @ v
    return q + k + v


@case(square(n=4))
def half_dead_attention(q, k, v):
    s = q @ k.mT
    F.silu(s) @ v
    return F.relu(s) @ v


@case(square(n=4))
def asserts_on_scores(q, k, v):
    s = q @ k.mT
    torch._assert(s.shape[-1] == 4, "no")
    return F.silu(s) @ v


@case(square(n=4))
def async_assert_on_scores(q, k, v):
    s = q @ k.mT
    torch._assert_async((s == s).all())
    return F.silu(s) @ v


@case(square(n=4))
def comparison_of_scores_is_returned(q, k, v):
    s = q @ k.mT
    return F.silu(s) @ v, (s > 0).sum(), s.detach().amax()
