"""A program being written: its statements, its operands and its label.

What comes out (`Program.source`) is a Python function over tensors in which every size that may
vary is read from the shape of an operand, so that one program can be called with several sizes.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.operands import split_spec
from tests.tolerances import FP64_RELATIVE

# Sizes that stay fixed when a program is called again with others: those of the model.
STATIC = "hgde"

FUSABLE, REFUSABLE, DECOY = "fusable", "refusable", "decoy"
_RANK = {FUSABLE: 0, REFUSABLE: 1, DECOY: 2}


@dataclass(frozen=True)
class Program:
    """One finished program.

    Attributes:
        seed: what the generator was given.
        label: fusable (must be rewritten), refusable (may be), decoy (must not be).
        features: what was drawn, for statistics over misses.
        source: defines `program`, whose parameters are the keys of `specs`.
        specs: operand name -> spec of `tests.operands`.
        sizes: one mapping letter -> size for every call to make; more than one if shapes vary.
        dtype: name of a torch dtype.
        training: whether gradients are asked for.
        regions: how many regions there are to rewrite.
        gradient_relative: how exact eager's own fp64 gradients are.
        lengths: of a jagged program, those of every call. sides: which of "q" and "k" have to run
            on the values alone, and no other may. offsets: the dtype of offsets.
    """

    seed: int
    label: str
    features: tuple[str, ...]
    source: str
    specs: Mapping[str, str]
    sizes: tuple[Mapping[str, int], ...]
    dtype: str = "float64"
    training: bool = True
    regions: int = 1
    gradient_relative: float = FP64_RELATIVE
    lengths: tuple[tuple[int, ...], ...] = ()
    sides: str = ""
    offsets: str = "int64"

    @property
    def dynamic(self) -> bool:
        return len(self.sizes) > 1


@dataclass
class Scores:
    """The score tensor at some point of a program: a variable, and what each of its dims is."""

    name: str
    dims: tuple[str, ...]

    def axis(self, letter: str) -> int | None:
        return self.dims.index(letter) if letter in self.dims else None


@dataclass
class Draft:
    """Statements and operands so far. Every choice is drawn from `rng`."""

    rng: random.Random
    sizes: Mapping[str, int]
    dtype: str = "float64"
    dynamic: bool = False
    training: bool = True
    prelude: str = ""
    extra: list[str] = field(default_factory=list)
    specs: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    features: list[str] = field(default_factory=list)
    label: str = FUSABLE
    regions: int = 0
    gradient_relative: float = FP64_RELATIVE
    _count: int = 0

    def operand(self, stem: str, spec: str) -> str:
        """A new parameter of the program; its name."""
        self._count += 1
        name = f"{stem}{self._count}"
        self.specs[name] = spec
        return name

    def let(self, stem: str, value: str) -> str:
        """`stem7 = value`; the new name."""
        self._count += 1
        name = f"{stem}{self._count}"
        self.emit(f"{name} = {value}")
        return name

    def emit(self, line: str) -> None:
        self.lines.append(line)

    def feature(self, name: str, label: str = FUSABLE) -> None:
        """Note what was drawn. A label only ever gets stricter."""
        self.features.append(name)
        if _RANK[label] > _RANK[self.label]:
            self.label = label

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def pick(self, options: Sequence):
        return self.rng.choice(options)

    def shuffled(self, items: Sequence) -> tuple:
        return tuple(self.rng.sample(list(items), len(items)))

    def source(self, result: str, wrap: str = "") -> str:
        """The whole module: imports, the sizes read from operands, the statements."""
        indent = lambda lines: [f"    {line}" for line in lines]
        results = ", ".join([result, *self.extra])
        parameters = ", ".join(self.specs)
        body = [*self._size_lines(), *self.lines]
        if wrap == "autocast":
            body = ['with torch.autocast("cpu", dtype=torch.bfloat16):', *indent(body)]
        body.append(f"return {results}")
        if wrap == "checkpoint":
            body = [
                f"def body({parameters}):",
                *indent(body),
                "",
                f"return checkpoint(body, {parameters}, use_reentrant=False)",
            ]
        head = f"def program({parameters}):"
        return "\n".join([_IMPORTS, self.prelude, head, *indent(body), ""])

    def _size_lines(self) -> list[str]:
        """`n = q1.shape[2]` for the letters that vary, literals for the others."""
        lines = []
        for letter in self.sizes:
            if letter in STATIC:
                lines.append(f"{letter} = {self.sizes[letter]}")
        for letter in self.sizes:
            if letter not in STATIC:
                lines.append(f"{letter} = {self._read_size(letter)}")
        return lines

    def _read_size(self, letter: str) -> str:
        """The simplest expression over operand shapes whose value is the size `letter`."""
        expressions: list[tuple[int, str]] = []
        for name, spec in self.specs.items():
            kind, dims = split_spec(spec)
            if kind == "scalar":
                continue
            for axis, dim in enumerate(dims):
                factors = dim.partition("+")[0].split("*")
                others = [f for f in factors if f != letter]
                if letter not in factors or any(
                    f not in STATIC and not f.isdigit() for f in others
                ):
                    continue
                text = f"{name}.shape[{axis}]"
                if "+" in dim:
                    text = f"({text} - {dim.partition('+')[2]})"
                expressions.append((len(dim), " // ".join([text, *others])))
        return min(expressions)[1] if expressions else str(self.sizes[letter])


_IMPORTS = """\
import math

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
"""


def shape_text(dims: Sequence[str]) -> str:
    """`("b", "n*h")` -> `"b, n*h"`, as it stands in a call."""
    return ", ".join(dims)


def permutation(source: Sequence[str], target: Sequence[str]) -> tuple[int, ...]:
    """The argument of `permute` that takes dims `source` to `target` (same dims, each once)."""
    left = list(source)
    order = []
    for dim in target:
        at = left.index(dim)
        left[at] = None  # a dim of size 1 may occur twice
        order.append(at)
    return tuple(order)


def permute_text(draft: Draft, name: str, source: Sequence[str], target: Sequence[str]) -> str:
    """`name` with dims `source` brought into the order `target`, in one of several spellings."""
    order = permutation(source, target)
    moved = [axis for axis, origin in enumerate(order) if axis != origin]
    rank = len(order)
    if not moved:
        return name
    if len(moved) == 2:
        first, second = moved
        if (first, second) == (rank - 2, rank - 1) and draft.chance(0.4):
            return f"{name}.mT"
        if draft.chance(0.5):
            first, second = first - rank, second - rank
        verb = draft.pick(["transpose", "transpose", "swapaxes", "swapdims"])
        return f"{name}.{verb}({first}, {second})"
    if draft.chance(0.2):
        return f"torch.permute({name}, {order})"
    return f"{name}.permute({', '.join(map(str, order))})"
