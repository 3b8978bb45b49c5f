"""What each warp of a kernel did on the emulator, in the words of a schedule.

The emulator runs a kernel with a listener around its units. So a test can hold a schedule to the
kernel: the same products, copies and waits for products, of the same sizes, in the same order.
"""

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from tests.emulator.copies import Copies
from tests.emulator.tensor import Tensor
from tests.emulator.warpgroup import Products

from .engine import Commit, Done, Load, Multiply, Operation, Store

K = 16  # of one instruction of the tensor core
Token = tuple[str, float]


class Trace:
    """tokens: of each warp, as they come: what it is, how much, where."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[tuple[str, float, object]]] = defaultdict(list)

    def of(self, warp: int) -> list[Token]:
        """Those of a warp. Parts of a product, and of a copy to one place, are one token."""
        found: list[Token] = []
        for (what, place), group in itertools.groupby(self.tokens[warp], lambda x: (x[0], x[2])):
            found.append((what, sum(amount for _, amount, _ in group)))
            if what == "end":
                found.pop()
        return found


@contextmanager
def listening() -> Iterator[Trace]:
    trace = Trace()
    add = trace.tokens

    def multiply(self: Any, gang, d, a, b, accumulate, form, mask) -> None:
        for warp in map(int, gang.active(mask)):
            add[warp].append(("multiply", 2.0 * 64 * form[0] * K, "wgmma"))

    def commit(self: Any, gang, mask) -> None:
        for warp in map(int, gang.active(mask)):
            add[warp].append(("end", 0.0, None))

    def wait(self: Any, gang, most, mask) -> None:
        for warp in map(int, gang.active(mask)):
            add[warp].append(("wait", most, object()))

    def issue(self: Any, product, warp) -> None:
        place = (product.columns.start, not product.a)
        rows, _ = product.share
        add[warp].append(("multiply", 2.0 * rows * product.form.n * K, place))

    def arrive(self: Any, gang, address, ctas, mask) -> None:
        for lane in gang.lanes(mask):
            add[int(gang.lane_warp[lane])].append(("commit", 1, object()))

    def land(self: Any, gang, lane, cells, size, where, read) -> None:
        add[int(gang.lane_warp[lane])].append(("load", size, where))

    def leave(self: Any, gang, lane, cells, write) -> None:
        add[int(gang.lane_warp[lane])].append(("store", 16 * len(cells), "store"))

    listeners = [
        (Products, "multiply", multiply),
        (Products, "commit", commit),
        (Products, "wait", wait),
        (Tensor, "issue", issue),
        (Tensor, "commit", arrive),
        (Copies, "land", land),
        (Copies, "leave", leave),
        (Copies, "commit", commit),
    ]
    with ExitStack() as stack:
        for owner, name, listener in listeners:
            stack.enter_context(mock.patch.object(owner, name, both(listener, owner, name)))
        yield trace


def both(listener: Any, owner: type, name: str) -> Any:
    before = getattr(owner, name)

    @functools.wraps(before)
    def call(*arguments: Any) -> Any:
        listener(*arguments)
        return before(*arguments)

    return call


def said(operations: Iterable[Operation]) -> list[Token]:
    """The tokens of a role of a schedule."""
    found: list[Token] = []
    into = ""
    for x in operations:
        if isinstance(x, Multiply):
            if into and x.into == into:
                found[-1] = ("multiply", found[-1][1] + x.flops)
            else:
                found.append(("multiply", x.flops))
            into = x.into
        elif isinstance(x, Commit):
            found.append(("commit", 1))
            into = ""
        elif isinstance(x, Load):
            found.append(("load", x.bytes))
        elif isinstance(x, Store):
            found.append(("store", x.bytes))
        elif isinstance(x, Done):
            found.append(("wait", x.left))
    return found
