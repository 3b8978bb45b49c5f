"""Expressions over one attention score: the terms of a score program.

An `Expr` is an immutable node of a directed acyclic graph. Nodes are interned: equal terms are the
same object, so common subexpressions are shared. `OPS` is the whole vocabulary, with a row for each
operation (`ops`). A program has no other operations. Kernels emit operations, and do not redefine
them.

Kinds: "f" a real number in the compute dtype, "i" an integer, "b" a truth value, "t" a table of
reals, which only `lookup` reads.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch

T = TypeVar("T")
Literal = bool | int | float


def _operators(name: str) -> tuple[Callable[[Expr, Expr | Literal], Expr], ...]:
    """A binary operator of Python, and its reflection."""
    return (
        lambda self, other: call(name, self, other),
        lambda self, other: call(name, other, self),
    )


class Expr:
    """One term. `op` is a leaf ("s", "g", "b", "h", "q_idx", "kv_idx", "aux", "scalar", "const") or
    a name in `OPS`.

    s:                    The score q·k.
    g:                    The gradient of the loss by the weight P[b,h,q_idx,kv_idx].
    b, h, q_idx, kv_idx:  Batch, query head, query and key of the score, as in FlexAttention.
    aux, scalar:          An aux operand or an integer argument.

    value: The number of an aux operand or of an integer argument, and what a literal is. Else None.
    """

    __slots__ = ("op", "args", "value", "kind", "__weakref__")  # noqa: RUF023 (the constructor)
    _interned: ClassVar[dict[tuple[Any, ...], Expr]] = {}

    op: str
    args: tuple[Expr, ...]
    value: Any
    kind: str

    def __new__(
        cls, op: str, args: tuple[Expr, ...] = (), value: Literal | None = None, kind: str = "f"
    ) -> Expr:
        key = (op, args, repr(value), kind)
        node = cls._interned.get(key)
        if node is None:
            node = object.__new__(cls)
            for name, field in zip(cls.__slots__, (op, args, value, kind), strict=False):
                object.__setattr__(node, name, field)
            node = cls._interned.setdefault(key, node)  # another thread's, if it came first
        return node

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("an Expr is immutable")

    def __reduce__(self) -> tuple[Any, ...]:
        return (Expr, (self.op, self.args, self.value, self.kind))

    @property
    def is_const(self) -> bool:
        return self.op == "const"

    __add__, __radd__ = _operators("add")
    __sub__, __rsub__ = _operators("sub")
    __mul__, __rmul__ = _operators("mul")
    __truediv__, __rtruediv__ = _operators("div")

    def __neg__(self) -> Expr:
        return call("neg", self)


def const(value: Literal) -> Expr:
    """A literal. Its Python type decides its kind; NumPy's float64 becomes a plain float."""
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
    """Properties of an operation that analyses use.

    DECIDES:       Its value jumps, so the last bit of an operand may change it.
    TURNS:         Its slope jumps at a number other than 0. (The sign of 0 is exact.)
    KEEPS_VALUES:  Its result is one of its operands, a literal, or rounded as in every precision.
    KEEPS_WHOLES:  Its result is a whole number if its operands are.
    SMOOTH:        Its slope multiplies the gradient and never chooses 0. So an infinite gradient
                   gives no finite one (`tails`).

    If DECIDES or TURNS is missing in a row, a result may be wrong. If another one is missing, only
    a rewrite, a name or speed is lost. `tests/program/test_traits.py` measures all of them.
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

    Definition:
    kinds:     The accepted signatures, such as "ff>f".
    torch:     The torch function that defines it.
    says:      Its meaning, for people.
    params:    How many trailing arguments are literals.
    infix:     Its sign in a formula, and its precedence.

    Analysis:
    vjp:       `vjp(g, y, *args)` gives a gradient for each argument, or None for zero. Without a
               vjp the operation has no gradient.
    interval:  Its rule in `intervals`. Without a rule, nothing is known about its result.
    integers:  Its rule in the module of this name.
    literal:   Its value on Python numbers, with which a program folds it.
    traits:    See `Trait`.

    In models:
    aten:      ATen names of functions of floats and literals that mean exactly this. `vocabulary`
               reads other calls.
    spelled:   Formulas in other operations that mean exactly this (`canonical`).

    In kernels (`emission`). None: The kernel emits the operation itself.
    plain:     A form in other operations.
    fast:      A form for 16 bits: |fast - exact| <= 2^-10 max(1, |x|) for x in [-30, 30].
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

    @functools.cached_property
    def results(self) -> dict[str, str]:
        """The kind of the result, by the kinds of the operands."""
        return {x.partition(">")[0]: x.partition(">")[2] for x in self.kinds}


def call(name: str, *operands: Expr | Literal) -> Expr:
    """Apply an operation, and return the term.

    It checks kinds, folds literals if the result does not depend on a dtype, and drops exact
    identities (x·1, x/1).

    Raises:
        ValueError: The operation is unknown, or does not accept operands of these kinds.
    """
    args = tuple(x if isinstance(x, Expr) else const(x) for x in operands)
    op = row_of(name)
    if op is None:
        raise ValueError(f"unknown operation {name!r} in a score program")
    kinds = "".join(a.kind for a in args)
    result = op.results.get(kinds)
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
    # In fp32, in fp64 and here: none overflows or vanishes, and integers fit into 64 bits.
    return all(is_ordinary(x.value) if x.kind == "f" else abs(x.value) < 1 << 63 for x in literals)


def is_ordinary(value: float) -> bool:
    """Whether a number is 0, or neither overflows nor is subnormal in fp32."""
    return value == 0.0 or 2.0**-126 <= abs(value) < 2.0**127


def postorder(roots: Iterable[Expr]) -> Iterator[Expr]:
    """Every distinct term under the roots, arguments first.

    It is iterative, so depth is no limit.
    """
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
    """Evaluate terms bottom-up, each once. For `params` of an operation, `apply` gets literals."""
    values: dict[Expr, T] = {}
    for node in postorder(roots):
        if not node.args:
            values[node] = leaf(node)
            continue
        row = row_of(node.op)
        first_param = len(node.args) - (row.params if row else 0)
        literals = [a.value for a in node.args[first_param:]]
        values[node] = apply(node, [values[a] for a in node.args[:first_param]] + literals)
    return [values[root] for root in roots]


def with_leaves(root: Expr, leaf: Callable[[Expr], Expr]) -> Expr:
    """The term with other leaves, as it is written: nothing is simplified."""
    return fold([root], leaf, lambda node, args: call(node.op, *args))[0]


# The rows of `ops`: operations of programs, and instructions that only kernels have. `ops` fills
# both.
OPS: dict[str, Op] = {}
INSTRUCTIONS: dict[str, Op] = {}


def row_of(name: str) -> Op | None:
    return OPS.get(name) or INSTRUCTIONS.get(name)


def differentiate(output: Expr, wrt: Sequence[Expr], seed: Expr = GRAD) -> list[Expr | None]:
    """The gradients of the leaves `wrt`, for the gradient `seed` of `output`; None stands for zero.

    Reverse mode on terms, by the vector-Jacobian products of their operations.
    """
    order = list(postorder([output]))
    vjps = {node: OPS[node.op].vjp for node in order if node.op in OPS}
    active: set[Expr] = set(wrt)
    for node, vjp in vjps.items():
        if vjp is not None and not active.isdisjoint(node.args):
            active.add(node)
    cotangents: dict[Expr, Expr] = {output: seed} if output in active else {}
    for node in reversed(order):
        g, vjp = cotangents.get(node), vjps.get(node)
        if g is None or vjp is None or node not in active:
            continue
        for arg, part in zip(node.args, vjp(g, node, *node.args), strict=False):
            if part is not None and arg in active:
                cotangents[arg] = cotangents[arg] + part if arg in cotangents else part
    return [cotangents.get(leaf) for leaf in wrt]


def element_kind(kind: str) -> str:
    """The kind of the elements of an operand that a leaf of this kind stands for."""
    return "f" if kind == "t" else kind


def dtype_of(kind: str, real: torch.dtype) -> torch.dtype:
    """The dtype of a kind, where real numbers are in `real`."""
    return {"f": real, "i": torch.int64, "b": torch.bool}[element_kind(kind)]


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """What scores and programs are computed in: fp64 for fp64, else fp32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def torch_apply(dtype: torch.dtype) -> Callable[[Expr, list[Any]], torch.Tensor]:
    """The plain-torch meaning of an operation, floats in `dtype`: the `apply` that `fold` wants."""

    def apply(node: Expr, values: list[Any]) -> torch.Tensor:
        result: torch.Tensor
        result = values[0].to(dtype) if node.op == "float" else OPS[node.op].torch(*values)
        return result

    return apply
