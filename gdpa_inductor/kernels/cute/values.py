"""Arithmetic on pairs of neighbouring scores: one instruction computes two fp32 lanes.

Blackwell has packed add, mul and fma for two fp32 registers. A Value is one of three:

    Literal    A Python number.
    Pair       The same quantity of two neighbouring scores. If it is equal for both, such as a row
               index or a scalar, it holds the same object twice, and is computed once.
    Product    A multiplication that is not emitted yet. A sum that uses it becomes one fma.

Constant factors are multiplied while tracing. So for x = s·c, x/2 costs no more than x.
"""

import functools
import math
from collections.abc import Callable

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, Uint32, Uint64, cute
from cutlass.base_dsl.arch import Arch
from cutlass.cutlass_dsl import BaseDSL, Numeric, select_

from .config import TableLayout

LIMIT = 1 << 31
DTYPES = {
    "float32": cutlass.Float32,
    "float16": cutlass.Float16,
    "bfloat16": cutlass.BFloat16,
    "float64": cutlass.Float64,
    "bool": cutlass.Uint8,
    "uint8": cutlass.Uint8,
    "int8": cutlass.Int8,
    "int16": cutlass.Int16,
    "int32": cutlass.Int32,
    "int64": cutlass.Int64,
}


class Fixed:
    """A base for objects that loops and branches of a traced kernel use but do not change.

    Such an object has no MLIR values that a loop would have to carry.
    """

    def __extract_mlir_values__(self):
        return []

    def __new_from_mlir_values__(self, values):
        return self

    def __get_mlir_types__(self):
        return []


class Pair:
    """Two lanes of one type: Float32, Int32, Int64 or Boolean."""

    __slots__ = ("lanes",)

    def __init__(self, first, second=None):
        self.lanes = (first, first if second is None else second)

    @property
    def uniform(self) -> bool:
        return self.lanes[0] is self.lanes[1]


class Bytes(Pair):
    """Two neighbouring bytes of a word, without a sign. first: The number of the first."""

    __slots__ = ("first", "word")

    def __init__(self, lanes: Pair, word, first: int) -> None:
        super().__init__(*lanes.lanes)
        self.word, self.first = word, first

    def scaled(self, factor: int, start) -> tuple:
        """Both bytes times a factor of at most 255, plus `start`, by an instruction each."""
        code = "dp4a.u32.u32 {$w0}, {$r0}, {$r1}, {$r2};"
        return tuple(
            cute.arch.inline_ptx(
                code,
                write_only_types=[Int32],
                read_only_args=[self.word, Int32(factor << 8 * (self.first + lane)), start],
            )
            for lane in range(2)
        )


class Product:
    """x · y, not emitted yet. y may be a Python float."""

    __slots__ = ("_pair", "x", "y")

    def __init__(self, x: Pair, y):
        self.x, self.y = x, y
        self._pair: Pair | None = None

    def written(self) -> Pair:
        if self._pair is None:
            self._pair = packed(cute.arch.mul_packed_f32x2, self.x, pair(self.y))
        return self._pair


class Table:
    """A table that is looked up. pointers: To its first element, for both scores."""

    __slots__ = ("checked", "pointers", "size", "stride")

    def __init__(self, pointers: Pair, lookup: TableLayout, unchecked: bool) -> None:
        self.pointers, self.checked = pointers, not unchecked
        self.size, self.stride = lookup.size, lookup.stride

    def look_up(self, place) -> Pair:
        return each(self.element)(self.pointers, place)

    def element(self, pointer, place):
        """The element as Float32. NaN if the place is outside."""
        if not self.checked:
            return self.read(pointer, place)
        unsigned = Uint64 if isinstance(place, Int64) else Uint32
        inside = unsigned(place) < unsigned(self.size)  # a negative place is a large one
        value = self.read(pointer, select(inside, place, 0))
        return select(inside, value, Float32(math.nan))

    def read(self, pointer, place):
        own = pointer + Int64(place) * self.stride
        return Float32(cute.make_tensor(own, cute.make_layout(1))[0])


