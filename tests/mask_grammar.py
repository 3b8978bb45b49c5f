"""Random mask programs.

    condition = index < <= > >= == != index | real < <= > >= real | condition and or xor condition
              | not condition | an operand of truth values | truth(index)
    index     = b | h | q_idx | kv_idx | a literal | i0 | an operand of integers [b] [h] [b,q_idx]
              | index + - index | index * // % literal | -index | |index|
              | min max (index, index) | where(condition, index, index) | 0 or 1 of a condition
              | the integer part of a real
    real      = an index | real + - real | real * / literal | the square of a real | |real| | -real
              | min max | a clamp | floor ceil round trunc sign | exp log sqrt tanh
              | where(condition, real, real)
    weight    = one of `SPELLINGS` with the condition as its mask

`SPELLINGS` are what models write: a mask after the activation or before it, by choice or by
arithmetic. Each says for which terms a masked score gives exactly 0.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gdpa_inductor.program.expr import AXES, INDEX, SCORE, Expr, aux, call, const, scalar
from gdpa_inductor.program.score_mod import Aux

LENGTHS, OF_HEAD, TIMES, PADDING, WHOLE, SCALE, TABLE = range(7)
AUX = (
    Aux("i", ("b",)),
    Aux("i", ("h",)),
    Aux("i", ("b", "q_idx")),
    Aux("b", ("b", "kv_idx")),
    Aux("b", ("b",)),
    Aux("f", ("h",)),
    Aux("f", ("q_idx", "kv_idx")),
)


INDICES = [INDEX[axis] for axis in (*AXES, *AXES[2:], *AXES[2:])]  # positions more often


def where(c: Expr, x: Expr | float, y: Expr | float) -> Expr:
    return call("where", c, x, y)


def act(name: str, x: Expr) -> Expr:
    return call(name, x)


S = SCORE
_MASK = Callable[[Expr], Expr]


@dataclass(frozen=True)
class Spelling:
    """weight: of the condition under which a score counts. vanishes: masked scores weigh 0."""

    weight: _MASK
    vanishes: bool = True


def real(c: Expr) -> Expr:
    return call("float", c)


def no(c: Expr) -> Expr:
    return call("not", c)


# fmt: off
SPELLINGS: dict[str, Spelling] = {
    "where": Spelling(lambda c: where(c, act("silu", S), 0.0)),
    "filled": Spelling(lambda c: where(no(c), 0.0, act("gelu", S))),
    "times": Spelling(lambda c: act("silu", S) * real(c)),
    "times, then divided": Spelling(lambda c: act("silu", S) * real(c) / real(scalar(0))),
    "times integers": Spelling(lambda c: act("gelu_tanh", S) * real(call("int", c))),
    "times chosen": Spelling(lambda c: act("silu", S) * real(where(c, const(1), const(0)))),
    "times complement": Spelling(lambda c: act("silu", S) * (1.0 - real(no(c)))),
    "squared": Spelling(lambda c: act("relu", S) * act("relu", S) * real(c)),
    "scaled per head": Spelling(lambda c: act("silu", S) * aux(SCALE) * real(c)),
    "with a table": Spelling(lambda c: act("silu", S + aux(TABLE)) * real(c)),
    "zero before": Spelling(lambda c: act("silu", where(c, S, 0.0))),
    "-inf before relu": Spelling(lambda c: act("relu", where(c, S, -math.inf))),
    "-inf before sigmoid": Spelling(lambda c: act("sigmoid", where(no(c), -math.inf, S))),
    "-inf added": Spelling(lambda c: act("sigmoid", S + where(c, 0.0, -math.inf))),
    "-inf before exp": Spelling(lambda c: act("exp", where(c, S, -math.inf))),
    "-1e9 before sigmoid": Spelling(lambda c: act("sigmoid", where(c, S, -1e9))),
    "-1e9 before silu": Spelling(lambda c: act("silu", where(c, S, -1e9))),
    "least before gelu": Spelling(lambda c: act("gelu_tanh", where(c, S, -3.4e38))),
    "-5 before hardswish": Spelling(lambda c: act("hardswish", where(c, S, -5.0))),
    "-inf before silu": Spelling(lambda c: act("silu", where(c, S, -math.inf)), False),
    "-1e9 added": Spelling(lambda c: act("sigmoid", S + where(c, 0.0, -1e9)), False),
    "0 before sigmoid": Spelling(lambda c: act("sigmoid", where(c, S, 0.0)), False),
    "-4 before silu": Spelling(lambda c: act("silu", where(c, S, -4.0)), False),
    "times a learned table": Spelling(lambda c: act("silu", S) * (aux(TABLE) + real(c)), False),
}
# fmt: on


_PLAIN = "neg abs floor ceil round trunc sign relu bf16 detach exp log sqrt tanh"
FUNCTIONS: list[tuple[Any, ...]] = [
    *((name,) for name in _PLAIN.split()),
    ("clamp_min", 3.0), ("clamp_max", 9.5), ("hardtanh", -2.0, 8.0),
]  # fmt: skip


class Draw:
    """The grammar, drawn from one seed. `depth` bounds what is left to nest."""

    def __init__(self, seed: int, size: int) -> None:
        self.rng, self.size = random.Random(seed), size

    def program(self) -> tuple[str, Expr, Expr]:
        """A spelling, its condition, and the weight."""
        name = self.rng.choice(list(SPELLINGS))
        condition = self.condition(3)
        return name, condition, SPELLINGS[name].weight(condition)

    def condition(self, depth: int) -> Expr:
        roll = self.rng.random()
        if depth == 0 or roll < 0.45:
            comparison = self.rng.choice(["lt", "le", "gt", "ge", "lt", "ge", "eq", "ne"])
            return call(comparison, self.index(depth), self.index(depth))
        if roll < 0.55:
            comparison = self.rng.choice(["lt", "le", "gt", "ge"])
            return call(comparison, self.real(depth - 1), self.real(depth - 1))
        if roll < 0.6:
            return self.rng.choice([aux(PADDING, "b"), aux(WHOLE, "b")])
        if roll < 0.65:
            return call("bool", self.index(depth - 1))
        if roll < 0.72:
            return no(self.condition(depth - 1))
        joined = self.rng.choice(["and", "and", "or", "or", "xor"])
        return call(joined, self.condition(depth - 1), self.condition(depth - 1))

    def index(self, depth: int) -> Expr:
        roll = self.rng.random()
        if depth == 0 or roll < 0.4:
            return self._plain_index()
        if roll < 0.6:
            return call(self.rng.choice(["add", "sub", "sub"]), *self._indices(depth))
        if roll < 0.75:
            name = self.rng.choice(["floordiv", "mod", "mul"])
            literal = self.rng.choice([2, 3, 4, 8, 16, -3])
            return call(name, self.index(depth - 1), literal)
        if roll < 0.83:
            return call(self.rng.choice(["neg", "abs"]), self.index(depth - 1))
        if roll < 0.93:
            return call(self.rng.choice(["minimum", "maximum"]), *self._indices(depth))
        if roll < 0.96:
            return where(self.condition(depth - 1), *self._indices(depth))
        if roll < 0.98:
            return call("int", self.condition(depth - 1))
        return call("int", self.real(depth - 1))

    def _plain_index(self) -> Expr:
        operands = [aux(LENGTHS, "i"), aux(OF_HEAD, "i"), aux(TIMES, "i"), scalar(0)]
        bounds = [const(self.rng.randint(-4, self.size + 4)) for _ in range(4)]
        return self.rng.choice([*INDICES, *operands, *bounds])

    def _indices(self, depth: int) -> tuple[Expr, Expr]:
        return self.index(depth - 1), self.index(depth - 1)

    def real(self, depth: int) -> Expr:
        roll = self.rng.random()
        if depth <= 0 or roll < 0.35:
            return real(self.index(max(depth, 0)))
        literal = self.rng.choice([0.1, 0.5, 1.0 / 3.0, 3.0, -0.7, 1e9])
        x = self.real(depth - 1)
        if roll < 0.65:
            return call(self.rng.choice(["add", "sub", "minimum", "maximum"]), x,
                        self.real(depth - 1))  # fmt: skip
        if roll < 0.85:
            return call(self.rng.choice(["mul", "div"]), x, literal)
        if roll < 0.9:
            return x * x
        if roll < 0.93:
            return where(self.condition(depth - 1), x, self.real(depth - 1))
        name, *params = self.rng.choice(FUNCTIONS)
        return call(name, x, *params)
