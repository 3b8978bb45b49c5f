"""Groups of heads, heads folded into the batch; what is done to query, key and value."""

import torch
import torch.nn.functional as F

from ..rows import Programs, normal, nothing, of_scores, plus, qkv, square

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


table(
    nothing,
    of=of_scores,
    bias_adds_a_dim=(
        lambda s, c: F.silu(s + c),
        normal((2, 5, 4), (2, 7, 4), (2, 7, 3), (3, 1, 1, 1)),
    ),
)


@case(qkv())
def unbind_weights_stack_swapped(q, k, v):
    a, b = F.silu(q @ k.mT).unbind(1)
    return torch.stack([b, a], 1) @ v


table(
    qkv(),
    of=of_scores,
    many_biases=(
        lambda s, a, b, c, d: F.silu(s * b + a) * c + d,
        normal((2, 1, 5, 7), (1, 2, 1, 7), (5, 1), 7),
    ),
)


table(
    nothing,
    talking_heads_after=(
        lambda q, k, v, w: torch.einsum("bhij,hg->bgij", F.relu(q @ k.mT), w) @ v,
        plus(qkv(), normal((2, 2))),
    ),
    mask_on_swapped_axes=(
        lambda q, k, v, w: ((q @ k.mT).permute(0, 2, 1, 3) * w).permute(0, 2, 1, 3).relu() @ v,
        plus(square(h=4, n=3), normal((4, 3))),
    ),
    batch_times_heads_interleave_bias=(
        lambda q, k, v, bias: (q @ k.mT + bias.repeat_interleave(2, 0)).relu() @ v,
        normal((6, 5, 4), (6, 7, 4), (6, 7, 3), (3, 5, 7)),
    ),
)


def of_operands(f):
    """The program whose query, key and value are what `f` makes of its arguments."""

    def program(q, k, v):
        q, k, v = f(q, k, v)
        return F.silu(q @ k.mT) @ v

    return program


table(
    square(n=8),
    of=of_operands,
    prefix="operand_",
    normalised=lambda q, k, v: (F.normalize(q, dim=-1), F.normalize(k, dim=-1), v),
    query_expanded=lambda q, k, v: (q[:, :, :1].expand(2, 2, 8, 4), k, v),
    written_in_place=lambda q, k, v: (
        q.clone().mul_(2),
        k.clone().neg_(),
        v.clone().zero_().add_(v),
    ),
    dropout_p0=lambda q, k, v: (F.dropout(q, 0.0), F.dropout(k, 0.5, training=False), v),
)
