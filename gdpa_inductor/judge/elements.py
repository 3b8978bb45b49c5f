"""Evaluate elements of logged tensors backwards: one element in each lane.

A tensor is a place in a storage, and a storage has a history of writes. To find the element at an
address, the evaluator takes the last write that covers the address. It evaluates the call that
wrote there, from elements of the call's operands at that time. So views, aliases and in-place calls
need no rules of their own: they are only addresses and times.

The walk ends at roots. A root is an input of the graph, or the result of a call without a rule,
such as a matrix product or a sum. Its elements are drawn (`samples`), and the same address and lane
always gives the same number.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .aim import gap, turns_of
from .operations import rule_of
from .pointwise import Index, broadcast, loses
from .record import Event, Log, Ref, Write
from .samples import CASES, COUNT, Lanes, bytes_of
from .verdict import Incomplete

_OVERWRITE = ("fill_", "zero_", "copy_")
_SINGLE = (torch.float32, torch.float16, torch.bfloat16)


class Root(NamedTuple):
    """Elements that are drawn. name: of the input or the call; address: in its storage."""

    name: Any
    address: Tensor
    elements: Tensor


@dataclass(eq=False)
class Evaluator:
    """One evaluation.

    Inputs:
    log, lanes:     The logged operations, and the sampled cases.
    products:       Calls whose elements are known, with these elements.
    wide:           Compute floats in fp64. They are rounded only by casts, and where both graphs
                    have the same tensor.
    differentiate:  Keep the autograd graph to the roots.
    most:           A bound on the relative change of a number when the score moves by one rounding.
                    Beyond it the number means nothing, such as the sine of 1e20.
    gaps:           A list that gets the distances of numbers that are compared.
    turns:          A list that gets the distances from numbers where a function may turn: see
                    `aim.turns_of`.

    Results:
    touched:        For each product that was read: at which index, and in which lanes.
    drawn:          The same for calls that draw what dropouts keep.
    tied:           With `turns`: lanes in which a function is exactly at such a number.
    overwrites:     An older value of an element that was read was replaced.
    untracked:      With `differentiate`: the first call met that writes behind autograd's back to
                    a tensor whose gradient is asked for.
    missed:         Writes of floats to tensors that were read, which no lane reads. Integers do not
                    count, since each side may read other offsets.
    valid:          The lanes in which the original program raises no error, and numbers mean
                    something.
    owned:          The lanes whose jagged row belongs to the lane's sequence, or None if the
                    program removes no padding.
    """

    log: Log
    lanes: Lanes
    products: dict[Event, Tensor]
    _: KW_ONLY
    wide: bool = False
    differentiate: bool = False
    most: float | None = None
    gaps: list[Tensor] | None = None
    turns: list[Tensor] | None = None

    def __post_init__(self) -> None:
        self.zero = torch.zeros(COUNT, dtype=torch.int64)
        self.true = torch.ones(COUNT, dtype=torch.bool)
        self.valid = self.live = self.true
        self.tied = ~self.true
        self.owned: Tensor | None = None
        self.overwrites, self.untracked, self.missed = False, "", set[Event]()
        self.touched: dict[Event, tuple[Index, Tensor]] = {}
        self.drawn: dict[Event, tuple[Index, Tensor]] = {}
        self.roots: dict[tuple[Any, int], Root] = {}
        self._memo: dict[Any, Any] = {}
        self._alive: list[Any] = []  # indices, so that an `id` is that of one object only
        self._plain: Evaluator | None = None

    # What rules use

    def dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype that elements of a tensor of `dtype` are computed in."""
        return torch.float64 if self.wide and dtype.is_floating_point else dtype

    def require(self, holds: Tensor) -> None:
        """Leave out lanes in which eager would raise an error."""
        self.valid = self.valid & (holds | ~self.live)

    def require_everywhere(self, holds: Tensor) -> None:
        """The same for an error that any element would raise, even one that is not used later."""
        self.valid = self.valid & holds

    def note_owned(self, row_is_there: Tensor) -> None:
        """Record `owned`. The last call that removes padding counts, and it is read first."""
        if self.owned is None:
            self.owned = self.live & row_is_there

    def note_drawn(self, event: Event, index: Index) -> None:
        """Numbers that a call draws are read."""
        self._note(self.drawn, event, index, "random numbers")

    def note_gap(self, args: Sequence[Any]) -> None:
        """Two numbers are compared."""
        if self.gaps is not None and (distance := gap(args)) is not None:
            self.gaps.append(distance)

    def note_turns(self, event: Event, args: Sequence[Any]) -> None:
        """Note where a function of the score turns, and which lanes are there."""
        if self.turns is not None:
            for turn in turns_of(event.name, args):
                self.turns.append(turn)
                self.tied = self.tied | (turn.detach() == 0) & self.live

    @contextlib.contextmanager
    def within(self, lanes: Tensor) -> Iterator[None]:
        """A context in which reads count in these lanes only."""
        outer, self.live = self.live, self._one(self.live & lanes)
        yield
        self.live = outer

    @contextlib.contextmanager
    def noting(self) -> Iterator[set[Event]]:
        """A context that collects the writes that reads in it miss."""
        outer, self.missed = self.missed, set()
        try:
            yield self.missed
        finally:
            outer |= self.missed
            self.missed = outer

    def clamped(self, position: Tensor, size: int) -> Tensor:
        return position.clamp(0, max(size - 1, 0))

    def number(self, value: float) -> Tensor:
        """The element that `.item()` read."""
        place, time = self.log.numbers[value]
        return self.element(place, time, (self.zero,) * len(place.sizes)).detach().double()

    def stranger(self, dtype: torch.dtype) -> Tensor:
        """Elements that differ from all others."""
        return self.lanes.reals(self.lanes.hash("stranger"), dtype, self.lanes.lane < 0)

    def place(self, event: Event, number: int) -> Ref:
        """The place of result `number` of a call, or the place that it writes."""
        result = event.results[number] if number < len(event.results) else None
        return result if isinstance(result, Ref) else event.writes[number][0]

    def unknown(self, event: Event) -> Incomplete:
        return Incomplete(f"`{event.name}` is not known to the evaluator")

    def root(self, event: Event, place: Ref, index: Index) -> Tensor:
        """Drawn elements for the result of a call without a rule."""
        return self._root((event.number, place.storage), place, self._address(place, index))

    def element(self, ref: Ref, time: int, index: Index) -> Tensor:
        """The elements `index` of a tensor as it was at a time."""
        ref.require_known()
        history = [w for w in self.log.writes[ref.storage] if w[0].number < time]
        elements = self._cached(history, len(history) - 1, ref, index)
        return elements if ref.grad or not elements.requires_grad else elements.detach()

    # Histories of storages

    def _cached(self, history: list[Write], last: int, ref: Ref, index: Index) -> Tensor:
        """The elements as write `last` of the history leaves them."""
        key = (ref.storage, last, ref.geometry, id(self.live), tuple(map(id, index)))
        if key not in self._memo:
            self._alive.append(index)
            with self.noting() as missed:
                self._memo[key] = self._read(history, last, ref, index), missed
        elements, missed = self._memo[key]
        self.missed |= missed
        return elements

    def _read(self, history: list[Write], last: int, ref: Ref, index: Index) -> Tensor:
        if last < 0:
            return self._initial(ref, index)
        event, place, number = history[last]
        if place.dtype != ref.dtype or place.is_symbolic:
            # In another dtype than it is read in, or with an unknown size. The call that makes a
            # storage writes all of it, at any size.
            if event.side != "both" or last > 0:
                place.require_known()
            if event.side != "both":
                raise Incomplete("a tensor is read in another dtype than it was written in")
            return self._root((event.number, ref.storage), ref, self._address(ref, index))
        covered: Tensor | None = None
        within = index
        if place.geometry != ref.geometry:
            covered, within = self._located(place, self._address(ref, index))
        # Autograd does not see a write to a tensor that is read with gradients.
        silent = self.differentiate and ref.grad and not (event.grad and place.grad)
        if last > 0 and silent and self._cached(history, last - 1, ref, index).requires_grad:
            self.untracked = self.untracked or event.name
        self.overwrites |= last > 0 and event.name in _OVERWRITE
        if covered is None or bool(covered.all()):
            return self._written(event, place, number, within)
        with self.within(~covered):
            older = self._cached(history, last - 1, ref, index)
        if not bool(covered.any()):
            if ref.dtype.is_floating_point and overlap(place, ref):
                self.missed.add(event)
            return older
        with self.within(covered):
            return torch.where(covered, self._written(event, place, number, within), older)

    def _initial(self, ref: Ref, index: Index) -> Tensor:
        """Elements that nothing in the graph has written."""
        if ref.storage in self.log.constants:
            value = self.log.constants[ref.storage]
            return torch.full_like(self.zero, value, dtype=ref.dtype).to(self.dtype(ref.dtype))
        address = self._address(ref, index)
        if ref.storage in self.log.literal_tensors:
            literal = self.log.literal_tensors[ref.storage].flatten()
            return literal[address].to(self.dtype(ref.dtype))
        return self._root(("input", ref.storage), ref, address)

    def _written(self, event: Event, place: Ref, number: int | None, index: Index) -> Tensor:
        """The elements that a call wrote at `index` of a place."""
        if event in self.products:
            self._touch(event, index)
            return self._with_addend(event, place, index)
        dtype = self.dtype(place.dtype)
        if event.constant is not None:
            return torch.full_like(self.zero, event.constant, dtype=dtype)
        rule = rule_of(event)
        if rule is None and event.side != "both":
            raise self.unknown(event)
        if rule is None:
            return self.root(event, place, index)
        decided = self._decided(event, place, number, index)
        if decided is not None:
            return decided
        if number is None:  # of the writes of the call
            number = next(i for i, (target, _) in enumerate(event.writes) if target == place)
        with torch.set_grad_enabled(self.differentiate and event.grad):
            elements = rule(self, event, number, index).to(dtype)
        return self._stored(event, place, elements) if dtype.is_floating_point else elements

    def _stored(self, event: Event, place: Ref, elements: Tensor) -> Tensor:
        """Real numbers as they are in a place that a call wrote."""
        if self.most is not None:
            self.require(~_is_moved(elements.detach(), self.most))
        if not self.wide:
            return elements
        if event.side == "both" or narrows(event, place.dtype):
            elements = _rounded(elements, place.dtype)
        return _overflown(elements) if place.dtype in _SINGLE else elements

    def _decided(self, event: Event, place: Ref, number: int | None, index: Index) -> Tensor | None:
        """Integers and bools that depend on no score: as the model computes them, with
        roundings.
        """
        if not self.wide or place.dtype.is_floating_point or place.dtype.is_complex:
            return None
        plain = self._plain = self._plain or Evaluator(self.log, self.lanes, {})
        try:
            plain.live = self.live
            elements = plain._written(event, place, number, index)
        except Incomplete:  # where it is no score, the wide evaluation raises it again
            return None
        finally:
            plain.live = plain.true
        self.valid = self.valid & plain.valid
        return elements

    def _with_addend(self, event: Event, place: Ref, index: Index) -> Tensor:
        """The element of a product, with what `addmm` and `baddbmm` add to it."""
        product = self.products[event].to(self.dtype(place.dtype))
        if event.name not in ("addmm", "baddbmm"):
            return product
        alpha, beta = (event.kwargs.get(name, 1) for name in ("alpha", "beta"))
        added = event.args[0]
        if beta == 0 and not (self.differentiate and event.grad and added.grad):
            return product * alpha  # then the addend is not even read
        at = broadcast(index, place.sizes, added.sizes, self.zero)
        with torch.set_grad_enabled(self.differentiate and event.grad):
            result, other = product * alpha, self.element(added, event.number, at)
            # Nor here, but it has a gradient: of zeros.
            result = result + other * beta if beta else torch.where(self.true, result, other)
        return result.to(self.dtype(place.dtype))

    def _touch(self, event: Event, index: Index) -> None:
        known, _ = self.touched.get(event, (index, self.live))
        if len(known) != len(index):
            raise Incomplete("both results of a fused call are read")
        self._note(self.touched, event, index, "scores")

    def _note(self, read: dict[Event, Any], event: Event, index: Index, what: str) -> None:
        known, lanes = read.get(event, (index, self.live))
        if known is not index and any(
            bool(((a != b) & lanes & self.live).any()) for a, b in zip(known, index)
        ):
            raise Incomplete(f"a weight depends on {what} of several positions")
        merged = tuple(torch.where(lanes, a, b) for a, b in zip(known, index))
        read[event] = (index if known is index else merged, lanes | self.live)

    def _root(self, key: tuple[Any, ...], ref: Ref, address: Tensor) -> Tensor:
        full = (key, id(address))
        if full not in self.roots:
            drawn = self.lanes.draw(key, address, ref.dtype).to(self.dtype(ref.dtype))
            if self.differentiate and drawn.is_floating_point():
                drawn = drawn.detach().requires_grad_()
            self.roots[full] = Root(key, address, drawn)
        return self.roots[full].elements

    # Addresses

    def _address(self, ref: Ref, index: Index) -> Tensor:
        key = ("address", ref.geometry, tuple(map(id, index)))
        if key not in self._memo:
            address = self.zero + ref.offset
            for position, size, stride in zip(index, ref.sizes, ref.strides):
                if size != 1 and stride:
                    address = address + position * stride
            # One object for equal addresses, whichever view they are reached through.
            self._memo[key] = self._one(address)
        return self._memo[key]

    def _one(self, tensor: Tensor) -> Tensor:
        return self._memo.setdefault(("lanes", bytes_of(tensor)), tensor)

    def _located(self, place: Ref, address: Tensor) -> tuple[Tensor, Index]:
        key = ("located", place.geometry, id(address))
        if key not in self._memo:
            self._alive.append(address)
            covered, index = located(place, address)
            self._memo[key] = covered, tuple(map(self._one, index))
        return self._memo[key]


