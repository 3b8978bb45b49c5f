"""Expressions over one attention score: the terms a score program is made of.

An `Expr` is an immutable, interned node of a directed acyclic graph: equal terms are the same
object, so common subexpressions are shared by construction. `OPS` is the whole vocabulary, one line
per operation: the kinds it accepts and the plain-torch function that defines it. Nothing outside
this table can appear in a program. Kernels emit the operations; they do not redefine them.
Derivatives are in `slopes`.

Kinds: "f" a real number in the compute dtype, "i" an integer, "b" a truth value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F

T = TypeVar("T")
Literal = bool | int | float


class Expr:
    """One term. `op` is a leaf ("s", "g", "b", "h", "n", "m", "aux", "scalar", "const") or a name
    in `OPS`.

    s: the score q·k. g: the gradient of the loss with respect to the weight P[b,h,n,m].
    b, h, n, m: batch, query head, query row and key column of the score. aux, scalar: `value` is
    their number.
    """

    __slots__ = ("op", "args", "value", "kind", "__weakref__")  # noqa: RUF023 (the constructor)
    _interned: ClassVar[dict[tuple[Any, ...], Expr]] = {}

    op: str
    args: tuple[Expr, ...]
    value: Literal | None
    kind: str

    def __new__(
        cls, op: str, args: tuple[Expr, ...] = (), value: Literal | None = None, kind: str = "f"
    ) -> Expr:
        key = (op, args, repr(value), kind)
        found = cls._interned.get(key)
        if found is None:
            found = object.__new__(cls)
            for name, field in zip(cls.__slots__, (op, args, value, kind), strict=False):
                object.__setattr__(found, name, field)
            cls._interned[key] = found
        return found

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("an Expr is immutable")

    def __reduce__(self) -> tuple[Any, ...]:
        return (Expr, (self.op, self.args, self.value, self.kind))

    @property
    def is_const(self) -> bool:
        return self.op == "const"

    def __add__(self, other: Expr | Literal) -> Expr:
        return call("add", self, other)

    def __radd__(self, other: Literal) -> Expr:
        return call("add", other, self)

    def __sub__(self, other: Expr | Literal) -> Expr:
        return call("sub", self, other)

    def __rsub__(self, other: Literal) -> Expr:
        return call("sub", other, self)

    def __mul__(self, other: Expr | Literal) -> Expr:
        return call("mul", self, other)

    def __rmul__(self, other: Literal) -> Expr:
        return call("mul", other, self)

    def __truediv__(self, other: Expr | Literal) -> Expr:
        return call("div", self, other)

    def __rtruediv__(self, other: Literal) -> Expr:
        return call("div", other, self)

    def __neg__(self) -> Expr:
        return call("neg", self)


def const(value: Literal) -> Expr:
    """A literal; its Python type gives its kind. Subclasses (NumPy's float64) become the plain
    type.
    """
    if isinstance(value, bool):
        return Expr("const", (), value, "b")
    if isinstance(value, int):
        return Expr("const", (), int(value), "i")
    return Expr("const", (), float(value), "f")


def aux(number: int, kind: str = "f") -> Expr:
    """The element of the auxiliary operand `number` that belongs to this score."""
    return Expr("aux", (), number, kind)


def scalar(number: int) -> Expr:
    """The integer argument `number` of the op (a symbolic size)."""
    return Expr("scalar", (), number, "i")


SCORE, GRAD = Expr("s"), Expr("g")
INDEX = {name: Expr(name, (), None, "i") for name in "bhnm"}


@dataclass(frozen=True)
class Op:
    """One operation. `kinds`: accepted signatures such as "ff>f"; `params`: how many trailing
    arguments are literals. Its derivative is in `slopes`.
    """

    kinds: tuple[str, ...]
    torch: Callable[..., torch.Tensor]
    params: int = 0

    def result_kind(self, given: str) -> str | None:
        for signature in self.kinds:
            accepted, result = signature.split(">")
            if accepted == given:
                return result
        return None


def call(name: str, *operands: Expr | Literal) -> Expr:
    """Apply an operation: checks kinds, folds literals where no dtype makes a difference, drops
    exact identities (x·1, x/1).

    Raises:
        ValueError: unknown operation, or operands of kinds that it does not accept.
    """
    args = tuple(x if isinstance(x, Expr) else const(x) for x in operands)
    op = OPS.get(name)
    if op is None:
        raise ValueError(f"unknown operation {name!r} in a score program")
    kinds = "".join(a.kind for a in args)
    result = op.result_kind(kinds)
    if result is None:
        raise ValueError(f"{name} takes {' or '.join(op.kinds)}, not {kinds or 'nothing'}")
    if op.params and not all(a.is_const for a in args[-op.params :]):
        raise ValueError(f"the last {op.params} argument(s) of {name} must be literals")
    if name in ("mul", "div") and args[1].is_const and args[1].value == 1:
        return args[0]
    if name == "mul" and args[0].is_const and args[0].value == 1:
        return args[1]
    if name in _FOLDS and all(a.is_const for a in args):
        try:
            folded = const(_FOLDS[name](*(a.value for a in args)))
        except (ArithmeticError, ValueError):
            folded = None
        exact = name == "neg" and folded is not None and folded.kind == "f"
        if folded is not None and (exact or _folds_alike([*args, folded])):
            return folded
    return Expr(name, args, None, result)


def _folds_alike(literals: Sequence[Expr]) -> bool:
    """Whether an operation on literals gives the same in fp32, in fp64 and here: no number among
    them overflows or vanishes in one of them, and integers are of 64 bits.
    """
    return all(
        is_ordinary(float(x.value or 0)) if x.kind == "f" else abs(int(x.value or 0)) < 1 << 63
        for x in literals
    )


def is_ordinary(value: float) -> bool:
    """0, or a number whose fp32 neither overflows nor is subnormal."""
    return value == 0.0 or 2.0**-126 <= abs(value) < 2.0**127


def postorder(roots: Iterable[Expr]) -> Iterator[Expr]:
    """Every distinct term under the roots, arguments first; iterative, so depth is no limit."""
    seen: set[Expr] = set()
    stack = [(root, False) for root in reversed(list(roots))]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((a, False) for a in reversed(node.args) if a not in seen)


def fold(
    roots: Sequence[Expr], leaf: Callable[[Expr], T], apply: Callable[[Expr, list[Any]], T]
) -> list[T]:
    """Evaluate terms bottom-up, each once. `apply` gets literals for an operation's `params`."""
    values: dict[Expr, T] = {}
    for node in postorder(roots):
        if node in values:
            continue
        if not node.args:
            values[node] = leaf(node)
            continue
        params = OPS[node.op].params
        plain = node.args[: len(node.args) - params]
        literals = [a.value for a in node.args[len(plain) :]]
        values[node] = apply(node, [values[a] for a in plain] + literals)
    return [values[root] for root in roots]


GELU_BETA, GELU_ALPHA = math.sqrt(2.0 / math.pi), 0.044715


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


def _round_to(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x.to(dtype).to(x.dtype)


_F1, _F2 = ("f>f",), ("ff>f",)
_ARITH1, _ARITH2 = ("f>f", "i>i"), ("ff>f", "ii>i")
_COMPARE, _EQUAL = ("ff>b", "ii>b"), ("ff>b", "ii>b", "bb>b")
_LOGIC = ("bb>b",)

# fmt: off
OPS: dict[str, Op] = {
    # arithmetic
    "add": Op(_ARITH2, torch.add),
    "sub": Op(_ARITH2, torch.sub),
    "mul": Op(_ARITH2, torch.mul),
    "div": Op(_F2, torch.div),
    "neg": Op(_ARITH1, torch.neg),
    "abs": Op(_ARITH1, torch.abs),
    "pow": Op(_F2, torch.pow, params=1),
    "maximum": Op(_ARITH2, torch.maximum),
    "minimum": Op(_ARITH2, torch.minimum),
    "clamp_min": Op(_F2, lambda x, c: x.clamp(min=c), params=1),
    "clamp_max": Op(_F2, lambda x, c: x.clamp(max=c), params=1),
    "floordiv": Op(("ii>i",), lambda x, z: torch.div(x, z, rounding_mode="floor")),
    "mod": Op(("ii>i",), torch.remainder),
    # elementary functions
    "sqrt": Op(_F1, torch.sqrt),
    "rsqrt": Op(_F1, torch.rsqrt),
    "exp": Op(_F1, torch.exp),
    "exp2": Op(_F1, torch.exp2),
    "expm1": Op(_F1, torch.expm1),
    "log": Op(_F1, torch.log),
    "log1p": Op(_F1, torch.log1p),
    "sin": Op(_F1, torch.sin),
    "cos": Op(_F1, torch.cos),
    "tanh": Op(_F1, torch.tanh),
    "erf": Op(_F1, torch.erf),
    # activations
    "sigmoid": Op(_F1, torch.sigmoid),
    "relu": Op(_F1, torch.relu),
    "silu": Op(_F1, F.silu),
    "gelu": Op(_F1, F.gelu),
    "gelu_tanh": Op(_F1, _gelu_tanh),
    "hardswish": Op(_F1, F.hardswish),
    "hardsigmoid": Op(_F1, F.hardsigmoid),
    "leaky_relu": Op(_F2, F.leaky_relu, params=1),
    "elu": Op(("ffff>f",), torch.ops.aten.elu.default, params=3),
    "softplus": Op(("fff>f",), F.softplus, params=2),
    "mish": Op(_F1, F.mish),
    "hardtanh": Op(("fff>f",), F.hardtanh, params=2),
    # rounding
    "sign": Op(_F1, torch.sign),
    "floor": Op(_F1, torch.floor),
    "ceil": Op(_F1, torch.ceil),
    "round": Op(_F1, torch.round),
    "trunc": Op(_F1, torch.trunc),
    "bf16": Op(_F1, _round_to(torch.bfloat16)),
    "f16": Op(_F1, _round_to(torch.float16)),
    "detach": Op(_F1, torch.Tensor.detach),
    # comparison, logic, choice
    "eq": Op(_EQUAL, torch.eq),
    "ne": Op(_EQUAL, torch.ne),
    "lt": Op(_COMPARE, torch.lt),
    "le": Op(_COMPARE, torch.le),
    "gt": Op(_COMPARE, torch.gt),
    "ge": Op(_COMPARE, torch.ge),
    "and": Op(_LOGIC, torch.logical_and),
    "or": Op(_LOGIC, torch.logical_or),
    "xor": Op(_LOGIC, torch.logical_xor),
    "not": Op(("b>b",), torch.logical_not),
    "isnan": Op(("f>b",), torch.isnan),
    "where": Op(("bff>f", "bii>i"), torch.where),
    # change of kind (evaluated by `torch_apply`, which knows the compute dtype)
    "float": Op(("i>f", "b>f"), torch.Tensor.float),
    "int": Op(("f>i", "b>i"), torch.Tensor.long),
    "bool": Op(("f>b", "i>b"), torch.Tensor.bool),
}
# fmt: on

_FOLDS: dict[str, Callable[..., Literal]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "neg": lambda x: -x,
    "float": float,
}


def torch_apply(dtype: torch.dtype) -> Callable[[Expr, list[Any]], torch.Tensor]:
    """The plain-torch meaning of an operation, floats in `dtype`: the `apply` that `fold` wants."""

    def apply(node: Expr, values: list[Any]) -> torch.Tensor:
        if node.op == "float":
            result: torch.Tensor = values[0].to(dtype)
            return result
        return OPS[node.op].torch(*values)

    return apply
