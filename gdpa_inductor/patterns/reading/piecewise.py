"""Weights that are put together from parts: other activations for other heads.

    torch.cat([F.silu(s[:, :2]), F.gelu(s[:, 2:])], 1)
    torch.stack([act(s[:, h]) for h, act in enumerate(activations)], 1)

are one program, `where(h < 2, silu(s), gelu(s))`. In the branch where an index lies in one part, a
position of the part is that of the whole, less where the part begins. The constant at which a part
of one position is taken is the index itself. So `s[:, 1]`, in the branch h = 1, is s at h.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from ...program.expr import Expr, call
from ..host import facts
from ..host.sizes import same
from .frame import Digits, Index, Space
from .kinds import as_kind, where
from .views import tensor_of

JOINS = ("cat", "stack")


@dataclass(frozen=True)
class Branch:
    """Where `digits` lie in [start, end)."""

    digits: Digits
    start: int
    end: int


def parts_of(space: Space, node: Node, index: Index) -> list[tuple[Branch, Node, Index]] | None:
    """The parts that `node` joins, each with its branch and the index into it; None where their
    sizes are not known.
    """
    tensors: Any = node.args[0]
    stacked = facts.name(node) == "stack"
    dim: Any = facts.argument(node, 1, "dim") or 0
    dim %= tensor_of(node).dim()
    digits, parts, start = index[dim], [], 0
    for tensor in tensors:
        size = 1 if stacked else tensor_of(tensor).shape[dim]
        if not isinstance(size, int):
            return None
        branch = Branch(digits, start, start + size)
        within = () if stacked else (space.part(digits, start, size),)
        if size:
            parts.append((branch, tensor, (*index[:dim], *within, *index[dim + 1 :])))
        start += size
    return parts if digits else None


def in_branches(space: Space, branches: Sequence[Branch], index: Index) -> Index:
    """The index, its constants replaced by the digits that have their value in these branches."""
    known = {b.start: space.resolve(b.digits) for b in branches if b.end - b.start == 1}

    def running(digits: Digits) -> Digits:
        if len(digits) != 1 or digits[0].value is None or digits[0].value not in known:
            return digits
        whole = known[digits[0].value]
        return whole if same(math.prod(a.size for a in whole), digits[0].size) else digits

    return tuple(map(running, index)) if known else index


def chosen(kind: str, position: Expr, parts: Sequence[tuple[Branch, Expr]]) -> Expr:
    """The parts' expressions by where `position` lies."""
    result = as_kind(kind, parts[-1][1])
    for branch, part in reversed(parts[:-1]):
        own = as_kind(kind, part)
        if own is not result:
            result = where(kind, call("lt", position, branch.end), own, result)
    return result
