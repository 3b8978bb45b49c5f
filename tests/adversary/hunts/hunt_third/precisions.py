"""Numbers in one precision beside scores in another."""

import torch
import torch.nn.functional as F

from ..rows import D64, INF, Programs, ikv, nothing, of_scores, square, values

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table
FLAGS = lambda: (torch.rand(5, 7) > 0.5,)
SPECIAL = values([float("nan"), INF, -INF, 0.0, -0.0, 1.0, 2.0], dtype=D64, grad=True)


table(
    nothing,
    of=of_scores,
    int_beside_fp32=(
        lambda s, n: F.relu(s + (n > 16777216.5) + (n == 16777216.0) * 2 + (n - 16777216)),
        square(b=1, n=4, dtype=torch.float32),
        values(16777217),
    ),
    large_times_beside_fp32=(
        lambda s, n: F.relu(
            s
            + (n[:, None, None] + torch.arange(4) > 16777218.5)
            + (n.float() - 16777216)[:, None, None]
        ),
        square(b=1, n=4, dtype=torch.float32),
        values([16777217, 16777216]),
    ),
)
table(
    ikv(),
    of=of_scores,
    prefix="given_",
    mask_filled_1e40=(
        lambda s, m: s.clamp(-1, 1) + torch.zeros(5, 7).masked_fill(m, -3e38) * 2,
        FLAGS,
    ),
    scores_decide_by_log=lambda s: (
        s * (torch.log2(s.abs()) == 1.0) + (torch.log10(s.abs() * 10) == 1.0)
    ),
    bias_of_nan_in_clamp=(lambda s, a: s.clamp(min=a), SPECIAL),
)
