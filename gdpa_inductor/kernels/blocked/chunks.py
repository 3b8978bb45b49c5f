"""Decide which chunks of scores a call has, their order, and which gradients each pass sums.

A chunk is a `Block`: all scores of some (batch, head), or some rows and columns of one of them. In:
a `ChunkedCall`, which has sizes but no tensors. Out: passes over the chunks. Notation: as in
`operands`; here a unit is one (batch, head).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .operands import Block, MatrixSpec, Region, spans

# Bytes for the scores of a chunk and for fp32 sums: together a call takes at most 60 MiB. Smaller
# chunks would stay whole in the L2 cache of a GPU, but launching their kernels takes longer than
# that saves.
SCORES, SUMS = 40 << 20, 20 << 20
# The same where one kernel computes P and dS. The products that follow need many scores to fill a
# GPU: of head dims of 256, dQ of 4096 rows has 32 to 64 tiles.
STORED, STORED_SUMS = 128 << 20, 64 << 20
MIN_ROWS = 1024  # the fewest rows of a chunk with all columns; narrower products idle the GPU
ALIGNED = 64  # rows and columns of a chunk are multiples of this


@dataclass(frozen=True)
class ChunkedCall:
    """The facts about a call that decide on its chunks."""

    sizes: tuple[int, int, int, int]  # [B, H, M, N]
    sides: tuple[MatrixSpec, ...]
    # Batches and heads of every operand can be viewed as one dim. Otherwise a chunk has several
    # batches or several heads, not both.
    joint: bool
    wanted: tuple[MatrixSpec, ...]  # the results, which are sums over chunks
    score_bytes: int  # of one score, in all buffers of a chunk
    stored: bool = False  # one kernel computes P and dS
    # An operand with a number for each row and column is shared by batches, and its gradient is
    # summed. Then fewer sums are stored if a chunk has batches of one head.
    by_head: bool = False

    @property
    def scores(self) -> int:
        """The most scores of a chunk."""
        return (STORED if self.stored else SCORES) // self.score_bytes

    @property
    def sums(self) -> int:
        """The most bytes of unfinished sums."""
        return STORED_SUMS if self.stored else SUMS

    @property
    def run(self) -> int:
        """How many neighbouring heads have equal strides in each operand."""
        heads = self.sizes[1]
        return math.gcd(heads, *(s.group for s in self.sides if 1 < s.group < heads))


Visit = tuple[Region, bool, bool]  # whether a block is the first and the last of its region


@dataclass(frozen=True)
class BlockPass:
    """One pass over blocks."""

    blocks: tuple[Block, ...]
    served: tuple[MatrixSpec, ...]  # what it sums

    @functools.cached_property
    def scores(self) -> int:
        return sum(math.prod(block.shape) for block in self.blocks)

    @functools.cached_property
    def visits(self) -> dict[str, list[Visit]]:
        return {side.name: visits_of(side, self.blocks) for side in self.served}


def visits_of(side: MatrixSpec, order: Sequence[Block]) -> list[Visit]:
    regions = list(enumerate(map(side.region, order)))
    last = {region: number for number, region in regions}
    first = {region: number for number, region in reversed(regions)}
    return [(region, first[region] == number, last[region] == number) for number, region in regions]


@functools.lru_cache(maxsize=256)
def passes(call: ChunkedCall) -> tuple[BlockPass, ...]:
    """The passes of a call: as few as the memory for sums allows."""
    # Each follows the order of one gradient, whose regions are then complete one after the other.
    # Other gradients join the pass if their unfinished sums are small.
    blocks = list(_blocks(call))
    plan: list[BlockPass] = []
    left = list(call.wanted)
    while left or not plan:
        order = sorted(blocks, key=left[0].region) if left else blocks
        served: list[MatrixSpec] = []
        room = call.sums
        for side in left:
            cost = unfinished(side, order)
            if not served or cost <= room:
                served.append(side)
                room -= cost
        plan.append(BlockPass(tuple(order), tuple(served)))
        left = [side for side in left if side not in served]
    return tuple(plan)


def unfinished(side: MatrixSpec, order: Sequence[Block]) -> int:
    """The most bytes of unfinished fp32 sums of `side`, if chunks have this order."""
    visits = visits_of(side, order)
    single = all(first and last for _, first, last in visits)
    if side.exact or (single and not any(map(side.is_shared_in, order))):
        return 0
    current = most = 0
    for (_, first, last), block in zip(visits, order, strict=True):
        size = 4 * side.elements(block)
        current += size if first else 0
        most = max(most, current)
        current -= size if last else 0
    return most


def _blocks(call: ChunkedCall) -> Iterator[Block]:
    _, _, rows, cols = call.sizes
    row_step, col_step = _steps(call)
    whole = (row_step, col_step) == (rows, cols)
    for b, h in _units(call, _room(call) if whole else 1):
        for row_span in spans(rows, row_step):
            for col_span in spans(cols, col_step):
                yield Block(b, h, row_span, col_span)


def _room(call: ChunkedCall) -> int:
    """The most units of M × N scores that a chunk may have."""
    _, _, rows, cols = call.sizes
    lengths = {"rows": rows, "cols": cols}
    parts = [  # units that share a matrix need memory for a sum each
        4 * lengths[side.along] * side.width
        for side in call.wanted
        if side.shared or side.group > 1
    ]
    room = call.scores // (rows * cols)
    return max(1, min([room, *(call.sums // 2 // part for part in parts)]))


def _steps(call: ChunkedCall) -> tuple[int, int]:
    """(rows, columns) of a chunk: all, or all of one and some of the other, or a square."""
    _, _, rows, cols = call.sizes
    if rows * cols <= call.scores:
        return rows, cols
    most_rows, most_cols = _most_summed(call, "rows"), _most_summed(call, "cols")
    # Then the wider sums are complete at once. Where P and dS are stored, two of the three products
    # should have long results.
    if _width(call, "cols") > _width(call, "rows") and not call.stored:
        step = call.scores // rows
        if step >= min(cols, MIN_ROWS) and rows <= most_rows:
            return rows, _even(cols, step)
    step = call.scores // cols
    if step >= min(rows, MIN_ROWS) and cols <= most_cols:
        return _even(rows, step), cols
    row_step = _even(rows, min(most_rows, max(math.isqrt(call.scores), step)))
    return row_step, _even(cols, max(ALIGNED, min(most_cols, call.scores // row_step)))


def _width(call: ChunkedCall, along: str) -> int:
    """The width of the fp32 sums along the rows, or along the columns."""
    return sum(side.width for side in call.wanted if side.along == along and not side.exact)


def _most_summed(call: ChunkedCall, along: str) -> int:
    """How many rows, or columns, have sums within the memory for them."""
    width = _width(call, along)
    return max(ALIGNED, call.sums // (4 * width)) if width else 1 << 62


def _units(call: ChunkedCall, room: int) -> Iterator[tuple[slice, slice]]:
    """Batches and heads of the chunks."""
    batch, heads, *_ = call.sizes
    if call.by_head and not any(side.shared or side.group > 1 for side in call.sides):
        yield from ((b, h) for h in spans(heads, 1) for b in spans(batch, _part(batch, room)))
    elif call.joint and room >= heads:
        yield from ((b, slice(0, heads)) for b in spans(batch, _part(batch, room // heads)))
    elif call.joint or call.run >= batch:
        step = _part(call.run, room)
        for b in spans(batch, 1):
            for start in range(0, heads, call.run):
                for h in spans(call.run, step):
                    yield b, slice(start + h.start, start + h.stop)
    else:
        step = _part(batch, room)
        yield from ((b, h) for h in spans(heads, 1) for b in spans(batch, step))


def _part(size: int, limit: int) -> int:
    """The smallest step of at most `limit` that needs no more steps."""
    return math.ceil(size / math.ceil(size / max(1, min(size, limit))))


def _even(size: int, limit: int) -> int:
    """The same, a multiple of ALIGNED where that fits."""
    step = _part(size, limit)
    aligned = math.ceil(step / ALIGNED) * ALIGNED
    return min(size, aligned) if aligned <= limit else step


def launches(call: ChunkedCall, products: int) -> int:
    """The kernels that a call launches. products: Those of a chunk that are not summed."""
    count = 0
    for block_pass in passes(call):
        blocks = block_pass.blocks
        count += (products + 1) * len(blocks)  # one is the program
        for side in block_pass.served:
            count += len(blocks) + sum(map(side.is_shared_in, blocks))
            if unfinished(side, blocks):
                count += len(set(map(side.region, blocks)))
    return count
