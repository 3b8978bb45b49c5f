"""The terms that a backward evaluates for each score: the slope ∂P/∂s, and mostly P.

A bias `a` is added to the score. So the slopes of score and bias differ by a constant factor, c/k:

    P = f(c·s + k·a)     ∂P/∂a = k·f'     ∂P/∂s = c·f'

The gradients of score and bias differ by the same factor. A backward that stores the gradient of a
bias evaluates ∂P/∂a in place of ∂P/∂s. In the end it multiplies dQ and dK by c/k.

Row sums are those of a term R, and their gradient is an aux operand with a number r for each query.
If R is a function of P, it needs no slope of its own:

    dS = dP · ∂P/∂s + r · ∂R/∂s = (dP + r · ρ(P)) · ∂P/∂s

cutlass is not imported here.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from ....program.expr import GRAD, SCORE, Expr, aux, const, differentiate, postorder
from ....program.factors import split
from ....program.score_mod import ScoreMod
from ....program.simplify import substitute
from ..config import KernelConfig, TableKey, TileSize, classes

_ROUNDINGS = ("bf16", "f16")
NONE = "the CuTe backward has no gradients of operands between the products"


@functools.lru_cache(512)
def roots_of(program: str, weight: bool = True, stored: int | None = None) -> tuple[Expr, ...]:
    """The terms to evaluate: the slope ∂P/∂s and, with `weight`, P.

    stored: The number of an aux operand whose slope replaces that of the score, or None.
    """
    mod = ScoreMod.parse(program)
    slope = _slopes(program)[0 if stored is None else 1 + stored] or const(0.0)
    return (slope, mod.weight) if weight else (slope,)


def terms_of(config: KernelConfig) -> tuple[Expr, ...]:
    if config.kernel == "forward":
        return config.terms
    return roots_of(config.program, config.kernel != "rows", config.stored)


@functools.lru_cache(512)
def factor_of(program: str, number: int | None) -> float:
    """The slope of the score divided by that of aux operand `number`, if this is a constant.

    Otherwise 0. The score itself is None, which gives 1.
    """
    if number is None:
        return 1.0
    score, other = (_slopes(program)[i] for i in (0, 1 + number))
    if score is None or other is None:
        return 0.0
    (base, factor), (like, divisor) = map(_without_rounding, (score, other))
    return factor / divisor if base == like and divisor else 0.0


def _without_rounding(slope: Expr) -> tuple[Expr, float]:
    """(rest, c) with slope = c · rest but for roundings to 16 bits.

    Gradients of operands differ in these if a model rounds each sum. What a kernel stores is
    rounded once.
    """
    rest, factor = split(slope, inside=False)
    while rest.op in _ROUNDINGS:
        rest, more = split(rest.args[0], inside=False)
        factor *= more
    return rest, factor


def is_moderate(factor: float, dtype: str) -> bool:
    """Whether the factor of `factor_of` does not cost dQ and dK their precision."""
    # dS is rounded to 16 bits before it is multiplied by the factor. fp16 has few exponents, so its
    # bound is small. For bf16 the bound keeps products within the range of fp32.
    bound = 2.0**4 if dtype == "float16" else 2.0**60
    return 1.0 / bound <= abs(factor) <= bound


def masked(config: KernelConfig) -> bool:
    """Whether the kernel may skip tiles of scores. Then it may not write some results at all."""
    return config.skip and classes(config, terms_of(config)).skips


def table_keys(config: KernelConfig) -> list[TableKey]:
    """The tables of bounds that a kernel takes (`bounds`)."""
    size = TileSize(config.tile_rows, config.cols)
    return [(number, size) for number in classes(config, terms_of(config)).bounds]


def adds_all(config: KernelConfig) -> bool:
    """Whether each key tile adds to the sums of dQ, even the first one."""
    # Otherwise the first key tile stores, so that nobody has to clear the sums. A store is
    # impossible in three cases:
    # - The order is not fixed.
    # - An earlier launch has begun the sums.
    # - The launch has the first keys only, and a mask may leave these without any tile.
    return not config.ordered or config.continues or (config.part == "first" and masked(config))


@functools.lru_cache(512)
def _slopes(program: str) -> tuple[Expr | None, ...]:
    """The slopes of P by the score and by each aux operand; None where zero."""
    mod = ScoreMod.parse(program)
    leaves = [SCORE, *(aux(number, spec.leaf_kind) for number, spec in enumerate(mod.aux))]
    return tuple(map(_rounded_once, differentiate(mod.weight, leaves, const(1.0))))


def _rounded_once(slope: Expr | None) -> Expr | None:
    while slope and slope.op in _ROUNDINGS and slope.args[0].op == slope.op:
        slope = slope.args[0]
    return slope


class RowGradient(NamedTuple):
    """The gradient of row sums. number: Of the aux operand that it is.

    ratio: ρ above as a term, in which `GRAD` stands for P. None if there is no such function.
    """

    number: int
    ratio: Expr | None


@functools.lru_cache(512)
def row_gradient(program: str) -> RowGradient | None:
    """The gradient of the row sums in the program of a backward. None if nothing depends on it."""
    mod = ScoreMod.parse(program)
    if mod.summed is None:
        return None
    number = len(mod.aux) - 1  # see `ScoreMod.with_row_gradient`
    gradient = aux(number, "f")
    (term,) = differentiate(mod.summed, [gradient], const(1.0))
    if term is None or gradient in postorder([mod.weight, term]):
        return RowGradient(number, None)
    leaves = [SCORE, *(aux(n, spec.leaf_kind) for n, spec in enumerate(mod.aux))]
    if all(slope is None for slope in differentiate(term, leaves)):
        return None
    return RowGradient(number, _slope_by(mod.weight, term))


def _slope_by(weight: Expr, term: Expr) -> Expr | None:
    """The slope of a term by the weight, if it is a function of the weight alone."""
    base, factor = split(weight, inside=False)
    if base.is_const or not factor:
        return None
    (function,) = substitute([term], {base: GRAD * (1.0 / factor), weight: GRAD})
    leaves = {x for x in postorder([function]) if not (x.args or x.is_const)}
    return differentiate(function, [GRAD], const(1.0))[0] if leaves == {GRAD} else None


def no_such_sums(program: str) -> str:
    gradient = row_gradient(program)
    if gradient is None or gradient.ratio is not None:
        return ""
    return "the CuTe backward takes row sums of functions of the weights only"


def no_such_heads(key_heads: Any, value_heads: Any, alike: bool) -> str:
    if alike:
        return ""
    heads = f"{key_heads} key heads and {value_heads} value heads"
    return f"the CuTe backward takes as many of both, not {heads}"


def no_such_dims(kind: type[KernelConfig], dims: Sequence[int]) -> str:
    widest, most = max(dims), kind.max_backward_dim
    if widest <= most:
        return ""
    return f"a head dim of {widest}; the CuTe backward takes up to {most}"


def no_such_biases(program: str, needs: Sequence[bool], dtype: str) -> str:
    wanted = [number for number, need in enumerate(needs) if need]
    if not wanted:
        return ""
    for number in wanted:
        spec = ScoreMod.parse(program).aux[number]
        if spec.is_table and not spec.axes <= {"h"}:
            return f"{NONE} that are tables of each batch or position, as a{number}"
        factor = factor_of(program, number)
        if not factor:
            return f"{NONE} that are not added to the score, as a{number}"
        if not is_moderate(factor, dtype):
            return (
                f"{NONE} whose slope is {factor:g} times smaller than the score's, as of a{number}"
            )
    return ""
