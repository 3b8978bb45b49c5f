"""Look-ups in tables: which element of which tensor a call reads, and the bounds of a place.

`table[:, index]` at (h, n, m) is the element of `table` at (h, place), where `place` is the element
of `index` at (n, m). A bias that is looked up so needs no tensor of the scores' size: the program
computes the place, and a kernel reads the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ...program.expr import Expr
from ..host import facts
from ..host.sizes import Size, same
from .frame import Digits, Index, broadcast
from .views import tensor_of

End = Size | None
Bounds = tuple[End, End]


@dataclass(frozen=True)
class TableRead:
    """A call on a table.

    dims:     The digits of the table's dims, None where an index says which element is read.
    indices:  For each such dim, the tensor of integers and the element of it.
    wraps:    A negative place counts from the end. Else there is none.
    """

    table: Node
    dims: tuple[Digits | None, ...]
    indices: Mapping[int, tuple[Node, Index]]
    wraps: bool = True


def lookup_of(node: Node, at: Index) -> TableRead | None:
    """The look-up that an ATen call makes for element `at` of its result, or None."""
    look = _READERS[facts.name(node)](node, at)
    if look is None or not tensor_of(look.table).is_floating_point():
        return None
    return look


def _index(node: Node, at: Index) -> TableRead | None:
    table: Any = node.args[0]
    listed: Any = node.args[1]
    known = {dim: x for dim, x in enumerate(listed) if x is not None}
    tensors = {dim: tensor_of(x) for dim, x in known.items()}
    if any(x.dtype in (torch.bool, torch.uint8) for x in tensors.values()):
        return None
    rank, places = max(x.dim() for x in tensors.values()), sorted(known)
    adjacent = places[-1] - places[0] == len(places) - 1
    first = places[0] if adjacent else 0
    shape, own = tensor_of(node).shape[first : first + rank], at[first : first + rank]
    rest = iter((*at[:first], *at[first + rank :]))
    dims = tuple(None if dim in known else next(rest) for dim in range(tensor_of(table).dim()))
    indices = {
        dim: (index, broadcast(own, shape, tensors[dim].shape)) for dim, index in known.items()
    }
    return TableRead(table, dims, indices)


def _index_select(node: Node, at: Index) -> TableRead | None:
    table: Any = node.args[0]
    where: Any = node.args[1]
    index: Any = node.args[2]
    dim = int(where) % max(tensor_of(table).dim(), 1)
    if tensor_of(index).dim() != 1:
        return None
    return TableRead(table, (*at[:dim], None, *at[dim + 1 :]), {dim: (index, (at[dim],))}, False)


def _embedding(node: Node, at: Index) -> TableRead | None:
    table: Any = node.args[0]
    index: Any = node.args[1]
    padding: Any = facts.argument(node, 2, "padding_idx")
    others = (facts.argument(node, 3, "scale_grad_by_freq"), facts.argument(node, 4, "sparse"))
    plain = isinstance(padding, int) and padding < 0 if padding is not None else True
    if (not plain or any(others)) and facts.may_want_gradients(table):
        return None
    return TableRead(table, (None, at[-1]), {0: (index, at[:-1])}, False)


def _gather(node: Node, at: Index) -> TableRead | None:
    table: Any = node.args[0]
    where: Any = node.args[1]
    index: Any = node.args[2]
    shape, own = tensor_of(table).shape, tensor_of(index).shape
    dim = int(where) % max(len(shape), 1)
    alike = all(same(x, y) for d, (x, y) in enumerate(zip(shape, own, strict=True)) if d != dim)
    if not alike or facts.argument(node, 3, "sparse_grad"):
        return None
    return TableRead(table, (*at[:dim], None, *at[dim + 1 :]), {dim: (index, at)}, False)


_READERS: Mapping[str, Callable[[Node, Index], TableRead | None]] = {
    "index": _index,
    "index_select": _index_select,
    "embedding": _embedding,
    "gather": _gather,
}
LOOKUPS = frozenset(_READERS)


def bounds(place: Expr, leaf: Callable[[Expr], Bounds]) -> Bounds:
    """The least and the greatest value of an integer term; None where an end is not known.

    Sizes may be symbolic. leaf: The bounds of a leaf that is not a literal.
    """
    if place.is_const:
        return place.value, place.value
    if not place.args:
        return leaf(place)
    rule = _BOUNDS.get(place.op)
    if rule is None:
        return None, None
    return rule(*(bounds(x, leaf) for x in place.args if x.kind == "i"))


def _plus(x: End, y: End) -> End:
    return None if x is None or y is None else x + y


def _minus(x: End, y: End) -> End:
    return None if x is None or y is None else x - y


def _both(choose: Callable[[int, int], int], x: End, y: End) -> End:
    return choose(x, y) if isinstance(x, int) and isinstance(y, int) else None


def _either(choose: Callable[[int, int], int], x: End, y: End) -> End:
    """One is as good as both: the larger one is at least either."""
    if x is None or y is None:
        return y if x is None else x
    return _both(choose, x, y)


def _quotient(x: Bounds, y: Bounds) -> Bounds:
    by = y[0] if y[0] == y[1] and isinstance(y[0], int) and y[0] > 0 else None
    if by is None:
        return None, None
    low, high = (end // by if isinstance(end, int) else None for end in x)
    return low, high


def _rest(x: Bounds, y: Bounds) -> Bounds:
    known = isinstance(y[1], int) and isinstance(y[0], int) and y[0] > 0
    return (0, _minus(y[1], 1)) if known else (None, None)


_BOUNDS: Mapping[str, Callable[..., Bounds]] = {
    "add": lambda x, y: (_plus(x[0], y[0]), _plus(x[1], y[1])),
    "sub": lambda x, y: (_minus(x[0], y[1]), _minus(x[1], y[0])),
    "neg": lambda x: (_minus(0, x[1]), _minus(0, x[0])),
    "maximum": lambda x, y: (_either(max, x[0], y[0]), _both(max, x[1], y[1])),
    "minimum": lambda x, y: (_both(min, x[0], y[0]), _either(min, x[1], y[1])),
    "where": lambda x, y: (_both(min, x[0], y[0]), _both(max, x[1], y[1])),
    "floordiv": _quotient,
    "mod": _rest,
}
