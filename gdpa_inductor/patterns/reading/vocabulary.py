"""ATen's point-wise functions as score expressions: one line each.

`POINTWISE[name]` has the rules for calls of `aten.<name>`; a name may end in an overload
(`key_of`). Where versions of torch differ there are several, and `contract` chooses one.

`rule(kind, *operands, **options)` gives the expression for one call. `kind` is that of the call's
result ("f", "i", "b"). Tensor operands and numbers are expressions; all else is as ATen has it.
What is not here, or raises `Unknown`, is refused; `host.functions` says why a known function
that is not point-wise is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...program.expr import OPS, Expr, call, const
from . import activations, clamps
from .clamps import Bound
from .kinds import Unknown, as_kind, literal, negation, real, where

Rule = Callable[..., Expr]
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def _function(name: str, *defaults: float) -> Rule:
    """A function of reals. Further operands are literals, which may have defaults."""

    def rule(kind: str, x: Expr, *params: Bound) -> Expr:
        pairs = itertools.zip_longest(params, defaults)
        return call(name, real(x), *(literal(value, default) for value, default in pairs))

    return rule


def _arithmetic(name: str, on_truth: str = "") -> Rule:
    """A binary operation in the kind of its result; of truth values the logical one `on_truth`."""

    def rule(kind: str, x: Expr, y: Expr, *, alpha: Expr | None = None) -> Expr:
        if kind == "b":
            if not on_truth or alpha is not None:
                raise Unknown(f"{name} of truth values")
            return call(on_truth, x, y)
        if alpha is not None:
            y = call("mul", as_kind(kind, y), as_kind(kind, alpha))
        return call(name, as_kind(kind, x), as_kind(kind, y))

    return rule


def _reversed_sub(kind: str, x: Expr, y: Expr, alpha: Expr | None = None) -> Expr:
    return _arithmetic("sub")(kind, y, x, alpha=alpha)


def _apply(name: str, operands: str = "") -> Rule:
    """An operation on operands of one kind: if none is named, that of the result."""
    return lambda kind, *args: call(name, *(as_kind(operands or kind, x) for x in args))


def _rounding(name: str) -> Rule:
    # Integers are whole.
    return lambda kind, x: call(name, real(x)) if kind == "f" else as_kind(kind, x)


def _sign(kind: str, x: Expr) -> Expr:
    x = as_kind(kind, x)
    if kind == "i":
        return call("where", call("lt", x, 0), -1, as_kind("i", call("gt", x, 0)))
    return call("sign", x) if kind == "f" else x


def _compare(name: str) -> Rule:
    """Operands meet in the larger of their kinds."""

    def rule(kind: str, x: Expr, y: Expr) -> Expr:
        common = max(x.kind, y.kind, key="bif".index)
        if common == "b" and name not in ("eq", "ne"):
            common = "i"
        return call(name, as_kind(common, x), as_kind(common, y))

    return rule


def _bitwise(name: str) -> Rule:
    def rule(kind: str, x: Expr, y: Expr) -> Expr:
        if kind == "i" and name == "and":
            return _low_bits(x, y)
        if kind != "b":
            raise Unknown("bitwise arithmetic of integers")
        return call(name, as_kind("b", x), as_kind("b", y))

    return rule


def _low_bits(x: Expr, y: Expr) -> Expr:
    # x & (2^k - 1) is x mod 2^k, of negative numbers too.
    x, y = (y, x) if x.is_const else (x, y)
    if not y.is_const or y.value < 0 or y.value & (y.value + 1):
        raise Unknown("bitwise arithmetic of integers")
    return call("mod", as_kind("i", x), int(y.value) + 1)


def _shift(name: str) -> Rule:
    # x >> k is the floor of x / 2^k, x << k is x · 2^k.
    def rule(kind: str, x: Expr, y: Expr) -> Expr:
        if kind != "i" or not y.is_const or not 0 <= literal(y) < 31:
            raise Unknown("a shift by what is no small number")
        return call(name, as_kind("i", x), 1 << int(literal(y)))

    return rule


def _towards_zero(quotient: bool) -> Rule:
    """Division of integers that rounds towards zero, or what it leaves over. No integer is negated:
    the least one has no opposite.
    """

    def rule(kind: str, x: Expr, y: Expr) -> Expr:
        if kind != "i" or not y.is_const or literal(y) <= 0:
            raise Unknown("division that rounds towards zero, by what is no positive integer")
        x, y = as_kind("i", x), as_kind("i", y)
        rest = call("mod", x, y)
        short = call("and", call("lt", x, 0), call("ne", rest, 0))
        if quotient:
            return call("add", call("floordiv", x, y), as_kind("i", short))
        return call("sub", rest, call("where", short, y, 0))

    return rule


def _not(kind: str, x: Expr) -> Expr:
    if kind != "b":
        raise Unknown("bitwise arithmetic of integers")
    return negation(as_kind("b", x))


def _div(kind: str, x: Expr, y: Expr, *, rounding_mode: str | None = None) -> Expr:
    if kind == "i" and rounding_mode == "floor":
        return call("floordiv", as_kind("i", x), as_kind("i", y))
    if rounding_mode == "trunc":
        return _towards_zero(True)(kind, x, y)
    if rounding_mode is not None:
        raise Unknown("division with rounding")
    return call("div", real(x), real(y))


def _integers(name: str) -> Rule:
    def rule(kind: str, x: Expr, y: Expr) -> Expr:
        if kind != "i":
            raise Unknown(f"{name} of reals")
        return call(name, as_kind("i", x), as_kind("i", y))

    return rule


def _pow(kind: str, x: Expr, y: Expr) -> Expr:
    if kind != "f":
        raise Unknown("a power of integers")
    if y.is_const:
        return call("pow", real(x), literal(y))
    if not x.is_const:
        raise Unknown("its exponent is no constant: it is a tensor, or varies from call to call")
    base = literal(x)
    if base == 1.0:
        return const(1.0)
    if base == 2.0:
        return call("exp2", real(y))
    if not 0.0 < base < math.inf:
        raise Unknown("a power of what is no positive number")
    return call("exp", real(y) * math.log(base))


def _square(kind: str, x: Expr) -> Expr:
    x = as_kind(kind, x)
    return x * x if kind == "i" else call("pow", x, 2.0)


def _lerp(kind: str, x: Expr, y: Expr, weight: Expr) -> Expr:
    # x + w (y - x) for |w| < 1/2, else y - (1 - w)(y - x), so that both ends are met exactly.
    x, y, w = real(x), real(y), real(weight)
    if w.is_const:
        near = abs(literal(w)) < 0.5
        return x + w * (y - x) if near else y - (y - x) * (1.0 - literal(w))
    is_near_x = call("lt", call("abs", w), 0.5)
    return call("where", is_near_x, x, y) + call("where", is_near_x, w, w - 1.0) * (y - x)


def _nan_to_num(
    kind: str, x: Expr, nan: Bound = None, posinf: Bound = None, neginf: Bound = None
) -> Expr:
    """With all three numbers: the greatest of a dtype are for the caller to fill in."""
    if kind != "f":
        return as_kind(kind, x)
    zero, high, low = literal(nan, 0.0), literal(posinf), literal(neginf)
    x = real(x)
    bounded = call("where", call("eq", x, math.inf), high, x)
    bounded = call("where", call("eq", x, -math.inf), low, bounded)
    return call("where", call("isnan", x), zero, bounded)


def _addcmul(kind: str, x: Expr, y: Expr, z: Expr, *, value: Expr | None = None) -> Expr:
    return real(x) + (const(1.0) if value is None else real(value)) * real(y) * real(z)


def _addcdiv(kind: str, x: Expr, y: Expr, z: Expr, *, value: Expr | None = None) -> Expr:
    raise Unknown("its gradient squares the denominator, which may overflow or vanish")


def _round(kind: str, x: Expr, *, decimals: Expr | None = None) -> Expr:
    if decimals is not None and literal(decimals) != 0:
        raise Unknown("rounding to decimals")
    return _rounding("round")(kind, x)


def _clamp_max(rule: Rule) -> Rule:
    return lambda kind, x, max: rule(kind, x, None, max)


# fmt: off
# Functions whose rows say how ATen names them need no rule here. A rule whose last bit may not be
# ATen's stands in REWORDED too.
RULES: dict[str, Rule | tuple[Rule, ...]] = {
    "add": _arithmetic("add", "or"), "sub": _arithmetic("sub"), "mul": _arithmetic("mul", "and"),
    "rsub": _reversed_sub, "div": _div, "neg": _apply("neg"), "abs": _apply("abs"), "pow": _pow,
    "square": _square,
    "reciprocal": lambda kind, x: 1.0 / real(x), "maximum": _arithmetic("maximum", "or"),
    "minimum": _arithmetic("minimum", "and"),
    "floor_divide": _integers("floordiv"), "remainder": _integers("mod"),
    "fmod": _towards_zero(False), "lerp": _lerp,
    "addcmul": _addcmul, "addcdiv": _addcdiv, "positive": lambda kind, x: x,
    "log2": lambda kind, x: call("log", real(x)) * (1.0 / math.log(2.0)),
    "log10": lambda kind, x: call("log", real(x)) * (1.0 / math.log(10.0)),
    "tan": lambda kind, x: call("sin", real(x)) / call("cos", real(x)),
    "relu": lambda kind, x: call("maximum", x, 0) if kind == "i" else call("relu", real(x)),
    "nan_to_num": _nan_to_num,
    "gelu": activations.gelu,
    "leaky_relu": _function("leaky_relu", 0.01), "elu": _function("elu", 1.0, 1.0, 1.0),
    "celu": activations.celu, "softplus": _function("softplus", 1.0, 20.0),
    "selu": lambda kind, x: call("elu", real(x), _SELU_ALPHA, _SELU_SCALE, 1.0),
    "hardtanh": activations.hardtanh,
    "relu6": lambda kind, x: call("hardtanh", real(x), 0.0, 6.0),
    "log_sigmoid_forward": activations.log_sigmoid,
    "softshrink": activations.softshrink, "hardshrink": activations.hardshrink,
    "threshold": activations.threshold, "_prelu_kernel": activations.prelu,
    "sign": _sign, "sgn": _sign, "floor": _rounding("floor"), "ceil": _rounding("ceil"),
    "trunc": _rounding("trunc"), "fix": _rounding("trunc"), "round": _round,
    "frac": lambda kind, x: real(x) - call("trunc", real(x)),
    "eq": _compare("eq"), "ne": _compare("ne"), "lt": _compare("lt"), "le": _compare("le"),
    "gt": _compare("gt"), "ge": _compare("ge"), "logical_and": _apply("and", "b"),
    "logical_or": _apply("or", "b"), "logical_xor": _apply("xor", "b"),
    "logical_not": lambda kind, x: negation(as_kind("b", x)), "bitwise_and": _bitwise("and"),
    "bitwise_or": _bitwise("or"), "bitwise_xor": _bitwise("xor"), "bitwise_not": _not,
    **dict.fromkeys(["bitwise_right_shift", "__rshift__"], _shift("floordiv")),
    **dict.fromkeys(["bitwise_left_shift", "__lshift__"], _shift("mul")),
    "__and__": _bitwise("and"), "__or__": _bitwise("or"), "__xor__": _bitwise("xor"),
    "isnan": _apply("isnan", "f"),
    "isinf": lambda kind, x: call("eq", call("abs", real(x)), math.inf),
    "isfinite": lambda kind, x: call("lt", call("abs", real(x)), math.inf), "where": where,
    "masked_fill": lambda kind, x, mask, fill: where(kind, mask, fill, x),
    # What functionalisation makes of `x.fill_(c)` and `x.zero_()`.
    "fill": lambda kind, x, fill: as_kind(kind, fill),
    "zero": lambda kind, x: as_kind(kind, const(0)),
    # Versions of torch differ: see `clamps`.
    "clamp": (clamps.open_, clamps.closed),
    "clamp_min": (clamps.open_, clamps.closed),
    "clamp_max": (_clamp_max(clamps.open_), _clamp_max(clamps.closed)),
    "clamp.Tensor": (clamps.shared, clamps.closed),
    "clamp_min.Tensor": (clamps.shared, clamps.closed),
    "clamp_max.Tensor": (_clamp_max(clamps.shared), _clamp_max(clamps.closed)),
}
# fmt: on


class _Vocabulary(Mapping[str, tuple[Rule, ...]]):
    def __getitem__(self, name: str) -> tuple[Rule, ...]:
        if name in RULES:
            rules = RULES[name]
            return rules if isinstance(rules, tuple) else (rules,)
        for op, row in OPS.items():
            if name in row.aten:
                return (_function(op),)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*RULES, *(name for row in OPS.values() for name in row.aten)]))

    def __len__(self) -> int:
        return len(list(iter(self)))


POINTWISE: Mapping[str, tuple[Rule, ...]] = _Vocabulary()


def key_of(name: str, overload: str) -> str:
    """The row of `POINTWISE` that a call of an overload belongs to."""
    return f"{name}.{overload}" if f"{name}.{overload}" in RULES else name


# Rules that compute reals in other words than ATen, so that the last bit may differ.
REWORDED = frozenset(["log2", "log10", "tan", "pow", "lerp", "addcmul", "log_sigmoid_forward"])

# fmt: off
# Tensors of one value: how to find it among the arguments of the call.
FILLED: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(["zeros", "zeros_like", "new_zeros"], lambda *args: 0),
    **dict.fromkeys(["ones", "ones_like", "new_ones"], lambda *args: 1),
    **dict.fromkeys(["full", "full_like"], lambda shape, fill, *args: fill),
    "new_full": lambda like, shape, fill, *args: fill, "scalar_tensor": lambda fill, *args: fill,
}
# fmt: on
