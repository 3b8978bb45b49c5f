"""Divergence. A gang is some warps in step; lanes that are elsewhere wait in `pend`.

pend maps a block to the mask of the lanes that are to run it next. The lowest block with lanes runs
first, so lanes meet again where branches join. Warps of a gang part for good when they go different
ways: `signatures` says which belong together.
"""

import numpy as np

from .lanes import by_warp, count

Pending = dict[int, np.ndarray]


def resume(pend: Pending, everyone: np.ndarray) -> tuple[int, np.ndarray]:
    block = min(pend)
    mask = pend.pop(block)
    return block, everyone if count(mask) == mask.size else mask


def rejoin(pend: Pending, block: int, mask: np.ndarray, everyone: np.ndarray):
    """Joins the lanes that wait at the block, and gives way to those at a lower one."""
    waiting = pend.pop(block, None)
    if waiting is not None:
        mask = mask | waiting
    if pend and min(pend) < block:
        pend[block] = mask
        return resume(pend, everyone)
    return block, everyone if count(mask) == mask.size else mask


def part(pend: Pending, jumping: np.ndarray, mask: np.ndarray, target: int, fall: int):
    """Adds both ways to `pend`; the signatures if the warps of the gang part, else None."""
    for block, lanes in ((target, jumping), (fall, mask & ~jumping)):
        pend[block] = pend[block] | lanes if block in pend else lanes
    return signatures(pend)


def signatures(pend: Pending) -> list[tuple[int, ...]] | None:
    """For each warp the blocks where it has lanes; None if all warps agree."""
    size = next(iter(pend.values())).size
    if size == 32:
        return None
    rows = {block: by_warp(lanes).any(1) for block, lanes in sorted(pend.items())}
    results = [tuple(b for b, row in rows.items() if row[w]) for w in range(size // 32)]
    return results if len(set(results)) > 1 else None


def apart(mask: np.ndarray, *operands: np.ndarray) -> list[tuple[int, ...]] | None:
    """For each warp the values of operands that must be the same in a warp; None if all agree."""
    if all(count(x == x[0]) == x.size for x in operands):
        return None
    rows = by_warp(mask)
    first = [np.argmax(row) + 32 * w for w, row in enumerate(rows)]
    results = [
        tuple(int(x[lane]) for x in operands) if row.any() else ()
        for lane, row in zip(first, rows, strict=True)
    ]
    return results if len({key for key in results if key}) > 1 else None
