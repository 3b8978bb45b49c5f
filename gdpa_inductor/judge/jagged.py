"""Rules for elements of padded jagged values, of jagged rows, and of offsets from lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .record import Event, Ref

if TYPE_CHECKING:
    from .elements import Evaluator
    from .pointwise import Index, Rule

_PADS = frozenset([
    "jagged_to_padded_dense", "jagged_to_padded_dense_forward", "_jagged_to_padded_dense_forward",
    "jagged_2d_to_dense", "jagged_1d_to_dense",
])  # fmt: skip
_UNPADS = frozenset([
    "dense_to_jagged", "dense_to_jagged_forward", "_padded_dense_to_jagged_forward",
])  # fmt: skip


@dataclass(frozen=True)
class PaddingCall:
    """A call that pads jagged values, [L, ...] to [B, N, ...], or removes the padding."""

    pads: bool
    source: Ref
    offsets: Ref
    fill: float


def padding_of(event: Event) -> PaddingCall | None:
    """The reading of a call that pads or unpads. None for other calls, and for nested offsets."""
    pads = event.name in _PADS
    if not event.is_known or not (pads or event.name in _UNPADS):
        return None
    offsets = event.arguments.get("offsets", event.arguments.get("x_offsets"))
    if isinstance(offsets, (list, tuple)) and len(offsets) == 1:
        (offsets,) = offsets
    if not isinstance(offsets, Ref):
        return None
    fill = event.arguments.get("padding_value", 0.0) if pads else 0.0
    return PaddingCall(pads, event.args[0], offsets, fill)


def _known(ev: Evaluator, event: Event) -> PaddingCall:
    call = padding_of(event)
    if call is None:
        raise ev.unknown(event)
    return call


def span(ev: Evaluator, offsets: Ref, time: int, sequence: Tensor) -> tuple[Tensor, Tensor]:
    """(first row of a sequence, its length)."""
    with ev.lanes.offsets_named():
        start, end = (ev.element(offsets, time, (sequence + step,)).long() for step in (0, 1))
    return start, end - start


def _padded(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    call = _known(ev, event)
    start, length = span(ev, call.offsets, event.number, index[0])
    inside = (index[1] >= 0) & (index[1] < length)
    with ev.within(inside):
        value = ev.element(call.source, event.number, (start + index[1], *index[2:]))
    return torch.where(inside, value, value.new_tensor(call.fill))


def _unpadded(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    """Rows without their padding. The lanes say which sequence a row belongs to."""
    call = _known(ev, event)
    longest, sequence = call.source.sizes[1], ev.lanes.sequence
    if sequence is None:
        at = (ev.zero, index[0] % longest, *index[1:])
        return ev.element(call.source, event.number, at)
    start, length = span(ev, call.offsets, event.number, sequence)
    row = index[0] - start
    ev.note_owned((row >= 0) & (row < length))
    at = (sequence, ev.clamped(row, longest), *index[1:])
    rows = torch.where(row < longest, ev.element(call.source, event.number, at), 0)
    # By these offsets the row may belong to another sequence. Then its elements are unknown.
    return torch.where((row >= 0) & (row < length), rows, ev.stranger(rows.dtype))


def _running_sum(first: int) -> Callable[[Evaluator, Event, int, Index], Tensor]:
    """Sums of lengths, or of a zero and lengths: where the sequence of each lane begins and ends.

    first: how many zeros the result has in front. Three sums are known, which differ by what is
    summed: up to the length before the lane's sequence, to the next length and to the one after.
    The offsets of the sequence are the first two, or the last two where a zero is summed too.
    """

    def rule(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
        summed, sequence = event.args[0], ev.lanes.sequence
        place = ev.place(event, number)
        if sequence is None or len(summed.sizes) != 1 or summed.dtype.is_floating_point:
            return ev.root(event, place, index)
        with ev.lanes.offsets_named(False):
            last, own, next_one = (
                ev.element(summed, event.number, (ev.clamped(at, summed.sizes[0]),)).long()
                for at in (sequence - 1, sequence, sequence + 1)
            )
        steps = index[0] + 1 - first - sequence  # sums past the first of the three
        for at, length in ((1, own), (2, next_one)):
            ev.require((steps < at) | (length >= 0) & (length <= ev.lanes.total))
        # Where lengths leave room for it, all rows of the sequence exist.
        room = (ev.lanes.total - own - next_one).clamp(min=1)
        start = torch.where(sequence > 0, ev.lanes.hash("start", last) % room, 0)
        within = start + torch.where(steps > 0, own, 0) + torch.where(steps > 1, next_one, 0)
        known = (steps >= 0) & (steps <= 2)
        if not bool(known.all()):
            within = torch.where(known, within, ev.root(event, place, index).long())
        return within.to(place.dtype)

    return rule


RULES: dict[str, Rule] = {
    **dict.fromkeys(_PADS, _padded),
    **dict.fromkeys(_UNPADS, _unpadded),
    "cumsum": _running_sum(0),
    "asynchronous_complete_cumsum": _running_sum(1),
}
