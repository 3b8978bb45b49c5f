"""Expressions over one attention score: the terms a score program is made of.

An `Expr` is an immutable, interned node of a directed acyclic graph: equal terms are the same
object, so common subexpressions are shared by construction. `OPS` is the whole vocabulary, a row
per operation (`ops`). Nothing outside this table can appear in a program. Kernels emit the
operations; they do not redefine them.

Kinds: "f" a real number in the compute dtype, "i" an integer, "b" a truth value.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch

T = TypeVar("T")
Literal = bool | int | float


class Expr:
    """One term. `op` is a leaf ("s", "g", "b", "h", "q_idx", "kv_idx", "aux", "scalar", "const") or
    a name in `OPS`.

    s: the score q·k. g: the gradient of the loss with respect to the weight P[b,h,q_idx,kv_idx].
    b, h, q_idx, kv_idx: batch, query head, query and key of the score, as in FlexAttention. aux,
    scalar: `value` is their number.
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
AXES = ("b", "h", "q_idx", "kv_idx")  # of the scores, in the order of their dimensions
POSITIONS = frozenset(AXES[2:])
INDEX = {name: Expr(name, (), None, "i") for name in AXES}


class Trait(enum.Flag):
    """What analyses ask of an operation.

    DECIDES: its value jumps, so that a last bit of its operand may turn it. TURNS: its slope jumps
    elsewhere than at 0, whose sign is exact. Without these two a result may be wrong; the others
    may be left out, and cost a rewrite, a name or speed. `tests/program/test_traits.py` measures.

    KEEPS_VALUES: its result is one of its operands, a literal, or rounded as every precision does.
    KEEPS_WHOLES: of whole numbers it makes whole numbers. SMOOTH: its slope multiplies, and never
    chooses 0. An infinite gradient then leaves no finite one (`tails`).
    """

    NONE = 0
    DECIDES = enum.auto()
    TURNS = enum.auto()
    KEEPS_VALUES = enum.auto()
    KEEPS_WHOLES = enum.auto()
    SMOOTH = enum.auto()


@dataclass(frozen=True)
class Op:
    """One operation: a row of `OPS`, and all that the package knows of it.

    What it is:
    kinds     accepted signatures such as "ff>f"
    torch     the function that defines it
    says      the same, for people
    params    how many trailing arguments are literals
    infix     its sign, and how tightly it binds

    What is known of it:
    vjp       `vjp(g, y, *args)` gives a cotangent per argument, None where it is zero. Without a
              vjp it has no gradient
    interval  its rule in the module of this name, and so `integers`. Without one, nothing is known
              of its result
    literal   its value on Python's numbers, where a program folds it
    traits    see `Trait`

    How models write it:
    aten      ATen's names for it where a call means just this, a function of reals and literals;
              `vocabulary` reads the others
    spelled   its forms in other operations, all of which mean just this (`canonical`)

    How kernels compute it (`emission`); None: as it is
    plain     in other operations
    fast      the same for 16 bits: |fast - exact| <= 2^-10 max(1, |x|) for x in [-30, 30]
    """

    kinds: tuple[str, ...]
    torch: Callable[..., torch.Tensor]
    says: str
    params: int = 0
    vjp: Callable[..., tuple[Expr | None, ...]] | None = None
    interval: Callable[..., Any] | None = None
    integers: Callable[..., tuple[int, int]] | None = None
    literal: Callable[..., Literal] | None = None
    infix: tuple[str, int] | None = None
    aten: tuple[str, ...] = ()
    spelled: Callable[[Expr], tuple[Expr, ...]] | None = None
    plain: Callable[..., Expr | None] | None = None
    fast: Callable[..., Expr | None] | None = None
    traits: Trait = Trait.NONE

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
    op = row_of(name)
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
    if op.literal is not None and all(a.is_const for a in args):
        try:
            folded = const(op.literal(*(a.value for a in args)))
        except (ArithmeticError, ValueError):
            folded = None
        exact = name == "neg" and folded is not None and folded.kind == "f"
        if folded is not None and (exact or _folds_alike([*args, folded])):
            return folded
    return Expr(name, args, None, result)


def _folds_alike(literals: Sequence[Expr]) -> bool:
    """Whether an operation on literals gives the same in fp32, in fp64 and here. No number among
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
        row = row_of(node.op)
        params = row.params if row else 0
        plain = node.args[: len(node.args) - params]
        literals = [a.value for a in node.args[len(plain) :]]
        values[node] = apply(node, [values[a] for a in plain] + literals)
    return [values[root] for root in roots]


# The rows of `ops`, which fills these: what programs are made of, and what only kernels have.
OPS: dict[str, Op] = {}
INSTRUCTIONS: dict[str, Op] = {}


def row_of(name: str) -> Op | None:
    """The row of an operation of programs or kernels."""
    return OPS.get(name) or INSTRUCTIONS.get(name)


def torch_apply(dtype: torch.dtype) -> Callable[[Expr, list[Any]], torch.Tensor]:
    """The plain-torch meaning of an operation, floats in `dtype`: the `apply` that `fold` wants."""

    def apply(node: Expr, values: list[Any]) -> torch.Tensor:
        if node.op == "float":
            result: torch.Tensor = values[0].to(dtype)
            return result
        return OPS[node.op].torch(*values)

    return apply
