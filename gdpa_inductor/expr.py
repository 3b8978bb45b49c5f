"""Expressions over one attention score: the terms a score program is made of.

An `Expr` is an immutable, interned node of a directed acyclic graph: equal terms are the same
object, so common subexpressions are shared by construction. `OPS` is the whole vocabulary, one line
per operation: the kinds it accepts, the plain-torch function that defines it, and its
vector-Jacobian product in the same vocabulary. Nothing outside this table can appear in a program.
Kernels emit the operations; they do not redefine them.

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
    arguments are literals.

    `vjp(g, y, *args)` returns one cotangent per argument, None where it is zero.
    """

    kinds: tuple[str, ...]
    torch: Callable[..., torch.Tensor]
    vjp: Callable[..., tuple[Expr | None, ...]] | None = None
    params: int = 0

    def result_kind(self, given: str) -> str | None:
        for signature in self.kinds:
            accepted, result = signature.split(">")
            if accepted == given:
                return result
        return None


def call(name: str, *operands: Expr | Literal) -> Expr:
    """Apply an operation: checks kinds, folds literals, drops exact identities (x·1, x/1).

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
            return const(_FOLDS[name](*(a.value for a in args)))
        except (ArithmeticError, ValueError):
            pass
    return Expr(name, args, None, result)


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


def differentiate(output: Expr, wrt: Sequence[Expr], seed: Expr = GRAD) -> list[Expr | None]:
    """Reverse mode: the cotangents of the leaves `wrt` for the cotangent `seed` of `output`; None
    where zero.
    """
    order = list(postorder([output]))
    active: set[Expr] = set(wrt)
    for node in order:
        op = OPS.get(node.op)
        if op is not None and op.vjp is not None and any(a in active for a in node.args):
            active.add(node)
    cotangents: dict[Expr, Expr] = {output: seed} if output in active else {}
    for node in reversed(order):
        g, op = cotangents.get(node), OPS.get(node.op)
        if g is None or op is None or op.vjp is None or node not in active:
            continue
        for arg, part in zip(node.args, op.vjp(g, node, *node.args), strict=False):
            if part is not None and arg in active:
                cotangents[arg] = cotangents[arg] + part if arg in cotangents else part
    return [cotangents.get(leaf) for leaf in wrt]


def _where(c: Expr, x: Expr | Literal, y: Expr | Literal) -> Expr:
    return call("where", c, x, y)


def _keep(g: Expr, condition: Expr) -> Expr:
    return _where(condition, g, 0.0)


def _square(x: Expr) -> Expr:
    return x * x


def d_sigmoid(g: Expr, y: Expr, _x: Expr) -> tuple[Expr]:
    return (g * (y * (1.0 - y)),)


def d_silu(g: Expr, _y: Expr, x: Expr) -> tuple[Expr]:
    t = call("sigmoid", x)
    return (g * (t * (1.0 + x * (1.0 - t))),)


def d_gelu(g: Expr, _y: Expr, x: Expr) -> tuple[Expr]:
    cdf = 0.5 * (1.0 + call("erf", x * math.sqrt(0.5)))
    pdf = call("exp", x * x * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))
    return (g * (cdf + x * pdf),)


GELU_BETA, GELU_ALPHA = math.sqrt(2.0 / math.pi), 0.044715


def gelu_tanh_argument(x: Expr) -> Expr:
    """u of gelu_tanh(x) = x/2 · (1 + tanh u)."""
    return x * (GELU_BETA + (GELU_BETA * GELU_ALPHA) * _square(x))


def d_gelu_tanh(g: Expr, _y: Expr, x: Expr) -> tuple[Expr]:
    t = call("tanh", gelu_tanh_argument(x))
    slope = GELU_BETA + (3.0 * GELU_BETA * GELU_ALPHA) * _square(x)
    return (g * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope),)


def d_hardswish(g: Expr, _y: Expr, x: Expr) -> tuple[Expr]:
    outer = _where(call("lt", x, 3.0), g * (x * (1.0 / 3.0) + 0.5), g)
    return (_where(call("le", x, -3.0), 0.0, outer),)  # not g · 0, which g may make NaN


def _within(x: Expr, low: Expr | Literal, high: Expr | Literal) -> Expr:
    return call("and", call("gt", x, low), call("lt", x, high))


def d_hardsigmoid(g: Expr, _y: Expr, x: Expr) -> tuple[Expr]:
    return (_keep(g * (1.0 / 6.0), _within(x, -3.0, 3.0)),)


def d_hardtanh(g: Expr, _y: Expr, x: Expr, low: Expr, high: Expr) -> tuple[Expr | None, ...]:
    return (_keep(g, _within(x, low, high)), None, None)


def d_leaky_relu(g: Expr, _y: Expr, x: Expr, slope: Expr) -> tuple[Expr | None, ...]:
    return (_where(call("gt", x, 0.0), g, g * slope), None)


def d_erf(g: Expr, _y: Expr, x: Expr) -> tuple[Expr]:
    return (g * (call("exp", -(x * x)) * (2.0 / math.sqrt(math.pi))),)


def d_where(g: Expr, _y: Expr, c: Expr, _x: Expr, _z: Expr) -> tuple[Expr | None, ...]:
    return (None, _keep(g, c), _where(c, 0.0, g))


def _d_clamp(inside: str) -> Callable[..., tuple[Expr | None, ...]]:
    """torch's clamp passes the gradient at the bound itself."""
    return lambda g, y, x, bound: (_keep(g, call(inside, x, bound)), None)


def d_elu(g: Expr, _y: Expr, x: Expr, alpha: Expr, scale: Expr, slope: Expr) -> tuple[Expr]:
    a, c, k = _floats(alpha, scale, slope)
    return (_where(call("le", x, 0.0), g * (a * c * k) * call("exp", x * k), g * c),)


