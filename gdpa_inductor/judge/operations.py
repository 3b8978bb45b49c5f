"""Rules for ATen operations: from elements of the operands to an element of a result.

`RULES[name](evaluator, event, number, index)` gives the elements `index` of result `number` of a
logged call, one for each lane. Pointwise operations have no rule here: torch tags them
(`pointwise`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .._compat import operators
from . import draws, jagged, pointwise
from .pointwise import Index, Rule, broadcast
from .record import Event, Ref

if TYPE_CHECKING:
    from .elements import Evaluator


def rule_of(event: Event) -> Rule | None:
    """How elements of a call are found; None where that is not known."""
    name = event.name
    # A sum of both graphs is a root, as any other reduction.
    if not event.is_known or (name == "sum" and event.side == "both"):
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
    """`dst.copy_(src)`, and `copy(dst, src)` without the write: the source, broadcast."""
    target, source = event.args[0], event.args[1]
    return ev.element(source, event.number, broadcast(index, target.sizes, source.sizes, ev.zero))


def _regrouped(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    """A copy with other sizes: elements in the same order."""
    place, source = ev.place(event, number), event.args[0]
    flat = _flattened(ev, index, place.sizes)
    return ev.element(source, event.number, _unflattened(ev, flat, source.sizes))


def _flattened(ev: Evaluator, index: Index, sizes: Sequence[int]) -> Tensor:
    flat = ev.zero
    for position, size in zip(index, sizes):
        flat = flat * size + position
    return flat


def _unflattened(ev: Evaluator, flat: Tensor, sizes: Sequence[int]) -> Index:
    positions: list[Tensor] = []
    for size in reversed(sizes):
        positions.append(ev.zero if size == 1 else flat % size)
        flat = flat // size
    return tuple(reversed(positions))


def _repeated(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    source = event.args[0]
    own = index[len(index) - len(source.sizes) :]
    return ev.element(source, event.number, tuple(i % n for i, n in zip(own, source.sizes)))


def _flipped(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    source = event.args[0]
    dims = [d % len(source.sizes) for d in event.args[1]]
    at = tuple(source.sizes[d] - 1 - i if d in dims else i for d, i in enumerate(index))
    return ev.element(source, event.number, at)


def _rolled(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    source, at = event.args[0], list(index)
    shifts, dims = event.arguments["shifts"], event.arguments["dims"]
    if not dims:  # all elements, in one row
        flat = (_flattened(ev, index, source.sizes) - shifts[0]) % math.prod(source.sizes)
        return ev.element(source, event.number, _unflattened(ev, flat, source.sizes))
    for shift, d in zip(shifts, dims):
        at[d] = (at[d] - shift) % source.sizes[d]
    return ev.element(source, event.number, tuple(at))


def _concatenated(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    """cat: the part that the position lies in."""
    parts = [p for p in event.args[0] if p.sizes != (0,)]
    dim, start = event.arguments["dim"] % len(index), 0
    dtype = ev.dtype(ev.place(event, number).dtype)
    values: list[tuple[Tensor, Tensor]] = []
    for part in parts:
        at, size = index[dim] - start, part.sizes[dim]
        with ev.within((at >= 0) & (at < size)):
            position = _replaced(index, dim, ev.clamped(at, size))
            values.append((at >= 0, ev.element(part, event.number, position).to(dtype)))
        start += size
    return _last(values)


def _stacked(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    dim = event.arguments["dim"] % len(index)
    at, values = _replaced(index, dim), list[tuple[Tensor, Tensor]]()
    for position, part in enumerate(event.args[0]):
        with ev.within(index[dim] == position):
            values.append((index[dim] == position, ev.element(part, event.number, at)))
    return _last(values)


def _last(values: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Of (condition, value) pairs the last value whose condition holds, or else the first."""
    result = values[0][1]
    for holds, value in values[1:]:
        result = torch.where(holds, value, result)
    return result


def _replaced(index: Index, dim: int, *positions: Tensor) -> Index:
    return (*index[:dim], *positions, *index[dim + 1 :])


