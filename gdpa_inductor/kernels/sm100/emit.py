"""From terms of a score program to CuTe code, inlined while the kernel is traced.

`PLAIN` gives every operation of `program.ops` in full accuracy, one line each. `FAST` replaces some
of them by the hardware's approximate functions, each within |fast - exact| <= 2^-10 max(1, |x|) for
x in [-30, 30]. Forms and reasons are those of lowerings/emit.py: a tanh is one pass of the
special-function unit per score, where ex2 and rcp are two.

    emit([weight, gradients.score], weight, leaf, fast=True)

writes several terms in one pass and shares what they have in common. Values are pairs of scores
(`values.py`); `leaf(node)` gives the value of s, g, b, h, n, m, an aux operand or a scalar.
"""

import functools
import math
from collections.abc import Callable, Sequence

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, cute

from ...program.expr import Expr, fold, is_ordinary, postorder
from ...program.ops.activations import GELU_ALPHA, GELU_BETA
from .values import (
    Product,
    add,
    choose,
    each,
    is_literal,
    multiply,
    negate,
    pair,
    select,
    subtract,
)

LOG2E, LN2 = math.log2(math.e), math.log(2.0)


def _unary(name: str, **how) -> Callable:
    function = getattr(cute.math, name)
    return each(lambda x: function(x, **how))


largest = each(lambda x, y: cute.arch.fmax(x, y, nan=True))
smallest = each(lambda x, y: cute.arch.fmin(x, y, nan=True))
tanh, exp2 = _unary("tanh", approx=True), _unary("exp2", approx=True, ftz=True)
log2 = each(lambda x: cute.math.log2(x, fastmath=True))
reciprocal = each(lambda x: cute.arch.rcp_approx(x))


def _extremum(of_floats: Callable, of_integers: Callable) -> Callable:
    """torch spreads NaN; integers have none."""

    def emit(x, y):
        return (of_floats if _is_float(x) and _is_float(y) else of_integers)(x, y)

    return emit


def _is_float(value) -> bool:
    if is_literal(value):
        return isinstance(value, float)
    return isinstance(value, Product) or isinstance(value.lanes[0], Float32)


def _arithmetic(of_floats: Callable, of_integers: Callable) -> Callable:
    """Floats in packed form, integers as they are."""
    lifted = each(of_integers)
    return lambda *xs: of_floats(*xs) if all(map(_is_float, xs)) else lifted(*xs)


@each
def _floor_divide(x, y):
    """Towards minus infinity, as Python and torch have it; the hardware truncates."""
    quotient, rest = _truncated(x, y)
    wrong = (rest != 0) & ((rest < 0) != (y < 0))
    return select(wrong, quotient - 1, quotient)


@each
def _remainder(x, y):
    """The sign of the divisor."""
    _, rest = _truncated(x, y)
    wrong = (rest != 0) & ((rest < 0) != (y < 0))
    return select(wrong, rest + y, rest)


def _truncated(x, y):
    kind = Int64 if isinstance(x, Int64) or isinstance(y, Int64) else Int32
    x, y = kind(x), kind(y)
    quotient = kind(cutlass._mlir.dialects.arith.divsi(x.ir_value(), y.ir_value()))
    return quotient, x - quotient * y


def _compare(operation: Callable) -> Callable:
    return each(operation)


def _through(dtype) -> Callable:
    """Round to a narrower float and back."""
    return each(lambda x: x.to(dtype).to(Float32))


@each
def _sign(x):
    zero = select(x < 0.0, Float32(-1.0), select(x > 0.0, Float32(1.0), Float32(0.0)))
    return select(x != x, x, zero)


def _power(x, exponent: float):
    if exponent in (1.0, 2.0, 3.0, 4.0):
        return functools.reduce(lambda y, _: multiply(y, x), range(int(exponent) - 1), x)
    return PLAIN["sqrt"](x) if exponent == 0.5 else each(cute.math.pow)(x, float(exponent))


def _greater(x, bound):
    return each(lambda a, b: a > b)(x, bound)


def _softplus(x, beta: float, threshold: float):
    scaled = multiply(x, float(beta))
    grown = multiply(PLAIN["log1p"](PLAIN["exp"](scaled)), 1.0 / beta)
    return choose(_greater(scaled, float(threshold)), x, grown)


def _elu(x, alpha: float, scale: float, slope: float):
    below = multiply(PLAIN["expm1"](multiply(x, float(slope))), float(alpha * scale))
    return choose(_greater(x, 0.0), multiply(x, float(scale)), below)


def _clamp(x, low: float, high: float):
    return smallest(largest(x, float(low)), float(high))


def gelu_argument(x):
    """x (β + αβ x²)"""
    x = pair(x)
    return multiply(x, add(multiply(multiply(x, x), GELU_BETA * GELU_ALPHA), GELU_BETA))


def _half(x, function: Callable, argument):
    """x/2 · (1 + function(argument)), one multiply-add after the function."""
    half = pair(multiply(x, 0.5))
    return add(multiply(half, function(argument)), half)


def _gelu(x):
    return _half(x, PLAIN["erf"], multiply(x, math.sqrt(0.5)))


def _divide(x, y):
    return (
        multiply(x, 1.0 / y)
        if is_literal(y) and y and math.log2(abs(y)).is_integer()
        else (each(lambda a, b: a / b)(x, y))
    )


