"""The gradient of a table: terms of a block are added at the places that were looked up."""

from __future__ import annotations

from torch import Tensor


def add_by_place(term: Tensor, places: Tensor, total: Tensor) -> None:
    """total [B|1, H|1, M|1, N|1, T] += term [b|1, h|1, m|1, n|1] of a block, at `places` along T.

    term has all axes of total and of places. What was looked up outside of the table is left out.
    The order of the additions is that of the elements, so the bits are the same in every run. The
    places are overwritten.
    """
    *sizes, count = total.shape
    # Sums of each batch and head stay apart at first, as they are of each row of such a table. So
    # several threads have work, and sums are shorter.
    apart = [d for d, size in enumerate(sizes) if size > 1 or d < 2]
    order = [*apart, *(d for d in range(len(sizes)) if d not in apart)]
    places.add_(1).clamp_(0, count + 1)  # the first and the last are outside
    matrix, index = (t.permute(order).flatten(len(apart)) for t in (term, places))
    index = index.expand_as(matrix)
    sums = term.new_zeros(*matrix.shape[:-1], count + 2).scatter_add_(-1, index, matrix)
    shared = [d for d in apart if sizes[d] == 1]
    for position, d in enumerate(apart):
        if d in shared:
            sums = sums.sum(position, keepdim=True)
    total += sums[..., 1:-1].reshape(total.shape)
