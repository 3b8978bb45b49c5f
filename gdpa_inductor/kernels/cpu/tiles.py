"""Which blocks of scores the CPU kernel skips: those that the program's masks make zero.

The conditions of all blocks of a problem are evaluated at once, in plain torch. An operand that
varies within a block is bounded by its smallest and largest element there. So tensors such as a
padding mask or segment numbers can make a block zero too.
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

    Args:
        index: A function from an index of `AXES` to its values, as a tensor of four dims.
        steps: Rows and columns of a block.
        aux: The aux operands on four axes.
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
