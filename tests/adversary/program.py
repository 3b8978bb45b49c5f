"""A program: Python source text that a person could have written, and the operands that it takes.

Values are drawn by `random.Random`, so that a seed means the same program on every machine.
"""

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType

import torch

FLOATING = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass
class Operand:
    """One input of a program.

    kind: "float" takes the program's dtype; else the name of a torch dtype. values: a key of
    VALUES, or a list of numbers. grad: whether it is a leaf that asks for a gradient. place: an
    "argument", or a "parameter" or "buffer" of the module. view: the operand that it is a view of,
    and the expression that makes it; "" for a tensor of its own.
    """

    name: str
    shape: tuple[int, ...]
    kind: str = "float"
    values: str | tuple = "normal"
    grad: bool = False
    place: str = "argument"
    base: str = ""
    view: str = ""
    dynamic: tuple[int, ...] = ()


@dataclass
class Program:
    """A drawn program.

    door: how the source is entered ("call", "module" or "export"). before_backward: what the caller
    runs between forward and backward. literal: its values depend on the rounding of a precision
    that it names, so that fp64 is no truth for it. second: a second set of shapes, for a second
    call with symbolic sizes. device: where its tensors live; the text means the CPU.
    """

    seed: int
    source: str
    operands: list[Operand]
    dtype: str
    label: str
    hostilities: tuple[str, ...]
    family: str
    door: str = "call"
    before_backward: str = ""
    literal: bool = False
    capture_scalars: bool = False
    second: dict[str, tuple[int, ...]] = field(default_factory=dict)
    spelling: str = ""
    device: str = "cpu"

    def __str__(self) -> str:
        what = ", ".join(self.hostilities)
        head = f"# seed {self.seed}: {self.label}, {self.family}, {self.dtype}, {self.door}: {what}"
        specs = "\n".join(f"#   {_described(x)}" for x in self.operands)
        after = f"\n# before the backward: {self.before_backward}" if self.before_backward else ""
        return f"{head}\n{specs}\n{self.source}{after}"


def _described(operand: Operand) -> str:
    kind = f"{operand.name}: {operand.kind}{list(operand.shape)} {operand.values}"
    more = [operand.place] if operand.place != "argument" else []
    more += [f"= {operand.view}"] if operand.view else []
    more += ["requires grad"] if operand.grad else []
    more += [f"dynamic {operand.dynamic}"] if operand.dynamic else []
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


def values_of(operand: Operand, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """The tensor of one operand in fp64, or in the dtype that it names."""
    random = Random(f"{seed} {operand.name}")
    count = math.prod(shape)
    if isinstance(operand.values, str) and operand.values.startswith("ints"):
        low, high = map(int, operand.values.split()[1:])
        drawn = [random.randint(low, high) for _ in range(count)]
    elif isinstance(operand.values, str):
        drawn = VALUES[operand.values](random, count)
    else:
        drawn = [operand.values[i % len(operand.values)] for i in range(count)]
    named = torch.float64 if operand.kind == "float" else getattr(torch, operand.kind)
    return torch.tensor(drawn, dtype=named).reshape(shape)


def make_operands(
    program: Program, dtype: torch.dtype, *, second: bool = False
) -> dict[str, torch.Tensor]:
    """Fresh operands: floats are drawn in fp64, rounded to the program's dtype, then cast."""
    result: dict[str, torch.Tensor] = {}
    drawn_in = FLOATING[program.dtype]
    for operand in program.operands:
        if operand.base:
            result[operand.name] = eval(operand.view, {"torch": torch, **result})
            continue
        shape = program.second.get(operand.name, operand.shape) if second else operand.shape
        value = values_of(operand, shape, program.seed)
        if operand.kind == "float":
            value = value.to(drawn_in).to(dtype)
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


def arguments_of(program: Program, operands: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """What the function is called with: all that is neither parameter nor buffer nor a base."""
    return [operands[x.name] for x in program.operands if x.place == "argument"]
