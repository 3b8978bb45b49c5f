"""Dropouts of the one graph, and the seeds that the other one draws in their place.

The k-th dropout that the rewritten graph lacks stands for the k-th seed that it adds, and between
common calls that draw there are as many of both. So all of these draw what they drew before. A
sample has a number of 16 bits for each such pair, which decides on both sides what is kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .record import Event, Log, Ref
from .samples import COUNT, Lanes
from .verdict import Fault, Incomplete

if TYPE_CHECKING:
    from .elements import Evaluator
    from .pointwise import Index

_RANGE = 1 << 16
_SEED = "inductor_seed"
_DROPOUTS = ("native_dropout", "bernoulli_")  # the latter is a part of one


def note(log: Log, events: Sequence[Event], node: str) -> None:
    """Note what calls of one graph alone draw. Raises Fault where it is no dropout and no seed."""
    for event in (e for e in events if e.draws):
        is_lost = event.side == "before"
        known = _rate(event) is not None if is_lost else event.name == _SEED
        if not known:
            word = "lost" if is_lost else "added"
            raise Fault(f"the random numbers of `{event.name}` are {word}", node)
        (log.lost if is_lost else log.seeds).append(event)


def check_order(log: Log, node: str = "") -> None:
    """Raise Fault unless what is drawn next is drawn by both graphs in the same state."""
    places = [[e.writes[0][0].device for e in events] for events in (log.lost, log.seeds)]
    if places[0] != places[1]:
        raise Fault("other random numbers are drawn before", node)


def lost_for(log: Log, seed: Ref) -> Event:
    """The dropout that a seed stands for."""
    for event, dropout in zip(log.seeds, log.lost, strict=False):
        if [write[0].number for write in log.writes[seed.storage]] == [event.number]:
            return dropout
    raise Incomplete("the seed of a dropout is none that the graph draws")


def bits(lanes: Lanes, dropout: Event) -> Tensor:
    """A number for each case. One too near to the rate is none: 16 bits round it."""
    rate = _rate(dropout)
    assert rate is not None
    at = rate * _RANGE
    known = [0, _RANGE - 1, math.floor(at) - 1, math.floor(at) - 8, math.ceil(at) + 1]
    drawn = lanes.hash(("drawn", dropout.number))
    chosen = torch.tensor(known)[(drawn >> 8) % len(known)].clamp(0, _RANGE - 1)
    number = torch.where((drawn >> 3) % 2 == 0, chosen, (drawn >> 16) % _RANGE)
    return torch.where((number - at).abs() < 1, 0, number)


def dropped(ev: Evaluator, event: Event, number: int, index: Index) -> Tensor:
    """The rule of calls that drop. Those of both graphs are roots."""
    place, rate = ev.place(event, number), _rate(event)
    if event not in ev.log.lost or rate is None:
        return ev.root(event, place, index)
    ev.note_drawn(event, index)
    keeps = bits(ev.lanes, event) >= rate * _RANGE
    if event.name == "bernoulli_" or number:
        return keeps.to(ev.dtype(place.dtype))
    x = ev.element(event.args[0], event.number, index)
    return x * keeps * (1.0 / (1.0 - rate))


def _rate(event: Event) -> float | None:
    """The rate of a dropout, or of a call that it is made of."""
    arguments = event.arguments
    rate = arguments.get("p") if event.name in _DROPOUTS else None
    if not isinstance(rate, float) or arguments.get("generator") is not None:
        return None
    rate = 1.0 - rate if event.name == "bernoulli_" else rate
    return rate if 0.0 < rate < 1.0 and arguments.get("train", True) else None


def decide(log: Log, dropouts: Sequence[Event], numbers: int) -> None:
    """A fused call stands for dropouts. Raises Fault unless each draws so many numbers."""
    for event in dropouts:
        if math.prod(event.writes[0][0].sizes) != numbers:
            raise Fault(f"`{event.name}` does not draw a number for each score")
        if event in log.decided:
            raise Incomplete(f"several fused calls stand for one `{event.name}`")
    log.decided.update(dropouts)


def check_apart(
    known: dict[Event, tuple[Index, Tensor]],
    other: dict[Event, tuple[Index, Tensor]],
    moved: Tensor,
) -> None:
    """Raise Fault where another score reads the same number. moved: lanes with another score."""
    for event, (index, live) in known.items():
        if event not in other:
            continue
        there, also = other[event]
        same = torch.ones(COUNT, dtype=torch.bool)
        for a, b in zip(index, there, strict=True):
            same &= a == b
        if bool((same & moved & live & also).any()):
            raise Fault(f"`{event.name}` draws one number for several scores")
