"""Blocks of scores on the CPU, and how large the blocks of a problem are.

Notation: as in `dense`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

# 1M scores are 4 MiB in fp32. The backward has four such buffers for each thread; more than
# four threads share those of four. Minima on two cores of an EPYC 9004, torch 2.13, B = 2, H =
# 4, D = 64. Forward / backward in ms with M = N = 768 and 1024: 256K scores 12.7 / 32.4 and
# 18.1 / 56.2, 512K 10.6 / 26.5 and 17.6 / 50.4, 1M 9.6 / 23.2 and 15.8 / 45.1. Flat blocks slow
# products down.
SCORES, EDGE, MAX_THREADS = 1 << 20, 512, 4
# If masks may make blocks zero, bands of rows are narrower: an eighth of the rows. Of a causal mask
# 7/16 of the scores are then skipped; 1/2 is the limit. Bands narrower than FINE slow products
# down. For up to FEW scores nothing is skipped.
FINE, BANDS, FEW = 128, 8, 1 << 18


class Block(NamedTuple):
    """A block: a slice of each axis of the scores."""

    b: slice
    h: slice
    rows: slice
    cols: slice

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(span.stop - span.start for span in self)

    def cut(self, operand: Tensor) -> Tensor:
        """The part of a [B|1, H|1, M|1, N|1] operand that the block reads; a view."""
        sizes = operand.shape
        return operand[
            tuple(span if size != 1 else WHOLE for span, size in zip(self, sizes, strict=True))
        ]


WHOLE = slice(None)


def spans(size: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, size)) for start in range(0, size, max(step, 1)))


@dataclass(frozen=True)
class Tiling:
    """The size of a block along each axis. The last block of an axis may be smaller.

    skip_cols: The granularity in columns with which zero scores are skipped.
    """

    batch: int
    heads: int
    rows: int
    cols: int
    skip_cols: int

    @property
    def scores(self) -> int:
        return self.batch * self.heads * self.rows * self.cols


def tile(
    sizes: tuple[int, int, int, int], groups: Sequence[int], shared: bool, masked: bool = False
) -> Tiling:
    """Blocks of about SCORES for each thread.

    groups:  Query heads for each key head, and for each value head. A block has whole groups, or a
             part of one.
    shared:  An operand serves all batches. Then a block has one batch, so that its gradient is
             added in place.
    masked:  Masks may make blocks zero.
    """
    batch, heads, rows, cols = sizes
    edge = min(EDGE, max(FINE, rows // BANDS)) if masked else EDGE
    row_step = _even(rows, edge)
    col_step = _even(cols, max(edge, SCORES // max(row_step, 1)))
    if not masked:
        row_step = _even(rows, max(edge, SCORES // max(col_step, 1)))
    room = min(torch.get_num_threads(), MAX_THREADS) * SCORES // max(row_step * col_step, 1)
    fitting = [
        count
        for count in range(1, heads + 1)
        if heads % count == 0 and all(count % g == 0 or g % count == 0 for g in groups)
    ]
    head_step = max((count for count in fitting if count <= room), default=1)
    whole = head_step == heads and not shared
    return Tiling(
        max(1, min(batch, room // max(heads, 1))) if whole else 1,
        head_step,
        row_step,
        col_step,
        _even(col_step, edge),
    )


def _even(size: int, limit: int) -> int:
    """The smallest step of at most `limit` that needs no more steps, whole vectors long."""
    if size <= limit:
        return size
    return min(limit, math.ceil(math.ceil(size / math.ceil(size / limit)) / 16) * 16)
