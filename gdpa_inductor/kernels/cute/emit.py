"""Write the terms of a score program as CuTe code, inlined while a kernel is traced.

`PLAIN` has one line for each operation that the DSL knows. Other operations are first rewritten
into these (`program/emission.py`), fp16 and bf16 with approximate instructions.
lowerings/triton/emit.py says why silu and tanh-gelu are written with tanh.

    values_of(written([weight, gradients.score], weight, fast=True), leaf)

writes several terms in one pass, and computes common parts once. Values are pairs of scores
(`values.py`). `leaf(node)` gives the value of s, g, an index, an aux operand or a scalar.
"""

import math
from collections.abc import Callable, Sequence

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, cute

from ...program.emission import emitted
from ...program.expr import Expr, fold
from ...program.fast import gated
from .values import (
    Pair,
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


def _unary(name: str, **how) -> Callable:
    function = getattr(cute.math, name)
    return each(lambda x: function(x, **how))


largest = each(lambda x, y: cute.arch.fmax(x, y, nan=True))
smallest = each(lambda x, y: cute.arch.fmin(x, y, nan=True))


def _extremum(of_floats: Callable, of_integers: Callable) -> Callable:
    """The larger or the smaller of two. Floats propagate NaN, as in torch; integers have none."""

    def emit(x, y):
        return (of_floats if _is_float(x) and _is_float(y) else of_integers)(x, y)

    return emit


def _is_float(value) -> bool:
    if is_literal(value):
        return isinstance(value, float)
    return isinstance(value, Product) or isinstance(value.lanes[0], Float32)


def _arithmetic(of_floats: Callable, of_integers: Callable) -> Callable:
    """Packed instructions for floats, lane by lane for integers."""
    lifted = each(of_integers)
    return lambda *xs: of_floats(*xs) if all(map(_is_float, xs)) else lifted(*xs)


@each
def _floor_divide(x, y):
    """Division that rounds down, as in Python and torch. The hardware truncates."""
    quotient, rest = _truncated(x, y)
    wrong = (rest != 0) & ((rest < 0) != (y < 0))
    return select(wrong, quotient - 1, quotient)


@each
def _remainder(x, y):
    """The remainder with the sign of the divisor, as in Python and torch."""
    _, rest = _truncated(x, y)
    wrong = (rest != 0) & ((rest < 0) != (y < 0))
    return select(wrong, rest + y, rest)


def _truncated(x, y):
    kind = Int64 if isinstance(x, Int64) or isinstance(y, Int64) else Int32
    x, y = kind(x), kind(y)
    quotient = kind(cutlass._mlir.dialects.arith.divsi(x.ir_value(), y.ir_value()))
    return quotient, x - quotient * y


def _through(dtype) -> Callable:
    return each(lambda x: x.to(dtype).to(Float32))


def _through_bf16(x):
    """Round both lanes by one instruction. That of a single number is as slow as a special
    function.
    """
    x = pair(x)
    if x.uniform:
        return _through(cutlass.BFloat16)(x)
    lanes = cute.make_rmem_tensor(2, Float32)
    halves = cute.make_rmem_tensor(2, cutlass.BFloat16)
    lanes[0], lanes[1] = x.lanes
    halves.store(lanes.load().to(cutlass.BFloat16))
    # A number in fp32 begins with that in bf16. Read one by one, they would be rounded one by one.
    word, words = cute.recast_tensor(halves, Int32)[0], cute.recast_tensor(lanes, Int32)
    words[0], words[1] = word << 16, word & -65536
    return Pair(lanes[0], lanes[1])


def _divide(x, y):
    """A quotient. Division by a power of two becomes a product, which is exact too."""
    if is_literal(y) and y and math.log2(abs(y)).is_integer():
        return multiply(x, 1.0 / y)
    return each(lambda a, b: a / b)(x, y)


# fmt: off
PLAIN: dict[str, Callable] = {
    "add": _arithmetic(add, lambda x, y: x + y),
    "sub": _arithmetic(subtract, lambda x, y: x - y),
    "mul": _arithmetic(multiply, lambda x, y: x * y),
    "div": _divide,
    "neg": _arithmetic(negate, lambda x: -x),
    "abs": each(lambda x: cute.math.absf(x) if isinstance(x, Float32) else select(x < 0, -x, x)),
    "power": lambda x, exponent: each(cute.math.pow)(x, float(exponent)),
    "maximum": _extremum(largest, each(lambda x, y: select(x < y, y, x))),
    "minimum": _extremum(smallest, each(lambda x, y: select(x < y, x, y))),
    "floordiv": _floor_divide,
    "mod": _remainder,
    **{name: _unary(name) for name in (
        "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log1p", "sin", "cos", "tanh", "erf",
        "floor", "ceil", "trunc", "isnan",
    )},
    "round": _unary("roundeven"),
    "bf16": _through_bf16,
    "f16": _through(cutlass.Float16),
    "eq": each(lambda x, y: x == y),
    "ne": each(lambda x, y: x != y),
    "lt": each(lambda x, y: x < y),
    "le": each(lambda x, y: x <= y),
    "gt": each(lambda x, y: x > y),
    "ge": each(lambda x, y: x >= y),
    "and": each(lambda x, y: x & y),
    "or": each(lambda x, y: x | y),
    "xor": each(lambda x, y: x != y),
    "not": each(lambda x: select(x, Boolean(False), Boolean(True))),
    "where": choose,
    "float": each(lambda x: Float32(x)),
    "int": each(lambda x: Int64(x)),  # truncation towards zero, as torch's cast
    "bool": each(lambda x: x != 0),
    "lookup": lambda table, place: table.look_up(place),
    "tanh_approx": _unary("tanh", approx=True),
    "exp2_approx": _unary("exp2", approx=True, ftz=True),
    "log2_approx": each(lambda x: cute.math.log2(x, fastmath=True)),
    "rcp_approx": each(lambda x: cute.arch.rcp_approx(x)),
}
# fmt: on


def written(roots: Sequence[Expr], weight: Expr, fast: bool) -> list[Expr]:
    """Terms of the program `weight` or of its derivative, in the operations of `PLAIN`."""
    forms = [gated(root, weight) for root in roots] if fast else roots
    return emitted(forms, PLAIN, fast)


def values_of(roots: Sequence[Expr], leaf: Callable) -> list:
    """The Values of terms that `written` gave.

    leaf: Gives the Value of a leaf that is not a constant.
    """
    return fold(
        roots,
        lambda node: node.value if node.is_const else leaf(node),
        lambda node, values: PLAIN[node.op](*values),
    )
