"""What a backward evaluates for each score. No cutlass here.

Where an operand is added to the score, as a bias is, the slopes differ by a constant factor, c/k:

    P = f(c·s + k·a)     ∂P/∂a = k·f'     ∂P/∂s = c·f'

So the gradient of the operand is that of the score, but for the factor. A backward that stores it
evaluates the slope of the operand in place of the score's, and multiplies dQ and dK by the factor.
"""

import functools

from ....program.derivatives import differentiate
from ....program.expr import SCORE, Expr, aux, const
from ....program.score_mod import ScoreMod
from ..classes import classes
from ..config import KernelConfig


@functools.lru_cache(512)
def roots_of(program: str, weight: bool = True, stored: int | None = None) -> tuple[Expr, ...]:
    """The slope ∂P/∂S of a score program and, where it is summed, the weight P. stored: the operand
    whose slope stands for that of the score."""
    mod = ScoreMod.parse(program)
    slope = _slopes(program)[0 if stored is None else 1 + stored] or const(0.0)
    return (slope, mod.weight) if weight else (slope,)


@functools.lru_cache(512)
def factor_of(program: str, number: int | None) -> float:
    """The slope of the score over that of an operand: 0 where it is no constant other than 0. None
    is the score itself."""
    if number is None:
        return 1.0
    score, other = (_slopes(program)[i] for i in (0, 1 + number))
    if score is None or other is None:
        return 0.0
    (base, factor), (like, divisor) = _stripped(score), _stripped(other)
    return factor / divisor if base == like and divisor else 0.0


def is_moderate(factor: float, dtype: str) -> bool:
    """Whether dS, which is rounded to 16 bits, may be so many times smaller than what dQ and dK are
    made of. fp16 has few exponents, and fp32, which they are multiplied in, ends somewhere too."""
    bound = 2.0**4 if dtype == "float16" else 2.0**60
    return 1.0 / bound <= abs(factor) <= bound


def masked(config: KernelConfig, weight: bool = True) -> bool:
    """Whether tiles of scores may be left out, and with them all that meets no other. weight:
    where P is summed too."""
    return config.skip and classes(config, roots_of(config.program, weight, config.stored)).skips


def adds_all(config: KernelConfig) -> bool:
    """Whether every part of dQ is added to what its sums hold: they were cleared, or the launch
    before has begun them. With some of the keys under a mask there may be no first part."""
    begun = config.part in ("middle", "last")
    return not config.ordered or begun or (config.part == "first" and masked(config))


@functools.lru_cache(512)
def _slopes(program: str) -> tuple[Expr | None, ...]:
    """Of the score and of each operand, None where zero."""
    mod = ScoreMod.parse(program)
    leaves = [SCORE, *(aux(number, spec.kind) for number, spec in enumerate(mod.aux))]
    return tuple(differentiate(mod.weight, leaves, const(1.0)))


def _stripped(term: Expr) -> tuple[Expr, float]:
    """A term as a product of another one and a constant."""
    factor = 1.0
    while term.op in ("neg", "mul", "div"):
        numbers = [_number(x) for x in term.args]
        if term.op == "neg":
            term, factor = term.args[0], -factor
        elif term.op == "mul" and numbers[0] is not None:
            term, factor = term.args[1], factor * numbers[0]
        elif term.op == "mul" and numbers[1] is not None:
            term, factor = term.args[0], factor * numbers[1]
        elif term.op == "div" and numbers[1]:
            term, factor = term.args[0], factor / numbers[1]
        else:
            break
    return term, factor


def _number(term: Expr) -> float | None:
    return float(term.value or 0) if term.is_const else None