def literal(value):
    if isinstance(value, bool):
        return Boolean(value)
    if isinstance(value, int):
        return Int32(value) if -LIMIT <= value < LIMIT else Int64(value)
    return Float32(value)


def pair(value) -> Pair:
    if isinstance(value, Pair):
        return value
    return value.written() if isinstance(value, Product) else Pair(literal(value))


def is_literal(value) -> bool:
    return isinstance(value, (bool, int, float))


_BY_LANE = {
    cute.arch.add_packed_f32x2: lambda x, y: x + y,
    cute.arch.mul_packed_f32x2: lambda x, y: x * y,
    cute.arch.fma_packed_f32x2: cute.math.fma,
}


def packed(instruction: Callable, *operands: Pair) -> Pair:
    """One packed instruction, or two plain ones where the GPU has none (before sm_100)."""
    if BaseDSL._get_dsl().get_arch_enum() < Arch.sm_100:
        return each(_BY_LANE[instruction])(*operands)
    return Pair(*instruction(*(x.lanes for x in operands)))


def each(function: Callable) -> Callable:
    """Make a function of Values from a function of registers.

    It is called for each lane, or once if both lanes of all arguments are equal.
    """

    @functools.wraps(function)
    def lifted(*values) -> Pair:
        pairs = [pair(value) for value in values]
        first = function(*(x.lanes[0] for x in pairs))
        if all(x.uniform for x in pairs):
            return Pair(first)
        return Pair(first, function(*(x.lanes[1] for x in pairs)))

    return lifted


def add(x, y):
    """x + y of floats. If one is a product that is not emitted, this is one fma."""
    if is_literal(x) and is_literal(y):
        return x + y
    for product, other in ((x, y), (y, x)):
        if isinstance(product, Product) and product._pair is None:
            return packed(cute.arch.fma_packed_f32x2, product.x, pair(product.y), pair(other))
    return packed(cute.arch.add_packed_f32x2, pair(x), pair(y))


def multiply(x, y):
    """x · y of floats, emitted when it is used."""
    if is_literal(x) and is_literal(y):
        return x * y
    if is_literal(x):
        x, y = y, x
    if is_literal(y):
        if isinstance(x, Product) and is_literal(x.y) and _normal(x.y * y):
            return Product(x.x, x.y * y)
        return Product(pair(x), float(y))
    return Product(pair(x), pair(y))


def negate(x):
    if isinstance(x, Product) and not is_literal(x.y):
        return Product(negated(x.x), x.y)
    return -x if is_literal(x) else multiply(x, -1.0)


negated = each(lambda x: -x)


def subtract(x, y):
    return add(x, negate(y))


def _normal(value: float) -> bool:
    """Whether two constants may be multiplied while tracing."""
    # The result must not overflow, and must not lose bits that two separate steps would keep.
    return math.isfinite(value) and (value == 0.0 or 2.0**-120 < abs(value) < 2.0**120)


def select(condition, x, y):
    """condition ? x : y. x and y are registers, or a register and a Python number of its type."""
    kind = type(x) if isinstance(x, Numeric) else type(y)
    if isinstance(x, Int64) or isinstance(y, Int64):
        kind = Int64
    return kind(select_(condition, kind(x), kind(y)))


def hidden(step):
    """Zero in each step, which the compiler does not know.

    What depends on it is computed in each step. If it were the same in all of them, it would be
    computed before the loop, and kept in registers that may be needed.
    """
    return Int32(Uint32(step) >> 31)


def smaller(x, y):
    return select(x < y, x, y)


def larger(x, y):
    return select(x < y, y, x)


def choose(condition, x, y):
    if is_literal(condition):
        return x if condition else y
    return each(select)(condition, x, y)
