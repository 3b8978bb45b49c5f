"""The five-matmul backward: when it is chosen, and the buffers that it needs."""

from __future__ import annotations

from typing import Any

import torch

from ..._compat import lowering, shapes
from ...kernels.triton.five_matmul import FIVE_MATMUL, ROWS, FiveMatmul, turns
from ...problem import Problem, Size
from .. import gpu
from .inputs import Inputs, block_dim
from .launch import Output, few, skips

# Up to so many sequences are sorted by counting. A CTA's share of sequences is fixed, so the order
# matters more than for tiles: unsorted, 1152 sequences of up to 1024 rows take 1.26 times as long.
_COUNTED = 2048


def applies(outputs: dict[int, Output], o: Inputs) -> bool:
    """Whether this kernel runs. It computes dQ and the `outputs` of "keys". A CTA owns heads."""
    whole = not (o.shared or o.grouped) and not skips(list(outputs.values()), o)
    return whole and any(_fits(rule, o.problem) for rule in FIVE_MATMUL)


def _fits(rule: FiveMatmul, p: Problem) -> bool:
    """Whether a problem fits a row of the table `FIVE_MATMUL`. Symbolic sizes count by their hints,
    without a guard."""
    dims = [block_dim(d) for d in (p.head_dim, p.value_dim)]
    kind = (gpu.capability(p.device), p.dtype.itemsize, *dims)
    rows, keys = shapes.size_hint(p.rows), shapes.size_hint(p.cols)
    if kind != (rule.capability, rule.itemsize, rule.head_dim, rule.head_dim) or not rows:
        return False
    of_all = shapes.size_hint(p.total_rows if p.jagged_query else p.batch) or 0
    units = of_all * (shapes.size_hint(p.heads) or 0) // (rows if p.jagged_query else 1)
    short = rows <= rule.rows and (keys or rule.keys + 1) <= rule.keys
    return short and units >= rule.units * gpu.processors(p.device)


def sums(o: Inputs) -> Any:
    """A buffer [CTAs, rows, D] where each CTA sums dQ of its current head. Not initialised."""
    p = o.problem
    rows: Size = (p.rows + ROWS - 1) // ROWS * ROWS
    size = (gpu.processors(p.device), rows, block_dim(p.head_dim))
    return lowering.empty(size, torch.float32, p.device)


def order(o: Inputs) -> Any:
    """The order of the sequences, as `turns` makes it, or None if no side is jagged."""
    if not o.offsets:
        return None
    nodes, fakes = o.extents
    counted = few(o, _COUNTED)

    def formula(*sized: Any) -> torch.Tensor:
        work: Any = 1
        for offsets, longest in zip(sized[::3], sized[2::3], strict=True):
            lengths = (offsets[1:] - offsets[:-1]).to(torch.int64).clamp(max=longest)
            work = work * lengths
        return turns(work, counted)

    return lowering.realized(lowering.inline_formula(formula, nodes, fakes), o.problem.device)
