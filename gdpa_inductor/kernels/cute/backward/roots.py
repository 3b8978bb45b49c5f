"""What a backward evaluates for each score. No cutlass here."""

import functools

from ....program.derivatives import differentiate
from ....program.expr import SCORE, Expr, const
from ....program.score_mod import ScoreMod
from ....program.tile_classes import classify
from ..config import KernelConfig


@functools.lru_cache(512)
def roots_of(program: str, weight: bool = True) -> tuple[Expr, ...]:
    """The slope ∂P/∂S of a score program and, where it is summed, the weight P."""
    found = ScoreMod.parse(program).weight
    slope = differentiate(found, [SCORE], const(1.0))[0]
    if slope is None:
        slope = const(0.0)
    return (slope, found) if weight else (slope,)


@functools.lru_cache(512)
def leaves_out(program: str) -> bool:
    """Whether all roots are zero on some tiles of scores."""
    return classify(roots_of(program), ScoreMod.parse(program).aux).skips


def masked(config: KernelConfig) -> bool:
    """Whether tiles of scores may be left out, and with them all that meets no other."""
    return config.skip and leaves_out(config.program)
