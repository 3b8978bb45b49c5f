"""Programs whose slope is one of two where a score meets a bound: as torch's versions have it.

Eager, the scores are whole numbers, so they meet every bound. Operands are in fp64 unless said.
"""

import torch
import torch.nn.functional as F

from tests.judge.programs import cast, program, programs

N = 16


def whole(dtype: torch.dtype = torch.float64) -> tuple:
    q, k = (torch.randint(-2, 3, (1, 2, N, 4)) for _ in range(2))
    v = torch.randn(1, 2, N, 4)
    return tuple(x.to(dtype).requires_grad_() for x in (q, k, v))


def with_bounds(count: int = 1) -> tuple:
    low = torch.randint(-2, 3, (N, N)).double()
    bounds = (low, low + torch.randint(0, 2, (N, N)))[:count]
    return (*whole(), *(x.requires_grad_() for x in bounds))


programs(
    whole,
    a_clamp_before_silu=lambda q, k, v: F.silu((q @ k.mT).clamp(-2, 2)) @ v,
    a_clamp_from_above=lambda q, k, v: torch.clamp_max(q @ k.mT, 1) @ v,
)
programs(
    cast(torch.float32, whole),
    a_clip=lambda q, k, v: torch.clip(q @ k.mT, -1, 1) @ v,
    a_scaled_clamp=lambda q, k, v: (q @ k.mT * 0.25).clamp(-0.5, 0.5) @ v,
    a_clamp_behind_sigmoid=lambda q, k, v: torch.sigmoid(q @ k.mT).clamp(min=0.5) @ v,
)
programs(
    cast(torch.bfloat16, whole),
    relu_by_a_clamp=lambda q, k, v: (q @ k.mT).clamp(min=0) @ v,
)
programs(
    with_bounds,
    a_clamp_from_a_tensor=lambda q, k, v, low: (q @ k.mT).clamp(min=low) @ v,
    a_clamp_to_a_tensor=lambda q, k, v, high: torch.clamp_max(q @ k.mT, high) @ v,
)
programs(
    lambda: with_bounds(2),
    a_clamp_between_tensors=lambda q, k, v, low, high: torch.clamp(q @ k.mT, low, high) @ v,
)


@program(whole)
def a_clamp_beside_silu(q, k, v):
    scores = q @ k.mT
    return (F.silu(scores) + scores.clamp(-1, 3)) @ v