def _padded(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    """constant_pad_nd: widths come in pairs, those of the last dimension first."""
    source, widths, fill = event.args[0], event.args[1], event.arguments["value"]
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
    gone = {d % len(source.sizes) for d in dims}
    drawn, terms = ev.lanes.hash("summed"), []
    for place in (drawn * 0, drawn * 0 - 1, drawn >> 7):
        rest, at = iter(index), []
        for d, size in enumerate(source.sizes):
            own = ev.zero if d in gone and not event.arguments["keepdim"] else next(rest)
            at.append(place % max(size, 1) if d in gone else own)
        terms.append(ev.element(source, event.number, tuple(at)))
    return terms[0] + terms[1] + terms[2]


# Functions of the index


def _filled(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    dtype = ev.place(event, number).dtype
    names = ("fill_value", "value", "s")
    (value,) = (event.arguments[name] for name in names if name in event.arguments)
    if isinstance(value, Ref):
        return ev.element(value, event.number, ())
    if isinstance(value, float) and value in ev.log.numbers:
        return ev.number(value).to(ev.dtype(dtype))
    return torch.full_like(ev.zero, value, dtype=dtype).to(ev.dtype(dtype))


def _constant(value: int) -> Rule:
    def rule(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
        return torch.full_like(ev.zero, value, dtype=ev.dtype(ev.place(event, number).dtype))

    return rule


def _uninitialised(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    return ev.root(event, ev.place(event, number), index).detach()


def _counted(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    """arange: in the accumulation type, then in its own, as the kernels have it."""
    start, step = event.arguments.get("start", 0), event.arguments.get("step", 1)
    place = ev.place(event, number)
    if place.dtype.is_floating_point or any(isinstance(x, float) for x in (start, step)):
        value = start + index[0].double() * step
        return value.to(place.dtype).to(ev.dtype(place.dtype))
    return (start + index[0] * step).to(place.dtype)


def _diagonal(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    return (index[0] == index[1]).to(ev.dtype(ev.place(event, number).dtype))


def _triangle(keeps: Callable[[Tensor, int], Tensor]) -> Rule:
    def rule(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
        x = ev.element(event.args[0], event.number, index)
        keep = keeps(index[-1] - index[-2], event.arguments["diagonal"])
        return torch.where(keep, x, torch.zeros_like(x))

    return rule


# Look-ups


def _wrap_index(ev: Evaluator, place: Tensor, size: int) -> Tensor:
    """A position that may count from the end, and is an error past either end."""
    ev.require((place >= -size) & (place < size))
    return ev.clamped(torch.where(place < 0, place + size, place), size)


def _selected(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    """index_select, whose places are of one dimension, and gather."""
    source, dim, places = event.args[:3]
    dim %= len(source.sizes)
    at = index if event.name == "gather" else (index[dim],) if places.sizes else ()
    place = ev.element(places, event.number, at).long()
    ev.require(place >= 0)
    place = _wrap_index(ev, place, source.sizes[dim])
    return ev.element(source, event.number, _replaced(index, dim, place))


def _embedded(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    source, places = event.args[:2]
    place = ev.element(places, event.number, index[:-1]).long()
    ev.require(place >= 0)
    at = (_wrap_index(ev, place, source.sizes[0]), index[-1])
    row = ev.element(source, event.number, at)
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
    place = ev.element(places, event.number, index).long()
    flat = _wrap_index(ev, place, math.prod(source.sizes))
    return ev.element(source, event.number, _unflattened(ev, flat, source.sizes))


def _indexed(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    """aten.index: indices are broadcast; their dims stand first unless they are neighbours."""
    source, indices = event.args[:2]
    if event.name == "look_up":  # gdpa's: a tensor, along one dim
        indices = [*[None] * event.args[2], indices]
    used = [d for d, x in enumerate(indices) if x is not None]
    shape = torch.broadcast_shapes(*(indices[d].sizes for d in used))
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
        at.append(_wrap_index(ev, ev.element(indices[d], event.number, own).long(), size))
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
        new = ev.element(written, event.number, _replaced(index, dim))
    with ev.within(~here):
        return torch.where(here, new, ev.element(source, event.number, index))


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ["clone", "_to_copy", "lift_fresh", "lift_fresh_copy", "alias_copy", "detach_copy",
         "contiguous", "to", "_conj_physical", "kept"], _same),
    "copy": _copied, "copy_": _copied,
    **dict.fromkeys(["_unsafe_view", "view", "reshape", "view_copy", "_reshape_copy",
                     "squeeze_copy", "unsqueeze_copy"], _regrouped),
    "repeat": _repeated, "flip": _flipped, "roll": _rolled, "cat": _concatenated,
    "stack": _stacked, "sum": _summed, "constant_pad_nd": _padded,
    "select_scatter": _select_written,
    **dict.fromkeys(["zeros", "zeros_like", "new_zeros", "zero_", "zero"], _constant(0)),
    **dict.fromkeys(["ones", "ones_like", "new_ones"], _constant(1)),
    **dict.fromkeys(["full", "full_like", "new_full", "fill", "fill_", "scalar_tensor"], _filled),
    **dict.fromkeys(["empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"],
                    _uninitialised),
    "arange": _counted, "eye": _diagonal,
    **dict.fromkeys(["tril", "tril_"], _triangle(lambda apart, k: apart <= k)),
    **dict.fromkeys(["triu", "triu_"], _triangle(lambda apart, k: apart >= k)),
    "index_select": _selected, "gather": _selected, "embedding": _embedded, "take": _take_flat,
    "index": _indexed, "look_up": _indexed,
    "bucketize": _bucketed, "searchsorted": _bucketed,
    "native_dropout": draws.dropped, "bernoulli_": draws.dropped, "inductor_seed": _uninitialised,
    **pointwise.RULES,
    **jagged.RULES,
}  # fmt: skip