def located(place: Ref, address: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Which addresses lie in a place, and at which index."""
    rest, index = address - place.offset, [torch.zeros_like(address)] * len(place.sizes)
    covered = rest >= 0
    for d in sorted(range(len(index)), key=lambda d: -place.strides[d]):
        if place.sizes[d] != 1 and place.strides[d]:
            index[d] = (rest // place.strides[d]).clamp(0, place.sizes[d] - 1)
            rest = rest - index[d] * place.strides[d]
    return covered & (rest == 0), index


_MOST_ADDRESSES = 4096


def overlap(place: Ref, other: Ref) -> bool:
    """Whether two places have elements in common; of a large place some are looked at."""
    count = math.prod(place.sizes)
    flat = torch.arange(0, count, -(-count // _MOST_ADDRESSES) or 1)
    address = torch.full_like(flat, place.offset)
    for size, stride in zip(reversed(place.sizes), reversed(place.strides)):
        address += flat % size * stride
        flat = flat // size
    return bool(located(other, address)[0].any())


def _is_moved(x: Tensor, most: float) -> Tensor:
    """Lanes whose case has another result in each variant."""
    variants = x.view(-1, CASES)
    low, high = variants.aminmax(dim=0)
    moved = high - low > most * torch.maximum(low.abs(), high.abs())
    return moved.repeat(len(variants))


CASTS = {"_to_copy": 0, "copy": 1, "copy_": 1}  # and the argument that is cast


def narrows(event: Event, dtype: torch.dtype) -> bool:
    """Whether a call casts numbers to a `dtype` that rounds them, and the model asks for it."""
    source = event.args[CASTS[event.name]] if event.name in CASTS and not event.implied else None
    return isinstance(source, Ref) and loses(source.dtype, dtype)


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded to `dtype`; gradients pass as they are, and -0 stays -0."""
    lost = x.detach().to(dtype).to(x.dtype) - x.detach()
    lost = lost.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf)
    return torch.where(x.signbit(), -(-x - lost), x + lost)


def _overflown(x: Tensor) -> Tensor:
    """Numbers past the range of fp32 become infinite, as fp32 and 16-bit types do.

    Gradients pass as they do in fp32. With x · inf the gradients of all lanes would be NaN.
    """
    large = x.abs() > torch.finfo(torch.float32).max
    return torch.where(large, x + x.detach() * torch.inf, x) if bool(large.any()) else x
