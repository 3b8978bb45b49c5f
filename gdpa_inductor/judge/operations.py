"""Rules for ATen operations: from elements of the operands to an element of a result.

`RULES[name](evaluator, event, number, index)` gives the elements `index` of result `number` of a
logged call, one for each lane. Pointwise operations have no rule here: torch tags them
(`pointwise`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._compat import operators
from . import jagged, pointwise
from .pointwise import Index, Rule, broadcast
from .record import Event, Ref

if TYPE_CHECKING:
    from .elements import Evaluator


def rule_of(event: Event) -> Rule | None:
    """How elements of a call are found; None where that is not known."""
    name = event.name
    if not event.is_known:
        return None
    if name == "sum" and event.side == "both":  # a root, as any other reduction
        return None
    if name in RULES:
        return RULES[name]
    if operators.is_random(event.op):
        return None
    if name.startswith("_foreach_"):
        return pointwise.foreach
    return pointwise.elementwise if pointwise.is_pointwise(event) else None


# Copies


def _same(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    return ev.element(event.args[0], event.number, index)


def _copied(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    """`dst.copy_(src)`: the source, broadcast."""
    target, source = event.args[0], event.args[1]
    return ev.element(source, event.number, broadcast(index, target.sizes, source.sizes, ev.zero))


def _regrouped(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    """A copy with other sizes: elements in the same order."""
    place, source = ev.place(event, number), event.args[0]
    flat = ev.zero
    for position, size in zip(index, place.sizes):
        flat = flat * size + position
    positions: list[Tensor] = []
    for size in reversed(source.sizes):
        positions.append(ev.zero if size == 1 else flat % size)
        flat = flat // size
    return ev.element(source, event.number, tuple(reversed(positions)))


def _repeated(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    source = event.args[0]
    own = index[len(index) - len(source.sizes) :]
    return ev.element(source, event.number, tuple(i % n for i, n in zip(own, source.sizes)))


def _flipped(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    source = event.args[0]
    dims = [d % len(source.sizes) for d in event.args[1]]
    at = tuple(source.sizes[d] - 1 - i if d in dims else i for d, i in enumerate(index))
    return ev.element(source, event.number, at)


def _dim(event: Event, position: int, rank: int) -> int:
    dim = event.args[position] if len(event.args) > position else event.kwargs.get("dim", 0)
    return int(dim) % rank


def _concatenated(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    """cat: the part that the position lies in."""
    parts = [p for p in event.args[0] if p.sizes != (0,)]
    dim, start, result = _dim(event, 1, len(index)), 0, None
    for part in parts:
        size = part.sizes[dim]
        at = index[dim] - start
        place = ev.clamped(at, size)
        with ev.within((at >= 0) & (at < size)):
            value = ev.element(part, event.number, (*index[:dim], place, *index[dim + 1 :]))
        value = value.to(ev.dtype(ev.place(event, number).dtype))
        result = value if result is None else torch.where(at >= 0, value, result)
        start += size
    assert result is not None
    return result


def _stacked(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    dim = _dim(event, 1, len(index))
    at, result = (*index[:dim], *index[dim + 1 :]), None
    for position, part in enumerate(event.args[0]):
        with ev.within(index[dim] == position):
            value = ev.element(part, event.number, at)
        result = value if result is None else torch.where(index[dim] == position, value, result)
    assert result is not None
    return result


def _padded(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    """constant_pad_nd: widths come in pairs, those of the last dimension first."""
    source, widths = event.args[0], event.args[1]
    fill = event.args[2] if len(event.args) > 2 else event.kwargs.get("value", 0)
    inside, at = ev.true, list(index)
    for pair in range(len(widths) // 2):
        d = len(index) - 1 - pair
        moved = index[d] - widths[2 * pair]
        inside = inside & (moved >= 0) & (moved < source.sizes[d])
        at[d] = ev.clamped(moved, source.sizes[d])
    with ev.within(inside):
        return torch.where(inside, ev.element(source, event.number, tuple(at)), fill)


def _summed(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    """sum over dims: three of its terms stand for it. Both graphs add up terms of the same places
    if they sum the same elements, and hardly ever if not.
    """
    source, dims = event.args[0], event.arguments.get("dim")
    if not dims or event.arguments["dtype"] is not None:
        raise ev.unknown(event)
    rank = len(source.sizes)
    gone = {d % rank for d in dims}
    rest = iter(index)
    full = [
        next(rest) if d not in gone or event.arguments["keepdim"] else ev.zero for d in range(rank)
    ]
    drawn, total = ev.lanes.hash("summed"), None
    for place in (drawn * 0, drawn * 0 - 1, drawn >> 7):
        at = [place % max(n, 1) if d in gone else full[d] for d, n in enumerate(source.sizes)]
        term = ev.element(source, event.number, tuple(at))
        total = term if total is None else total + term
    assert total is not None
    return total


# Functions of the index


def _filled(position: int) -> Rule:
    def rule(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
        place = ev.place(event, number)
        value: Any = event.kwargs.get("fill_value", event.kwargs.get("value"))
        if len(event.args) > position:
            value = event.args[position]
        if isinstance(value, Ref):
            return ev.element(value, event.number, ())
        if isinstance(value, float) and value in ev.log.numbers:
            return ev.number(value).to(ev.dtype(place.dtype))
        return torch.full_like(ev.zero, value, dtype=place.dtype).to(ev.dtype(place.dtype))

    return rule


def _constant(value: int) -> Rule:
    def rule(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
        return torch.full_like(ev.zero, value, dtype=ev.dtype(ev.place(event, number).dtype))

    return rule


def _uninitialised(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    return ev.root(event, ev.place(event, number), index).detach()


def _counted(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    """arange: in the accumulation type, then in its own, as the kernels have it."""
    arguments, place = event.args, ev.place(event, number)
    start = arguments[0] if len(arguments) > 1 else 0
    step = arguments[2] if len(arguments) > 2 else 1
    if place.dtype.is_floating_point or any(isinstance(x, float) for x in (start, step)):
        value = start + index[0].double() * step
        return value.to(place.dtype).to(ev.dtype(place.dtype))
    return (start + index[0] * step).to(place.dtype)


def _diagonal(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    return (index[0] == index[1]).to(ev.dtype(ev.place(event, number).dtype))


def _triangle(keeps: Callable[[Tensor, int], Tensor]) -> Rule:
    def rule(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
        shift = event.args[1] if len(event.args) > 1 else event.kwargs.get("diagonal", 0)
        x = ev.element(event.args[0], event.number, index)
        return torch.where(keeps(index[-1] - index[-2], shift), x, torch.zeros_like(x))

    return rule


# Look-ups


def _looked_up(
    ev: Evaluator, source: Ref, event: Event, at: list[Tensor], dim: int, place: Tensor
) -> Tensor:
    size = source.sizes[dim]
    ev.require((place >= -size) & (place < size))
    at[dim] = ev.clamped(torch.where(place < 0, place + size, place), size)
    return ev.element(source, event.number, tuple(at))


def _selected(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    source, dim, places = event.args[:3]
    dim %= len(source.sizes)
    place = ev.element(places, event.number, (index[dim],) if places.sizes else ()).long()
    return _looked_up(ev, source, event, list(index), dim, place)


def _gathered(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    source, dim, places = event.args[:3]
    place = ev.element(places, event.number, index).long()
    return _looked_up(ev, source, event, list(index), dim % len(source.sizes), place)


def _embedded(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    source, places = event.args[:2]
    place = ev.element(places, event.number, index[:-1]).long()
    ev.require(place >= 0)
    row = _looked_up(ev, source, event, [ev.zero, index[-1]], 0, place)
    if not row.requires_grad:
        return row
    row = torch.where(place == event.arguments["padding_idx"], row.detach(), row)
    if event.arguments["scale_grad_by_freq"]:
        # By how often a place is among these: some number.
        often = ev.lanes.hash(("often", places.storage, places.geometry), place) % 5 + 1
        row.register_hook(lambda grad: grad / often)
    return row


def _take_flat(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    source, places = event.args[:2]
    place, total = ev.element(places, event.number, index).long(), 1
    for size in source.sizes:
        total *= size
    ev.require((place >= -total) & (place < total))
    flat, positions = ev.clamped(torch.where(place < 0, place + total, place), total), []
    for size in reversed(source.sizes):
        positions.append(flat % size)
        flat = flat // size
    return ev.element(source, event.number, tuple(reversed(positions)))


def _subscripted(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    return _indexed(ev, event, index, list(event.args[1]))


def _looked_up_along(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    _, places, dim = event.args
    return _indexed(ev, event, index, [*[None] * dim, places])


def _indexed(ev: Evaluator, event: Event, index: Index, indices: list[Any]) -> Tensor:
    """aten.index: indices are broadcast; their dims stand first unless they are neighbours."""
    source = event.args[0]
    used = [d for d, x in enumerate(indices) if x is not None]
    shapes = [indices[d].sizes for d in used]
    shape = torch.broadcast_shapes(*shapes)
    if any(indices[d].dtype in (torch.bool, torch.uint8) for d in used):
        raise ev.unknown(event)
    neighbours = used == list(range(used[0], used[-1] + 1))
    first = used[0] if neighbours else 0
    looked = index[first : first + len(shape)]
    rest = [*index[:first], *index[first + len(shape) :]]
    at = []
    for d, size in enumerate(source.sizes):
        if d not in used:
            at.append(rest.pop(0))
            continue
        own = broadcast(tuple(looked), shape, indices[d].sizes, ev.zero)
        place = ev.element(indices[d], event.number, own).long()
        ev.require((place >= -size) & (place < size))
        at.append(ev.clamped(torch.where(place < 0, place + size, place), size))
    return ev.element(source, event.number, tuple(at))


_MOST_BOUNDARIES = 512  # each is an element to be found


def _bucketed(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    """bucketize, searchsorted: how many boundaries lie below; of a row, if these have rows."""
    arguments = event.arguments
    rows, sought = arguments.get("boundaries") or arguments["sorted_sequence"], arguments["self"]
    strange = not isinstance(sought, Ref) or arguments.get("sorter") is not None
    if strange or rows.sizes[-1] > _MOST_BOUNDARIES:
        raise ev.unknown(event)
    x = ev.element(sought, event.number, index)
    right = arguments["right"] or arguments.get("side") == "right"
    count = torch.zeros_like(ev.zero)
    for k in range(rows.sizes[-1]):
        at = (*index[: len(rows.sizes) - 1], torch.full_like(ev.zero, k))
        boundary = ev.element(rows, event.number, at)
        count += ~(boundary > x if right else boundary >= x)
    return count.to(ev.place(event, number).dtype)


def _select_written(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    source, written, dim, at = event.args[:4]
    dim %= len(source.sizes)
    here = index[dim] == at % source.sizes[dim]
    with ev.within(here):
        new = ev.element(written, event.number, (*index[:dim], *index[dim + 1 :]))
    with ev.within(~here):
        return torch.where(here, new, ev.element(source, event.number, index))


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ["clone", "_to_copy", "lift_fresh", "lift_fresh_copy", "alias_copy", "detach_copy", "copy",
         "contiguous", "to", "_conj_physical", "kept"], _same),
    "copy_": _copied,
    **dict.fromkeys(["_unsafe_view", "view", "reshape", "view_copy", "_reshape_copy",
                     "squeeze_copy", "unsqueeze_copy"], _regrouped),
    "repeat": _repeated, "flip": _flipped, "cat": _concatenated, "stack": _stacked,
    "sum": _summed, "constant_pad_nd": _padded, "select_scatter": _select_written,
    **dict.fromkeys(["zeros", "zeros_like", "new_zeros", "zero_", "zero"], _constant(0)),
    **dict.fromkeys(["ones", "ones_like", "new_ones"], _constant(1)),
    **dict.fromkeys(["full", "full_like", "fill", "fill_"], _filled(1)),
    "new_full": _filled(2), "scalar_tensor": _filled(0),
    **dict.fromkeys(["empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"],
                    _uninitialised),
    "arange": _counted, "eye": _diagonal,
    **dict.fromkeys(["tril", "tril_"], _triangle(lambda apart, k: apart <= k)),
    **dict.fromkeys(["triu", "triu_"], _triangle(lambda apart, k: apart >= k)),
    "index_select": _selected, "gather": _gathered, "embedding": _embedded, "take": _take_flat,
    "index": _subscripted, "look_up": _looked_up_along,
    "bucketize": _bucketed, "searchsorted": _bucketed,
    **pointwise.RULES,
    **jagged.RULES,
}  # fmt: skip
