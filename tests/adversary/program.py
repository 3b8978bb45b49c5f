"""A program: Python source text that a person could have written, and the operands that it takes.

Values are drawn by `random.Random`, so that a seed means the same program on every machine.
"""

import ast
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Any

import torch

from tests.operands import size_of

FLOATING = {name: getattr(torch, name) for name in ("float64", "float32", "bfloat16", "float16")}


@dataclass
class Operand:
    """One input of a program.

    dims: of its shape, each as `tests.operands` writes it ("b", "n*h+1", "3"). kind: "float" takes
    the program's dtype; "scalar" is the number of its one dim; else the name of a torch dtype.
    values: a key of VALUES, a list of numbers, or what follows from the lengths of a call:
    "lengths", "offsets", and "other", the offsets of the lengths in reverse. grad: whether it is a
    leaf that asks for a gradient. place: an "argument", or a "parameter" or "buffer" of the module.
    view: the operand that it is a view of, and the expression that makes it; "" for a tensor of its
    own.
    """

    name: str
    dims: tuple[str, ...] = ()
    kind: str = "float"
    values: str | tuple = "normal"
    grad: bool = False
    place: str = "argument"
    base: str = ""
    view: str = ""

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(size_of(dim, sizes) for dim in self.dims)


@dataclass
class Program:
    """A drawn program.

    label: "exact" (a right rewrite exists, and nothing hazardous stands in its way), "hazard" (a
    rewrite is not promised) or "decoy" (there is nothing to rewrite). sizes: of the letters, for
    each call; several where shapes vary. lengths: of the sequences of each call, if it is jagged.
    regions: how many are to be rewritten. sides: which of "q" and "k" have to run on the values
    alone, and no other may; None where that is not known. door: how the source is entered ("call",
    "module" or "export"). before_backward: what the caller runs between forward and backward.
    literal: its values depend on the rounding of a precision that it names, so that fp64 is no
    truth for it. device: where its tensors live; the text means the CPU.
    """

    seed: int
    source: str
    operands: list[Operand]
    dtype: str
    label: str
    hostilities: tuple[str, ...]
    family: str
    sizes: tuple[Mapping[str, int], ...] = ({},)
    lengths: tuple[tuple[int, ...], ...] = ()
    regions: int = 1
    sides: str | None = None
    door: str = "call"
    before_backward: str = ""
    literal: bool = False
    capture_scalars: bool = False
    spelling: str = ""
    device: str = "cpu"

    @property
    def varies(self) -> bool:
        return len(self.sizes) > 1

    @property
    def plain(self) -> bool:
        """Nothing hostile is done to it, so that it must be rewritten."""
        return self.label == "exact" and not self.hostilities

    def varying(self, operand: Operand) -> list[int]:
        """The axes of an operand whose size differs between the calls."""
        shapes = [operand.shape(sizes) for sizes in self.sizes]
        return [axis for axis, sizes in enumerate(zip(*shapes)) if len({*sizes}) > 1]

    def __str__(self) -> str:
        what = ", ".join(self.hostilities) or self.spelling
        head = f"# seed {self.seed}: {self.label}, {self.family}, {self.dtype}, {self.door}: {what}"
        specs = "\n".join(f"#   {_described(x)}" for x in self.operands)
        calls = "\n".join(f"#   {dict(sizes)}" for sizes in self.sizes)
        calls += f"\n#   lengths {self.lengths}, sides {self.sides!r}" if self.lengths else ""
        after = f"\n# before the backward: {self.before_backward}" if self.before_backward else ""
        return f"{head}\n{specs}\n{calls}\n{self.source}{after}"


def _described(operand: Operand) -> str:
    kind = f"{operand.name}: {operand.kind}[{', '.join(operand.dims)}] {operand.values}"
    more = [operand.place] if operand.place != "argument" else []
    more += [f"= {operand.view}"] if operand.view else []
    more += ["requires grad"] if operand.grad else []
    return ", ".join([kind, *more])


def _normal(random: Random, count: int) -> list[float]:
    return [random.gauss(0.0, 1.0) for _ in range(count)]