def d_softplus(g: Expr, _y: Expr, x: Expr, beta: Expr, threshold: Expr) -> tuple[Expr]:
    b, t = _floats(beta, threshold)
    return (_where(call("gt", x * b, t), g, g * call("sigmoid", x * b)),)


def d_mish(g: Expr, _y: Expr, x: Expr) -> tuple[Expr]:
    t, s = call("tanh", call("softplus", x, 1.0, 20.0)), call("sigmoid", x)
    return (g * (t + x * s * (1.0 - t * t)),)


def d_pow(g: Expr, _y: Expr, x: Expr, exponent: Expr) -> tuple[Expr | None]:
    (e,) = _floats(exponent)
    if e == 0.0:
        return (None,)
    return (g * (e * x if e == 2.0 else e * call("pow", x, e - 1.0)),)


def _d_extremum(compare: str) -> Callable[..., tuple[Expr, Expr]]:
    """torch.maximum and minimum: the winner takes the gradient, ties share it equally."""

    def vjp(g: Expr, _y: Expr, x: Expr, z: Expr) -> tuple[Expr, Expr]:
        half, tie = g * 0.5, call("eq", x, z)
        return (
            _where(tie, half, _keep(g, call(compare, x, z))),
            _where(tie, half, _keep(g, call(compare, z, x))),
        )

    return vjp


def _floats(*literals: Expr) -> list[float]:
    return [float(x.value) for x in literals if x.value is not None]


def _through(g: Expr, _y: Expr, _x: Expr) -> tuple[Expr]:
    return (g,)


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
    "add": Op(_ARITH2, torch.add, lambda g, y, x, z: (g, g)),
    "sub": Op(_ARITH2, torch.sub, lambda g, y, x, z: (g, -g)),
    "mul": Op(_ARITH2, torch.mul, lambda g, y, x, z: (g * z, g * x)),
    "div": Op(_F2, torch.div, lambda g, y, x, z: (g / z, -(g * (y / z)))),
    "neg": Op(_ARITH1, torch.neg, lambda g, y, x: (-g,)),
    "abs": Op(_ARITH1, torch.abs, lambda g, y, x: (g * call("sign", x),)),
    "pow": Op(_F2, torch.pow, d_pow, params=1),
    "maximum": Op(_ARITH2, torch.maximum, _d_extremum("gt")),
    "minimum": Op(_ARITH2, torch.minimum, _d_extremum("lt")),
    "clamp_min": Op(_F2, lambda x, c: x.clamp(min=c), _d_clamp("ge"), params=1),
    "clamp_max": Op(_F2, lambda x, c: x.clamp(max=c), _d_clamp("le"), params=1),
    "floordiv": Op(("ii>i",), lambda x, z: torch.div(x, z, rounding_mode="floor")),
    "mod": Op(("ii>i",), torch.remainder),
    # elementary functions
    "sqrt": Op(_F1, torch.sqrt, lambda g, y, x: (g / (2.0 * y),)),
    "rsqrt": Op(_F1, torch.rsqrt, lambda g, y, x: (g * (-0.5 * (y * y * y)),)),
    "exp": Op(_F1, torch.exp, lambda g, y, x: (g * y,)),
    "exp2": Op(_F1, torch.exp2, lambda g, y, x: (g * (y * math.log(2.0)),)),
    "expm1": Op(_F1, torch.expm1, lambda g, y, x: (g * (y + 1.0),)),
    "log": Op(_F1, torch.log, lambda g, y, x: (g / x,)),
    "log1p": Op(_F1, torch.log1p, lambda g, y, x: (g / (x + 1.0),)),
    "sin": Op(_F1, torch.sin, lambda g, y, x: (g * call("cos", x),)),
    "cos": Op(_F1, torch.cos, lambda g, y, x: (-(g * call("sin", x)),)),
    "tanh": Op(_F1, torch.tanh, lambda g, y, x: (g * (1.0 - y * y),)),
    "erf": Op(_F1, torch.erf, d_erf),
    # activations
    "sigmoid": Op(_F1, torch.sigmoid, d_sigmoid),
    "relu": Op(_F1, torch.relu, lambda g, y, x: (_where(call("le", x, 0.0), 0.0, g),)),
    "silu": Op(_F1, F.silu, d_silu),
    "gelu": Op(_F1, F.gelu, d_gelu),
    "gelu_tanh": Op(_F1, _gelu_tanh, d_gelu_tanh),
    "hardswish": Op(_F1, F.hardswish, d_hardswish),
    "hardsigmoid": Op(_F1, F.hardsigmoid, d_hardsigmoid),
    "leaky_relu": Op(_F2, F.leaky_relu, d_leaky_relu, params=1),
    "elu": Op(("ffff>f",), torch.ops.aten.elu.default, d_elu, params=3),
    "softplus": Op(("fff>f",), F.softplus, d_softplus, params=2),
    "mish": Op(_F1, F.mish, d_mish),
    "hardtanh": Op(("fff>f",), F.hardtanh, d_hardtanh, params=2),
    # rounding: no gradient but through the narrowing casts, as autograd has it
    "sign": Op(_F1, torch.sign),
    "floor": Op(_F1, torch.floor),
    "ceil": Op(_F1, torch.ceil),
    "round": Op(_F1, torch.round),
    "trunc": Op(_F1, torch.trunc),
    "bf16": Op(_F1, _round_to(torch.bfloat16), lambda g, y, x: (call("bf16", g),)),
    "f16": Op(_F1, _round_to(torch.float16), lambda g, y, x: (call("f16", g),)),
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
    "where": Op(("bff>f", "bii>i"), torch.where, d_where),
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
