"""A program while it is being written: lines, operands, and the stages where hostilities act.

A hostility plans first (it settles a size, a dtype, a spelling, or hangs a callback on a stage);
then the region is written from top to bottom, and the callbacks write their lines in between.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

from tests.operands import size_of

from .program import Operand

# Where a callback may write: "start" has the arguments only; "before" the products' operands; from
# "scores" on the first product is done; from "weights" the activation; at "late" the masks; from
# "after" the second product; "end" stands right before the return.
STAGES = ("start", "before", "scores", "middle", "weights", "late", "after", "end")


class Clash(Exception):
    """Two hostilities want different things of one program."""


class Draft:
    """What is settled about a program so far, and the lines that it has."""

    def __init__(self, random: Random, scale: str = "small", turn: int = 0) -> None:
        self.random = random
        self.turn = turn  # how many programs of its kind came before
        self.scale = scale  # "small", or "kernels": sizes of kernels
        self.settled: dict[str, Any] = {}
        self.operands: dict[str, Operand] = {}
        self.lines: list[str] = []
        self.depth = 1
        self.outputs: list[str] = []
        self.label = "exact"
        self.hostile = False
        self.regions = 0
        self.sizes: dict[str, int] = {}
        self.further: list[dict[str, int]] = []  # the sizes of later calls
        self.lengths: list[tuple[int, ...]] = []
        self.sides = {"q", "k"}  # that can run on jagged values alone
        self.dims: tuple[str, ...] = ()  # of the scores, as they are now
        self.callbacks: dict[str, list[Callable[[Draft], None]]] = defaultdict(list)
        self.counter = 0
        self.locals: set[str] = set()  # that no operand can be called after
        # The names that hold the query, key, value, scores, weights and output now.
        self.q, self.k, self.v, self.s, self.w, self.o = "q", "k", "v", "s", "w", "o"
        # Values that autograd saved: a write to one raises in eager's backward.
        self.saved: set[str] = set()
        self.notes: list[str] = []

    # Settling.

    def settle(self, **facts: Any) -> None:
        """Decide facts of the program; a Clash where another hostility decided otherwise."""
        for name, fact in facts.items():
            if self.settled.setdefault(name, fact) != fact:
                raise Clash(name)

    def fact(self, name: str, default: Any = None) -> Any:
        """What was settled, or the default, which is then settled."""
        return self.settled.setdefault(name, default)

    def snapshot(self) -> Callable[[], None]:
        """What brings the draft back to what it is now."""
        stored = copy.deepcopy({k: v for k, v in vars(self).items() if k != "random"})

        def restore() -> None:
            vars(self).update(stored)

        return restore

    def at(self, stage: str, callback: Callable[["Draft"], None]) -> None:
        assert stage in STAGES
        self.callbacks[stage].append(callback)

    def stage(self, name: str) -> None:
        for callback in self.callbacks[name]:
            callback(self)

    def danger(self, is_dangerous: bool = True) -> None:
        """Label the program: a rewrite is not promised."""
        if is_dangerous and self.label == "exact":
            self.label = "hazard"

    def note(self, text: str) -> None:
        """Something that was drawn, for statistics."""
        self.notes.append(text)

    # Writing.

    def emit(self, *lines: str) -> None:
        self.lines += ["    " * self.depth + line for line in lines]

    def emit_one(self, *choices: str, **names: str) -> None:
        """One of these lines; `names` stand in its braces."""
        line = self.pick(*choices)
        self.emit(line.format(**names) if names else line)

    def subject(self, stage: str) -> str:
        """The scores, or the weights after the activation."""
        return self.s if stage in ("scores", "middle") else self.w

    def assign(self, stage: str, text: str) -> None:
        """Give the subject of a stage another value."""
        before = stage in ("scores", "middle")
        self.emit(f"{'s' if before else 'w'} = {text}")
        if before:
            self.s = "s"
        else:
            self.w = "w"
            self.saved.discard("w")

    @contextmanager
    def inside(self, header: str) -> Iterator[None]:
        """A block: `with torch.no_grad():` and what is written in it."""
        self.emit(header)
        self.depth += 1
        yield
        self.depth -= 1

    def let(self, stem: str, text: str) -> str:
        """`stem7 = text`; the new name."""
        name = self.fresh(stem)
        self.emit(f"{name} = {text}")
        return name

    def fresh(self, stem: str) -> str:
        self.counter += 1
        return f"{stem}{self.counter}"

    def operand(self, name: str, dims: str | Sequence[str] = "", **facts: Any) -> str:
        """Add an input; floats ask for a gradient as the program's training says."""
        if name in self.operands or name in self.locals:
            name = self.fresh(name)
        grad = facts.pop("grad", None)
        kind = facts.get("kind", "float")
        if grad is None:
            grad = kind == "float" and self.trains(name)
        dims = tuple(dims.split() if isinstance(dims, str) else dims)
        self.operands[name] = Operand(name, dims, grad=grad and kind == "float", **facts)
        return name

    def size(self, dim: str) -> int:
        return size_of(dim, self.sizes)

    def trains(self, name: str) -> bool:
        training = self.fact("training", "all")
        if training == "some":
            frozen = self.fact("frozen", ())
            return name not in frozen
        return training == "all"

    @property
    def training(self) -> bool:
        return self.fact("training", "all") != "none"

    def coin(self, share: float = 0.5) -> bool:
        return self.random.random() < share

    def pick(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def in_turn(self, table: Iterable[str]) -> str:
        """The entry whose turn it is, so that programs of a kind go round a table."""
        entries = list(table)
        return entries[self.turn % len(entries)]

    def shuffled(self, items: Iterable[str]) -> tuple[str, ...]:
        items = list(items)
        return tuple(self.random.sample(items, len(items)))

    def number(self) -> str:
        """A Python scalar as people write them."""
        return self.pick("0.5", "0.25", "2.0", "1.5", "0.125", "0.3", "-0.5", "1.7")