def _with(*specials: float):
    """Normal values with a few of the special ones among them."""

    def draw(random: Random, count: int) -> list[float]:
        drawn = _normal(random, count)
        for _ in range(max(1, count // 12) if count else 0):
            drawn[random.randrange(count)] = random.choice(specials)
        return drawn

    return draw


# Huge ones stay away from the largest fp32, where the order of two factors decides what overflows.
# Kinds of floating values. A name that is not here is a list of numbers of its own.
VALUES = MappingProxyType(
    {
        "normal": _normal,
        "count": lambda random, count: [random.randint(1, 7) for _ in range(count)],
        "positive": lambda random, count: [0.5 + random.random() for _ in range(count)],
        "zero_one": lambda random, count: [float(random.random() < 0.65) for _ in range(count)],
        "bool": lambda random, count: [random.random() < 0.65 for _ in range(count)],
        "nan": _with(math.nan),
        "inf": _with(math.inf, -math.inf),
        "zeros": _with(0.0, -0.0),
        "subnormal": _with(1e-40, -1e-40, 1e-310),
        "huge": _with(1e30, -1e30, 1e25, 1e19),
        "specials": _with(math.nan, math.inf, -math.inf, -0.0, 1e-40, 1e30),
    }
)


def values_of(operand: Operand, program: Program, number: int) -> torch.Tensor:
    """The tensor of one operand in fp64, or in the dtype that it names."""
    shape, values = operand.shape(program.sizes[number]), operand.values
    random = Random(f"{program.seed} {operand.name}{f' {number}' if number else ''}")
    count = math.prod(shape)
    if values in _OF_LENGTHS:
        drawn = _OF_LENGTHS[values](program.lengths[number])
        shape = (len(drawn),)
    elif isinstance(values, tuple):
        drawn = [values[i % len(values)] for i in range(count)]
    elif values.startswith("ints"):
        low, high = map(int, values.split()[1:])
        drawn = [random.randint(low, high) for _ in range(count)]
    elif values == "normal" and count > 4096:  # as a kernel has it
        generator = torch.Generator().manual_seed(random.getrandbits(60))
        drawn = torch.randn(count, generator=generator, dtype=torch.float64)
    else:
        drawn = VALUES[values](random, count)
    named = torch.float64 if operand.kind == "float" else getattr(torch, operand.kind)
    return torch.as_tensor(drawn, dtype=named).reshape(shape)


_OF_LENGTHS: dict[str | tuple, Callable] = {
    "lengths": list,
    "offsets": lambda lengths: [0, *itertools.accumulate(lengths)],
    "other": lambda lengths: [0, *itertools.accumulate(lengths[::-1])],
}


def make_operands(
    program: Program, dtype: torch.dtype, number: int = 0
) -> dict[str, torch.Tensor | int]:
    """Fresh operands of a call: floats are drawn in fp64, rounded to the program's dtype, then
    cast.
    """
    result: dict[str, torch.Tensor | int] = {}
    for operand in program.operands:
        if operand.base:
            result[operand.name] = eval(operand.view, {"torch": torch, **result})
            continue
        if operand.kind == "scalar":
            result[operand.name] = operand.shape(program.sizes[number])[0]
            continue
        value = values_of(operand, program, number)
        if operand.kind == "float":
            value = value.to(FLOATING[program.dtype]).to(dtype)
        result[operand.name] = value.to(program.device).requires_grad_(operand.grad)
    return result


def on_device(source: str, device: str) -> str:
    """The same program with every tensor that it makes, and its autocast, on a device."""
    return ast.unparse(_OnDevice(device).visit(ast.parse(source)))


@dataclass
class _OnDevice(ast.NodeTransformer):
    device: str

    MAKERS = frozenset(
        "arange ones zeros full eye empty tensor scalar_tensor rand randn randint linspace".split()
    )

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        called = node.func
        if not isinstance(called, ast.Attribute) or not isinstance(called.value, ast.Name):
            return node
        inputs = {keyword.arg for keyword in node.keywords}
        if called.value.id == "torch" and called.attr in self.MAKERS and "device" not in inputs:
            node.keywords.append(ast.keyword("device", ast.Constant(self.device)))
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant(self.device) if node.value == "cpu" else node


def arguments_of(program: Program, operands: Mapping[str, Any]) -> list[Any]:
    """What the function is called with: all that is neither parameter nor buffer nor a base."""
    return [operands[x.name] for x in program.operands if x.place == "argument"]
