"""Views of a shadow: the element of the source that an element of the result is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from ...rejection import Code
from ..host import facts, heads
from ..host.sizes import is_one, product, same
from ..result import Refused
from .frame import Index, Space, broadcast, permuted

_REGROUPING = frozenset(
    ["view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze", "flatten"]
)
_SAME_ELEMENT = frozenset(["clone", "contiguous", "alias", "lift_fresh", "lift_fresh_copy", "lift"])


def tensor_of(node: Node) -> torch.Tensor:
    """The fake tensor of an ATen node."""
    found = node.meta.get("val")
    if not isinstance(found, torch.Tensor):
        raise Refused(Code.ANALYSIS, f"`{facts.name(node)}` returns no tensor")
    return found


def through_view(space: Space, node: Node, index: Index) -> tuple[Node, Index] | None:
    """The source of a view and the index into it; None where `node` is not a view."""
    called = facts.name(node)
    source = node.args[0] if node.args and isinstance(node.args[0], Node) else None
    if called == "cat":
        return _through_join(space, node, space.resolve_index(index))
    if called == "getitem":
        return _through_piece(space, node, space.resolve_index(index))
    if source is None or not isinstance(source.meta.get("val"), torch.Tensor):
        return None
    index, shape, made = space.resolve_index(index), tensor_of(source).shape, tensor_of(node).shape
    args: tuple[Any, ...] = node.args[1:]
    if called in _REGROUPING and tensor_of(node).dtype == tensor_of(source).dtype:
        return source, space.regroup(index, shape)
    if called in _SAME_ELEMENT:
        return source, index
    if called in ("permute", "transpose", "t", "T"):
        return source, permuted(index, _order(called, args, len(shape)))
    if called == "expand":
        return source, broadcast(index, made, shape)
    if called in ("select_scatter", "slice_scatter"):
        return _through_scatter(node, index)
    if called == "select":
        dim, at = args[0] % len(shape), args[1]
        return _narrowed(space, source, (*index[:dim], (), *index[dim:]), dim, at, 1)
    return _through_slice(space, source, index, args, made) if called == "slice" else None


def _through_slice(
    space: Space, source: Node, index: Index, args: Sequence[Any], made: torch.Size
) -> tuple[Node, Index] | None:
    """`made`: the shape of the slice."""
    given = dict(enumerate(args))
    if given.get(3, 1) != 1:
        return None
    shape = tensor_of(source).shape
    if all(map(same, shape, made)):
        return source, index
    dim = given.get(0, 0) % len(shape)
    return _narrowed(space, source, index, dim, given.get(1) or 0, made[dim])


def _through_piece(space: Space, node: Node, index: Index) -> tuple[Node, Index] | None:
    """`x.split(...)[i]`, `x.unbind()[i]`: the element of `x`."""
    pieces: Any = node.args[0]
    called = facts.name(pieces)
    if called not in ("split", "split_with_sizes", "unbind"):
        return None
    source: Node = pieces.args[0]
    made: Any = pieces.meta["val"]
    number: Any = node.args[1]
    rest = [*pieces.args[1:], *pieces.kwargs.values()]
    dim = (rest[-1] if len(rest) > (called != "unbind") else 0) % tensor_of(source).dim()
    if called == "unbind":
        return _narrowed(space, source, (*index[:dim], (), *index[dim:]), dim, number, 1)
    start = sum(piece.shape[dim] for piece in made[:number])
    return _narrowed(space, source, index, dim, start, made[number].shape[dim])


def _through_join(space: Space, node: Node, index: Index) -> tuple[Node, Index] | None:
    """`cat(x.split(d, 2), 0)`: what is at (h, b) of dim 0 and at c of dim 2 is at b and (h, c) of
    `x`.
    """
    split = heads.split_of(node)
    if split is None:
        return None
    source: Node = split.all_input_nodes[0]
    whole, made = tensor_of(source).shape, tensor_of(node).shape
    (piece, *_), count = split.meta["val"], len(split.meta["val"])
    joined, cut = (
        next(d for d, size in enumerate(shape) if not same(size, piece.shape[d]))
        for shape in (made, whole)
    )
    number, within = space.regroup((index[joined],), (count, piece.shape[joined]))
    digits = list(index)
    digits[joined] = within
    digits[cut] = (*number, *digits[cut])
    return source, tuple(digits)


def _narrowed(
    space: Space, source: Node, index: Index, dim: int, start: Any, length: Any
) -> tuple[Node, Index] | None:
    """`source.narrow(dim, start, length)` at `index`, where this is one of several equal parts."""
    total = tensor_of(source).shape[dim]
    if not all(isinstance(size, int) for size in (total, start, length)) or not length:
        return None
    start = max(start + total, 0) if start < 0 else start
    within = index[dim]
    if len(within) == 1 and within[0].part is not None and within[0].part[1] == start:
        whole = within[0].part[0]
        if same(product(atom.size for atom in whole), total):
            return source, (*index[:dim], whole, *index[dim + 1 :])
    if start % length or total % length:
        return None
    digits = (*space.fixed(total // length, start // length), *within)
    return source, (*index[:dim], digits, *index[dim + 1 :])


def _through_scatter(node: Node, index: Index) -> tuple[Node, Index] | None:
    """Where functionalisation writes all of a tensor, the result is what is written."""
    source: Any = node.args[0]
    written: Any = node.args[1]
    shape, dim = tensor_of(source).shape, 0
    if len(node.args) > 2:
        dim = int(node.args[2]) % len(index)  # type: ignore[arg-type, call-overload]
    if facts.name(node) == "select_scatter":
        return (written, (*index[:dim], *index[dim + 1 :])) if is_one(shape[dim]) else None
    whole = all(map(same, shape, tensor_of(written).shape))
    return (written, index) if whole and (len(node.args) < 6 or node.args[5] == 1) else None


def _order(called: str, args: Sequence[Any], rank: int) -> list[int]:
    """The dims of a permutation, whatever it is called."""
    if called == "permute":
        return [int(d) for d in args[0]]
    order = list(range(rank))
    if called == "T":
        return order[::-1]
    first, second = (0, 1) if called == "t" else (args[0], args[1])
    if rank >= 2:
        order[first], order[second] = order[second], order[first]
    return order
