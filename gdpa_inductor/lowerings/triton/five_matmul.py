"""The five-matmul backward: when it is faster, and the buffers that it needs.

It is one kernel. A CTA owns a whole head of a sequence, and computes S and dP once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..._compat import lowering, shapes
from ...kernels import devices
from ...operands import Size
from ...problem import Problem
from .inputs import Inputs, block_dim
from .plan import Output, few, skips

ROWS = 128  # how many rows of dQ are converted from fp32 sums to the output at once
# Up to so many sequences are sorted by counting. A CTA's share of sequences is fixed, so the order
# matters more than for tiles: unsorted, 1152 sequences of up to 1024 rows take 1.26 times as long.
_COUNTED = 2048


@dataclass(frozen=True)
class FiveMatmul:
    """A case in which one CTA for a (sequence, head) is faster than CTAs for its tiles."""

    # capability, itemsize: the GPU, and the bytes of an element, for which it was measured
    capability: int
    itemsize: int
    head_dim: int  # the same, rounded up to a power of two
    # rows, keys: the most queries and keys of a sequence
    rows: int
    keys: int
    # The fewest (sequence, head) of greatest length for each multiprocessor. With fewer, the last
    # ones leave too many multiprocessors idle.
    units: int


# Measured on an H200 (torch 2.11, Triton 3.6), tanh-gelu, 1152 sequences of 4 heads, beside "rows"
# and "keys" with one configuration each. 18% more FLOP/s at 256 rows and keys, 7% at lengths up to
# 512, none up to 1024, 3 to 4% less at 1024; 8 and 9% more at 1024 and 2048 rows over 256 keys.
# Where masks leave tiles out it loses 8 to 16%.
FIVE_MATMUL = (FiveMatmul(capability=90, itemsize=2, head_dim=128, rows=2048, keys=512, units=3),)


def applies(outputs: dict[int, Output], o: Inputs) -> bool:
    """Whether this kernel runs. It computes dQ and the `outputs` of "keys". A CTA owns heads."""
    whole = not (o.shared or o.grouped) and not skips(list(outputs.values()), o)
    return whole and any(_fits(rule, o.problem) for rule in FIVE_MATMUL)


def _fits(rule: FiveMatmul, p: Problem) -> bool:
    """Symbolic sizes count by their hints, without a guard."""
    dims = [block_dim(d) for d in (p.head_dim, p.value_dim)]
    kind = (devices.capability(p.device), p.dtype.itemsize, *dims)
    rows, keys = shapes.size_hint(p.rows), shapes.size_hint(p.cols)
    if kind != (rule.capability, rule.itemsize, rule.head_dim, rule.head_dim) or not rows:
        return False
    of_all = shapes.size_hint(p.total_rows if p.jagged_query else p.batch) or 0
    units = of_all * (shapes.size_hint(p.heads) or 0) // (rows if p.jagged_query else 1)
    short = rows <= rule.rows and (keys or rule.keys + 1) <= rule.keys
    return short and units >= rule.units * devices.processors(p.device)


def sums(o: Inputs) -> Any:
    """A buffer [CTAs, rows, D] where each CTA sums dQ of its current head. Not initialised."""
    p = o.problem
    rows: Size = (p.rows + ROWS - 1) // ROWS * ROWS
    size = (devices.processors(p.device), rows, block_dim(p.head_dim))
    return lowering.empty(size, torch.float32, p.device)


def order(o: Inputs) -> Any:
    """The order of the sequences, as `turns` makes it, or None if no side is jagged."""
    if not o.offsets:
        return None
    nodes, fakes = o.extents
    counted = few(o, _COUNTED)

    def formula(*sized: Any) -> Tensor:
        work: Any = 1
        for offsets, longest in zip(sized[::3], sized[2::3], strict=True):
            lengths = (offsets[1:] - offsets[:-1]).to(torch.int64).clamp(max=longest)
            work = work * lengths
        return turns(work, counted)

    return lowering.realized(lowering.inline_formula(formula, nodes, fakes), o.problem.device)


def turns(work: Tensor, few: bool) -> Tensor:
    """The numbers of the sequences, int32 [B], those with most work first. The order is stable.

    work: Integers, [B]. few: Sort by counting, with B² comparisons in two small kernels. Otherwise
    the order is unchanged.
    """
    number = torch.arange(work.shape[0], device=work.device)
    if not few:
        return number.to(torch.int32)
    more = work > work[:, None]
    rank = (more | ((work == work[:, None]) & (number < number[:, None]))).sum(1)
    return torch.where(rank == number[:, None], number, -1).amax(1).to(torch.int32)
