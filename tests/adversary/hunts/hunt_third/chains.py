"""Chains whose products overlap."""

import torch
import torch.nn.functional as F

from ..rows import Programs, after, nothing, of_scores, scored, square

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


table(
    nothing,
    three_relus=(lambda q, k, v: F.relu(F.relu(F.relu(q @ k.mT) @ v) @ k.mT) @ v, square()),
)


@case(square(n=4))
def one_output_is_the_next_key(q, k, v):
    k2 = F.relu(q @ k.mT) @ v
    o = F.silu(q @ k2.mT) @ k2
    return o, k2


@case(square(n=4))
def one_output_is_a_mask_and_written(q, k, v):
    b = F.relu(q @ k.mT) @ v
    m = b > 0
    b.mul_(2)
    return (F.silu(q @ k.mT) * m) @ b


table(
    square(n=4),
    weights_times_weights=lambda q, k, v: F.relu(q @ k.mT) @ F.silu(k @ q.mT) @ v,
    both_sides_are_weights=lambda q, k, v: F.relu(q @ k.mT) @ (F.silu(k @ q.mT) @ v),
    one_output_is_the_next_bias=lambda q, k, v: F.silu(q @ k.mT + (F.relu(q @ k.mT) @ v)) @ v,
    gate_of_pooled_scores=lambda q, k, v: (
        F.silu((q @ k.mT) * (q @ k.mT).mean((-1, -2), keepdim=True).sigmoid()) @ v
    ),
    gate_of_detached_pooled_scores=lambda q, k, v: (
        F.silu(q @ k.mT / ((q.detach() @ k.detach().mT).abs().amax(-1, keepdim=True) + 1)) @ v
    ),
    gram_gate=lambda q, k, v: (F.silu(q @ k.mT) * ((q * k).sum(-1, keepdim=True) > 0)) @ v,
    differential_attention=lambda q, k, v: (
        (
            torch.sigmoid(q[..., :2] @ k[..., :2].mT)
            - 0.3 * torch.sigmoid(q[..., 2:] @ k[..., 2:].mT)
        )
        @ v
    ),
    differential_attention_apart=lambda q, k, v: (
        (torch.sigmoid(q[..., :2] @ k[..., :2].mT) @ v)
        - 0.3 * (torch.sigmoid(q[..., 2:] @ k[..., 2:].mT) @ v)
    ),
    comparison_of_scores_is_returned=scored(
        lambda s, v: (F.silu(s) @ v, (s > 0).sum(), s.detach().amax())
    ),
)


@case(square(n=4))
def dead_attention(q, k, v):
    F.silu(q @ k.mT) @ v
    w = F.relu(q @ k.mT)
    w @ v
    return q + k + v


@case(square(n=4), of=scored)
def half_dead_attention(s, v):
    F.silu(s) @ v
    return F.relu(s) @ v


table(
    nothing,
    of=of_scores,
    asserts_on_scores=(after(lambda s: torch._assert(s.shape[-1] == 4, "no"), F.silu), square(n=4)),
    async_assert_on_scores=(
        after(lambda s: torch._assert_async((s == s).all()), F.silu),
        square(n=4),
    ),
)