def _sigmoid(x):
    one_more = add(PLAIN["exp"](negate(x)), 1.0)
    return each(lambda a: Float32(1.0) / a)(one_more)


def _integer(x):
    """Truncation towards zero, as torch's cast."""
    return each(lambda a: Int64(a))(x)


def _gate(x):
    """clamp(x/6 + 1/2, 0, 1)"""
    return _clamp(add(multiply(x, 1.0 / 6.0), 0.5), 0.0, 1.0)


# fmt: off
PLAIN: dict[str, Callable] = {
    "add": _arithmetic(add, lambda x, y: x + y), "sub": _arithmetic(subtract, lambda x, y: x - y),
    "mul": _arithmetic(multiply, lambda x, y: x * y), "neg": _arithmetic(negate, lambda x: -x),
    "abs": each(lambda x: select(x < 0, -x, x) if not isinstance(x, Float32) else
    cute.math.absf(x)), "div": _divide, "pow": _power, "maximum": _extremum(largest, each(lambda x,
    y: select(x < y, y, x))), "minimum": _extremum(smallest, each(lambda x, y: select(x < y, x,
    y))), "clamp_min": lambda x, low: largest(x, float(low)), "clamp_max": lambda x, high:
    smallest(x, float(high)), "floordiv": _floor_divide, "mod": _remainder, **{name: _unary(name)
    for name in (
        "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log1p", "sin", "cos", "tanh", "erf",
        "floor", "ceil", "trunc", "isnan",
    )},
    "sigmoid": _sigmoid,
    "relu": lambda x: largest(x, 0.0),
    "silu": lambda x: multiply(x, _sigmoid(x)),
    "gelu": _gelu,
    "gelu_tanh": lambda x: _half(x, PLAIN["tanh"], gelu_argument(x)),
    "hardswish": lambda x: multiply(x, _gate(x)),
    "hardsigmoid": _gate,
    "leaky_relu": lambda x, slope: choose(_greater(x, 0.0), x, multiply(x, float(slope))),
    "elu": _elu,
    "softplus": _softplus,
    "mish": lambda x: multiply(x, PLAIN["tanh"](_softplus(x, 1.0, 20.0))),
    "hardtanh": _clamp,
    "sign": _sign,
    "round": _unary("roundeven"),
    "bf16": _through(cutlass.BFloat16),
    "f16": _through(cutlass.Float16),
    "detach": lambda x: x,
    "eq": _compare(lambda x, y: x == y),
    "ne": _compare(lambda x, y: x != y),
    "lt": _compare(lambda x, y: x < y),
    "le": _compare(lambda x, y: x <= y),
    "gt": _compare(lambda x, y: x > y),
    "ge": _compare(lambda x, y: x >= y),
    "and": each(lambda x, y: x & y),
    "or": each(lambda x, y: x | y),
    "xor": each(lambda x, y: x != y),
    "not": each(lambda x: select(x, Boolean(False), Boolean(True))),
    "where": choose,
    "float": each(lambda x: Float32(x)),
    "int": _integer,
    "bool": each(lambda x: x != 0),
}
# fmt: on


def _has_inverse(y) -> bool:
    """A literal whose inverse is an ordinary number too."""
    return is_literal(y) and bool(y) and is_ordinary(y) and is_ordinary(1.0 / y)


def _fast_softplus(x, beta: float, threshold: float):
    scaled = multiply(x, float(beta))
    grown = multiply(log2(add(exp2(multiply(scaled, LOG2E)), 1.0)), LN2 / beta)
    return choose(_greater(scaled, float(threshold)), x, grown)


def _fast_mish(x):
    """tanh(log(1+e)) = e(e+2) / (e(e+2) + 2), e = exp(x); it is 1 in fp32 beyond 20."""
    e = exp2(multiply(smallest(x, 20.0), LOG2E))
    grown = pair(multiply(e, add(e, 2.0)))
    return multiply(x, multiply(grown, reciprocal(add(grown, 2.0))))


FAST: dict[str, Callable] = {
    "div": lambda x, y: multiply(x, 1.0 / y) if _has_inverse(y) else PLAIN["div"](x, y),
    "tanh": tanh,
    "exp": lambda x: exp2(multiply(x, LOG2E)),
    "exp2": exp2,
    "sigmoid": lambda x: reciprocal(add(exp2(multiply(x, -LOG2E)), 1.0)),
    "silu": lambda x: _half(x, tanh, multiply(x, 0.5)),
    "gelu_tanh": lambda x: _half(x, tanh, gelu_argument(x)),
    "softplus": _fast_softplus,
    "mish": _fast_mish,
}


def _shared_tanh(x):
    """The sigmoid whose tanh a silu of the same x has already paid for."""
    return add(multiply(tanh(multiply(x, 0.5)), 0.5), 0.5)


def emit(roots: Sequence[Expr], weight: Expr, leaf: Callable, fast: bool) -> list:
    """The Values of `roots`, terms of the program `weight` or of its derivative.

    leaf(node): the Value of a leaf that is no constant.
    """
    table = {**PLAIN, **FAST} if fast else PLAIN
    gated = {node.args[0] for node in postorder([weight]) if node.op == "silu"}

    def apply(node: Expr, values: list):
        if fast and node.op == "sigmoid" and node.args[0] in gated:
            return _shared_tanh(values[0])
        return table[node.op](*values)

    return fold(roots, lambda node: node.value if node.is_const else leaf(node), apply)
