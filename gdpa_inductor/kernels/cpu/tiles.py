"""Which blocks of scores the CPU kernel leaves out: those that the program's masks make zero.

The verdicts of all blocks of a problem are computed at once, in plain torch. Operands that vary
inside a block are bounded by their smallest and largest element in it. So a padding mask or segment
numbers that come as tensors are skipped by too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...program.expr import AXES, Expr, fold, torch_apply
from ...program.score_mod import Aux
from ...program.tile_classes import TILE, classify

_ENDS: dict[str, Callable[..., Tensor]] = {"lo": torch.amin, "hi": torch.amax}


@functools.lru_cache(maxsize=256)
def zero(roots: tuple[Expr, ...], aux: tuple[Aux, ...]) -> Expr | None:
    """Whether all the terms are 0 on a block, over its bounds; None where that is never so."""
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
    """`term` of every block: [B|1, H|1, row blocks | 1, column blocks | 1].

    index: the values of an index of `AXES` as a tensor of four dimensions. steps: rows and columns
    of a block. aux: on four axes.
    """

    def leaf(node: Expr) -> Tensor:
        if node in TILE.values():
            axis, _, end = node.op.rpartition("_")
            return _per_block(index(axis), steps, end)
        if node.op in AXES:
            return index(node.op)
        if node.op.startswith("aux"):
            operand = aux[int(node.value or 0)]
            operand = operand if node.kind == "b" else operand.to(_dtype_of(node, dtype))
            return operand if node.op == "aux" else _per_block(operand, steps, node.op[-2:])
        literal = scalars[int(node.value or 0)] if node.op == "scalar" else node.value
        return torch.tensor(literal, dtype=_dtype_of(node, dtype))

    found = fold([term], leaf, torch_apply(dtype))[0]
    return found[(None,) * (len(AXES) - found.dim())]  # of literals alone it has no dimension


def _dtype_of(node: Expr, dtype: torch.dtype) -> torch.dtype:
    return {"f": dtype, "i": torch.int64, "b": torch.bool}[node.kind]


def _per_block(operand: Tensor, steps: tuple[int, int], end: str) -> Tensor:
    """The smallest or largest element in each block of rows and columns."""
    for dim, step in zip((2, 3), steps, strict=True):
        if operand.shape[dim] > 1:
            parts = [_ENDS[end](part, dim, keepdim=True) for part in operand.split(step, dim)]
            operand = torch.cat(parts, dim)
    return operand
