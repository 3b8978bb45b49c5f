"""Views of a shadow: the element of the source that an element of the result is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from ...rejection import Code
from ..host import facts, heads
from ..host.sizes import is_one, same
from ..result import Refused
from .frame import Index, Space, broadcast, permuted

REGROUPING = frozenset(
    ["view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze", "flatten"]
)
SAME_ELEMENT = frozenset(["clone", "contiguous", "alias", "lift_fresh", "lift_fresh_copy", "lift"])


def tensor_of(node: Node) -> torch.Tensor:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        raise Refused(Code.ANALYSIS, f"`{facts.name(node)}` returns no tensor")
    return value


def value_of(argument: Any) -> Any:
    """The value of an argument: of a node what it returns, on fakes."""
    return argument.meta.get("val") if isinstance(argument, Node) else argument


def through_view(space: Space, node: Node, index: Index) -> tuple[Node, Index] | None:
    """The source of a view and the index into it; None where `node` is not a view."""
    called = facts.name(node)
    source = node.args[0] if node.args and isinstance(node.args[0], Node) else None
    index = space.resolve_index(index)
    if called == "cat":
        return _through_join(space, node, index)
    if called == "getitem":
        return _through_piece(space, node, index)
    tensor = value_of(source)
    if source is None or not isinstance(tensor, torch.Tensor):
        return None
    shape, result = tensor.shape, tensor_of(node)
    args: tuple[Any, ...] = node.args[1:]
    if called in REGROUPING and result.dtype == tensor.dtype:
        return source, space.regroup(index, shape)
    if called in SAME_ELEMENT:
        return source, index
    if called in ("permute", "transpose", "t", "T"):
        return source, permuted(index, order_of(node))
    if called == "expand":
        return source, broadcast(index, result.shape, shape)
    # A copy with a part written over: an element of the rest is the element of the source.
    if called in ("select_scatter", "slice_scatter"):
        return _through_scatter(node, index)
    if called == "select":
        dim, at = args[0] % len(shape), args[1]
        return _narrowed(space, source, (*index[:dim], (), *index[dim:]), dim, at, 1)
    return _through_slice(space, node, index) if called == "slice" else None


def order_of(node: Node) -> Sequence[int]:
    """Which dims of its source the dims of a permuting call are."""
    # Sizes that differ tell where the dims go.
    source: Any = node.args[0]
    probe = torch.empty(tuple(range(tensor_of(source).dim())), device="meta")
    target: Any = node.target
    return target(probe, *node.args[1:]).shape


def _through_slice(space: Space, node: Node, index: Index) -> tuple[Node, Index] | None:
    source: Any = node.args[0]
    shape, sliced = tensor_of(source).shape, tensor_of(node).shape
    if facts.argument(node, 4) not in (None, 1):
        return None
    if all(map(same, shape, sliced)):
        return source, index
    dim = (facts.argument(node, 1) or 0) % len(shape)
    return _narrowed(space, source, index, dim, facts.argument(node, 2) or 0, sliced[dim])


def _through_piece(space: Space, node: Node, index: Index) -> tuple[Node, Index] | None:
    """`x.split(...)[i]`, `x.unbind()[i]`: the element of `x`."""
    pieces: Any = node.args[0]
    called = facts.name(pieces)
    if called not in ("split", "split_with_sizes", "unbind"):
        return None
    source: Node = pieces.args[0]
    outputs: Any = value_of(pieces)
    number: Any = node.args[1]
    rest = [*pieces.args[1:], *pieces.kwargs.values()]
    dim = (rest[-1] if len(rest) > (called != "unbind") else 0) % tensor_of(source).dim()
    if called == "unbind":
        return _narrowed(space, source, (*index[:dim], (), *index[dim:]), dim, number, 1)
    # The pieces on fakes say where each begins, however the call gave their sizes.
    start = sum(piece.shape[dim] for piece in outputs[:number])
    return _narrowed(space, source, index, dim, start, outputs[number].shape[dim])


def _through_join(space: Space, node: Node, index: Index) -> tuple[Node, Index] | None:
    """`cat(x.split(d, 2), 0)`: (h, b) in dim 0 and c in dim 2 are b and (h, c) in those of `x`."""
    split = heads.split_of(node)
    if split is None:
        return None
    source: Node = split.all_input_nodes[0]
    pieces: Any = value_of(split)
    joined, cut = (
        next(d for d, size in enumerate(tensor_of(n).shape) if not same(size, pieces[0].shape[d]))
        for n in (node, source)
    )
    number, within = space.regroup((index[joined],), (len(pieces), pieces[0].shape[joined]))
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
        if same(math.prod(atom.size for atom in whole), total):
            return source, (*index[:dim], whole, *index[dim + 1 :])
    if start % length or total % length:
        return None
    digits = (*space.fixed(total // length, start // length), *within)
    return source, (*index[:dim], digits, *index[dim + 1 :])


def _through_scatter(node: Node, index: Index) -> tuple[Node, Index] | None:
    """Where functionalisation writes all of a tensor, the result is what is written."""
    source: Any = node.args[0]
    written: Any = node.args[1]
    shape, at = tensor_of(source).shape, node.args[2] if len(node.args) > 2 else 0
    dim = int(at) % len(index)  # type: ignore[arg-type, call-overload]
    if facts.name(node) == "select_scatter":
        return (written, (*index[:dim], *index[dim + 1 :])) if is_one(shape[dim]) else None
    whole = all(map(same, shape, tensor_of(written).shape))
    return (written, index) if whole and (len(node.args) < 6 or node.args[5] == 1) else None
