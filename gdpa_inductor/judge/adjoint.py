"""Autograd functions of the user whose backward is known to be the derivative of its forward.

In general the author of such a function decides what it does to gradients. The judge knows one pair
of operations: padding jagged values, and removing the padding by the same offsets. Each is the
derivative of the other, if the gradient is padded with zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter

from .jagged import padding_of
from .record import Event, Log, Ref


def is_known(
    log: Log, ran: Sequence[Event], bodies: Sequence[GraphModule], inputs: Sequence[Any]
) -> bool:
    """Whether the two bodies of an autograd function are such a pair, by a run of both on fakes.

    ran: the operations of its call. Bodies that do more than pad or unpad are not run again.
    """
    if [padding_of(event) is None for event in ran if event.writes] != [False]:
        return False
    forward, backward = bodies
    with torch.no_grad():
        (results, *rest), there = _logged(log, lambda: Interpreter(forward).run(*inputs))
        flat = results if isinstance(results, (tuple, list)) else [results]
        coming = [torch.empty_like(x) if isinstance(x, Tensor) else x for x in flat]
        saved = rest[0] if rest else ()
        returned, back = _logged(log, lambda: Interpreter(backward).run(*coming, *saved))
    if len(there) != 1 or len(back) != 1:
        return False
    if [isinstance(x, Tensor) for x in flat] != [True, *[False] * (len(flat) - 1)]:
        return False
    passed = returned if isinstance(returned, (tuple, list)) else [returned]
    ends = [(log.ref(inputs[i]), log.ref(x)) for i, x in enumerate(passed) if isinstance(x, Tensor)]
    return ends == [(there[0].args[0], back[0].results[0])] and _transposed(
        there[0], back[0], log.ref(coming[0])
    )


def _logged(log: Log, call: Callable[[], Any]) -> tuple[Any, list[Event]]:
    """What a call returns, and the operations that it has run, views left out."""
    first = log.now
    result = call()
    return result, [event for event in log.events[first:] if event.writes]


def _transposed(forward: Event, backward: Event, coming: Ref) -> bool:
    there, back = padding_of(forward), padding_of(backward)
    if there is None or back is None or there.pads == back.pads:
        return False
    return back.source == coming and back.offsets == there.offsets and back.fill == 0
