"""Biases looked up in a table, more of them than the table has entries."""

import torch
import torch.nn.functional as F

from ..rows import Programs, normal, of_scores

PROGRAMS = Programs()
table = PROGRAMS.table
large = normal((2, 2, 40, 4), (2, 2, 48, 4), (2, 2, 48, 3))


def at(low=0, high=5, shape=(40, 48), dtype=torch.int64):
    """Indices into the table."""
    return lambda: (torch.randint(low, high, shape).to(dtype),)


def of_biases(f):
    return of_scores(lambda s, *more: torch.sigmoid(s + f(*more)))


table(
    large,
    of=of_biases,
    prefix="table_",
    plain=(lambda a, i: a[i], normal(5), at()),
    negative=(lambda a, i: a[i], normal(5), at(-5, 5)),
    second_dim=(lambda a, i: a[:, i], normal((2, 5)), at()),
    first_dim_then_permuted=(lambda a, i: a[i].permute(2, 0, 1), normal((5, 2)), at()),
    new_dim=(lambda a, i: a[None, i], normal(5), at()),
    ellipsis=(lambda a, i: a[..., i], normal((2, 5)), at()),
    sliced_and_indexed=(lambda a, i: a[1:, i], normal((3, 5)), at()),
    integer_and_indexed=(lambda a, i: a[1, i], normal((3, 5)), at()),
    int32=(lambda a, i: a[i], normal(5), at(dtype=torch.int32)),
    uint8=(lambda a, i: a[i.long()], normal(5), at(dtype=torch.uint8)),
    embedding=(lambda a, i: F.embedding(i, a).permute(2, 0, 1), normal((5, 2)), at()),
    embedding_padding=(
        lambda a, i: F.embedding(i, a, padding_idx=-1).permute(2, 0, 1),
        normal((5, 2)),
        at(),
    ),
    embedding_frequency=(
        lambda a, i: F.embedding(i, a, scale_grad_by_freq=True).permute(2, 0, 1),
        normal((5, 2)),
        at(),
    ),
    select=(lambda a, i: a.index_select(0, i.flatten()).view(40, 48), normal(5), at()),
    select_last=(lambda a, i: torch.index_select(a, -1, i[0]), normal((40, 5)), at()),
    gather_=(lambda a, i: a.expand(40, 5).gather(1, i), normal((1, 5)), at()),
    gather_own=(lambda a, i: a.gather(-1, i), normal((40, 3)), at(0, 3)),
    gather_rows=(lambda a, i: a.gather(0, i), normal((3, 48)), at(0, 3)),
    gather_first_columns=(lambda a, i: a.gather(0, i), normal((3, 60)), at(0, 3)),
    twice_looked_up=(lambda a, i: a[i] + a[4 - i] * 2, normal(5), at()),
    two_indices=(lambda a, i: a[i, 4 - i], normal((5, 5)), at()),
    index_used_for_mask=(lambda a, i: a[i] * (i > 2), normal(5), at()),
    bf16=(lambda a, i: a[i], normal(5, dtype=torch.bfloat16), at(0, 5, (40, 48))),
    table_of_function=(lambda a, i: torch.sin(a * 2)[i], normal(5), at()),
    index_clamped_in_place=(lambda a, i: a[i.clamp_(1, 3)], normal(5), at()),
    per_batch=(lambda a, i: a[i][:, None], normal(5), at(shape=(2, 40, 48))),
    of_distance=(
        lambda a, i: a[(torch.arange(40)[:, None] - torch.arange(48)).clamp(-2, 2) + 2 + 0 * i],
        normal(5),
        at(),
    ),
    hook_on_lookup=(lambda a, i: hooked(a[i]), normal(5), at()),
    retain_table_view=(lambda a, i: a.view(5, 2)[i].permute(2, 0, 1), normal(10), at()),
)


def hooked(x):
    if x.requires_grad:
        x.register_hook(lambda g: g * 2)
    return x
