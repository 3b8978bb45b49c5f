"""Several outputs, factories, known forms of attention."""

import torch
import torch.nn.functional as F

from ..rows import Programs, ikv, nothing, of_scores, scored, square

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


@case(ikv(), of=scored)
def factory_written_inside(s, v):
    m = s.new_zeros(5, 7)
    m += torch.arange(7)
    return (F.silu(s) * m) @ v, m


@case(square())
def retention_log_cumsum(q, k, v):
    g = F.logsigmoid(v.mean(-1)).cumsum(-1)
    d = (g[..., :, None] - g[..., None, :]).tril().exp().tril()
    return (q @ k.mT * d) @ v


table(
    square(),
    rectified_linear_recurrence=lambda q, k, v: torch.linalg.solve_triangular(
        torch.eye(6, dtype=q.dtype) + (q @ k.mT).tril(-1), v, upper=False
    ),
    second_product_by_linear=lambda q, k, v: F.linear(F.relu(q @ k.mT)[0, 0], v[0, 0].T),
    weights_interleaved_heads=lambda q, k, v: (
        F.relu(q[:, :1] @ k[:, :1].mT).repeat_interleave(2, 1) @ v
    ),
)


table(
    nothing,
    of=of_scores,
    factory_wants_gradient=(lambda s: F.silu(s + s.new_zeros(7, requires_grad=True)), ikv()),
    sparsemax_like=(
        lambda s: F.relu(s - ((s.detach().sort(-1).values.cumsum(-1)[..., -1:] - 1) / 6)),
        square(),
    ),
)


table(
    ikv(),
    factory_of_scores=scored(
        lambda s, v: (F.silu(s) @ v, s.new_zeros(3), s.new_full((2, 2), 4), s.new_ones(s.shape))
    ),
)
