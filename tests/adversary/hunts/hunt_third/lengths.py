"""Times and lengths in masks."""

import torch
import torch.nn.functional as F

from ..rows import D64, Programs, normal, of_scores, plus, qkv, values

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


@case(
    plus(
        normal((2, 2, 5, 4), (2, 2, 7, 4), (2, 2, 7, 3), dtype=torch.float32),
        lambda: (torch.randint(0, 2**40, (2, 7)),),
    )
)
def time_decay_from_nanoseconds(q, k, v, t):
    decay = torch.exp(-(t[:, -1:] - t).float() * 1e-12)[:, None, None]
    return (F.silu(q @ k.mT) * decay) @ v


@case(
    plus(
        normal((2, 2, 5, 4), (2, 2, 7, 4), (2, 2, 7, 3), dtype=torch.float32),
        lambda: (
            torch.randint(0, 2**40, (2, 7)),
            torch.randint(0, 2**40, (2, 5)),
        ),
    )
)
def time_window_in_floats(q, k, v, t, u):
    near = (u[:, :, None].float() - t[:, None].float()).abs() < 3e11
    same = u[:, :, None].float() // 1e9 == t[:, None].float() // 1e9
    return (F.silu(q @ k.mT) * (near | same)[:, None]) @ v


@case(plus(qkv(), values([3, 5]), values([1, 2])))
def targets_and_context(q, k, v, n, targets):
    i, j = torch.arange(5)[:, None], torch.arange(7)
    last = (n - targets)[:, None, None]
    a, b = torch.minimum(i, last), torch.minimum(j, last)
    m = ((a - b) > 0) | (i == j)
    m = m & (j < n[:, None, None])
    return (F.silu(q @ k.mT) / 7 * m[:, None]) @ v


@case(plus(qkv(), values([3, 5])))
def lengths_in_floordiv_of_positions(q, k, v, n):
    m = torch.arange(7) // n[:, None] == 0
    return (F.silu(q @ k.mT) * m[:, None, None]) @ v


@case(plus(qkv(), values([3, 5])))
def positions_modulo_period(q, k, v, n):
    i, j = torch.arange(5)[:, None], torch.arange(7)
    m = (i - j) % n[:, None, None] == 0
    return (F.silu(q @ k.mT) * m[:, None]) @ v


table(
    qkv(),
    {
        "divided_by_lengths": (
            lambda s, n: F.silu(s) / n[:, None, None, None],
            values([3.0, 5.0], dtype=D64),
        ),
        "divided_by_integer_lengths": (
            lambda s, n: F.silu(s) / n[:, None, None, None],
            values([3, 5]),
        ),
    },
    of=of_scores,
)
