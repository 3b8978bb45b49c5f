"""Times and lengths in masks."""

import torch
import torch.nn.functional as F

from ..rows import D64, Programs, normal, nothing, of_scores, plus, qkv, values

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


@case(plus(qkv(), values([3, 5]), values([1, 2])))
def targets_and_context(q, k, v, n, targets):
    i, j = torch.arange(5)[:, None], torch.arange(7)
    last = (n - targets)[:, None, None]
    a, b = torch.minimum(i, last), torch.minimum(j, last)
    m = ((a - b) > 0) | (i == j)
    m = m & (j < n[:, None, None])
    return (F.silu(q @ k.mT) / 7 * m[:, None]) @ v


@case(plus(qkv(), values([3, 5])))
def positions_modulo_period(q, k, v, n):
    i, j = torch.arange(5)[:, None], torch.arange(7)
    m = (i - j) % n[:, None, None] == 0
    return (F.silu(q @ k.mT) * m[:, None]) @ v


table(
    nothing,
    of=of_scores,
    time_decay_from_nanoseconds=(
        lambda s, t: F.silu(s) * torch.exp(-(t[:, -1:] - t).float() * 1e-12)[:, None, None],
        plus(
            normal((2, 2, 5, 4), (2, 2, 7, 4), (2, 2, 7, 3), dtype=torch.float32),
            lambda: (torch.randint(0, 2**40, (2, 7)),),
        ),
    ),
    time_window_in_floats=(
        lambda s, t, u: (
            F.silu(s)
            * (
                ((u[:, :, None].float() - t[:, None].float()).abs() < 3e11)
                | (u[:, :, None].float() // 1e9 == t[:, None].float() // 1e9)
            )[:, None]
        ),
        plus(
            normal((2, 2, 5, 4), (2, 2, 7, 4), (2, 2, 7, 3), dtype=torch.float32),
            lambda: (
                torch.randint(0, 2**40, (2, 7)),
                torch.randint(0, 2**40, (2, 5)),
            ),
        ),
    ),
    lengths_in_floordiv_of_positions=(
        lambda s, n: F.silu(s) * (torch.arange(7) // n[:, None] == 0)[:, None, None],
        plus(qkv(), values([3, 5])),
    ),
    divided_by_lengths=(
        lambda s, n: F.silu(s) / n[:, None, None, None],
        qkv(),
        values([3.0, 5.0], dtype=D64),
    ),
    divided_by_integer_lengths=(
        lambda s, n: F.silu(s) / n[:, None, None, None],
        qkv(),
        values([3, 5]),
    ),
)
