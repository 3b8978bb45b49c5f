"""The blocks of the CPU kernel: how large they are, and which of them masks make zero.

The conditions of all blocks of a problem are evaluated at once, in plain torch. An operand that
varies within a block is bounded by its smallest and largest element there. So tensors such as a
padding mask or segment numbers can make a block zero too. Notation: as in `operands`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...program.expr import AXES, Expr, dtype_of, fold, torch_apply
from ...program.score_mod import Aux
from ...program.tile_classes import TILE, classify
from .block_pass import Pass
from .chunks import BlockPass
from .operands import WHOLE, Block, BlockOperands, Specs, spans

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


class Tiling(NamedTuple):
    """The size of a block along each axis. The last block of an axis may be smaller."""

    batch: int
    heads: int
    rows: int
    cols: int
    skip_cols: int  # the columns in which zero scores are skipped together


def tile(
    sizes: tuple[int, int, int, int], groups: Sequence[int], shared: bool, masked: bool = False
) -> Tiling:
    """Blocks of about SCORES for each thread.

    groups: Query heads for each key head, and for each value head. shared: An operand serves all
    batches. masked: Masks may make blocks zero.
    """
    batch, heads, rows, cols = sizes
    edge = min(EDGE, max(FINE, rows // BANDS)) if masked else EDGE
    row_step = _even(rows, edge)
    col_step = _even(cols, max(edge, SCORES // max(row_step, 1)))
    if not masked:
        row_step = _even(rows, max(edge, SCORES // max(col_step, 1)))
    room = min(torch.get_num_threads(), MAX_THREADS) * SCORES // max(row_step * col_step, 1)
    fitting = [  # whole groups, or a part of one
        count
        for count in range(1, heads + 1)
        if heads % count == 0 and all(count % g == 0 or g % count == 0 for g in groups)
    ]
    head_step = max((count for count in fitting if count <= room), default=1)
    # A shared operand gets one batch a block, so that its gradient is added in place.
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


def tiles(o: BlockOperands, names: tuple[str, ...], work: Pass, skip: bool) -> BlockPass:
    """The pass that fills `names`, band after band: a band is the blocks of some rows."""
    # Scores are left out where all terms of `work` are 0.
    scores = math.prod(o.sizes)
    term = zero(work.roots, o.program.aux) if skip and scores > FEW else None
    if term is None and scores <= MAX_THREADS * SCORES:
        return _few_tiles(o.specs, names, (torch.get_num_threads(), MAX_THREADS, SCORES, EDGE))
    tiling = _tile_of(o.specs, masked=term is not None)
    steps = (tiling.rows, tiling.skip_cols)
    zeros: Tensor | None = None
    if term is not None and (o.sizes[2] > steps[0] or o.sizes[3] > steps[1]):
        zeros = verdicts(term, o.index, steps, o.aux, o.scalars, o.compute)
    return _block_pass(o.specs, names, tiling, zeros)


def _tile_of(specs: Specs, masked: bool) -> Tiling:
    groups = [specs.sides[name].group for name in ("key", "value")]
    shared = any(side.shared for side in specs.sides.values())
    return tile(specs.sizes, groups, shared, masked)


@functools.lru_cache(maxsize=1024)  # jagged calls ask for each sequence
def _few_tiles(specs: Specs, names: tuple[str, ...], limits: tuple[int, ...]) -> BlockPass:
    """limits: What else decides on the tiling."""
    return _block_pass(specs, names, _tile_of(specs, masked=False), None)


def _block_pass(
    specs: Specs, names: tuple[str, ...], tiling: Tiling, zeros: Tensor | None
) -> BlockPass:
    batch, heads, rows, cols = specs.sizes
    blocks: list[Block] = []
    for b in spans(batch, tiling.batch):
        for h in spans(heads, tiling.heads):
            for number, span in enumerate(spans(rows, tiling.rows)):
                band = Block(b, h, span, slice(0, cols))
                for run in _nonzero(band, number, tiling.skip_cols, zeros):
                    for part in spans(run.stop - run.start, tiling.cols):
                        own = slice(run.start + part.start, run.start + part.stop)
                        blocks.append(Block(b, h, span, own))
    return BlockPass(tuple(blocks), tuple(specs.sides[name] for name in names))


def _nonzero(band: Block, number: int, step: int, zeros: Tensor | None) -> Iterator[slice]:
    """The columns of a band that are not skipped, as slices."""
    if zeros is None:
        yield band.cols
        return
    cells = list(spans(band.cols.stop, step))
    verdict = band._replace(rows=slice(number, number + 1), cols=WHOLE).cut(zeros)
    skipped = verdict.flatten(0, 2).all(0).expand(len(cells)).tolist()
    for is_zero, run in itertools.groupby(range(len(cells)), key=skipped.__getitem__):
        members = list(run)
        if not is_zero:
            yield slice(cells[members[0]].start, cells[members[-1]].stop)


_ENDS: dict[str, Callable[..., Tensor]] = {"lo": torch.amin, "hi": torch.amax}


@functools.lru_cache(maxsize=256)
def zero(roots: tuple[Expr, ...], aux: tuple[Aux, ...]) -> Expr | None:
    """The condition that all terms are 0 on a block, over its bounds. None if it is never true."""
    classes = classify(roots, aux, bounded=range(len(aux)))
    return classes.zero if classes.skips else None


def verdicts(
    term: Expr,
    index: Callable[[str], Tensor],
    steps: tuple[int, int],
    aux: Sequence[Tensor],
    scalars: Sequence[int],
    dtype: torch.dtype,
) -> Tensor:
    """The value of `term` for every block: [B|1, H|1, row blocks | 1, column blocks | 1].

    index: From an index of `AXES` to its values, with four dims. steps: Rows and columns of a
    block. aux: On four axes.
    """

    def leaf(node: Expr) -> Tensor:
        if node in TILE.values():
            axis, _, end = node.op.rpartition("_")
            return _per_block(index(axis), steps, end)
        if node.op in AXES:
            return index(node.op)
        kind = dtype_of(node.kind, dtype)
        if node.op.startswith("aux"):
            operand = aux[node.value]
            operand = operand if node.kind == "b" else operand.to(kind)
            return operand if node.op == "aux" else _per_block(operand, steps, node.op[-2:])
        literal = scalars[node.value] if node.op == "scalar" else node.value
        return torch.tensor(literal, dtype=kind)

    value = fold([term], leaf, torch_apply(dtype))[0]
    return value[(None,) * (len(AXES) - value.dim())]  # of literals alone it has no dimension


def _per_block(operand: Tensor, steps: tuple[int, int], end: str) -> Tensor:
    for dim, step in zip((2, 3), steps, strict=True):
        if operand.shape[dim] > 1:
            parts = [_ENDS[end](part, dim, keepdim=True) for part in operand.split(step, dim)]
            operand = torch.cat(parts, dim)
    return operand
