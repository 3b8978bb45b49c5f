"""When a forward pays whose channels of V go in slices: estimates of its time and of others'.

A launch has as many channels as a kernel has room for, and computes the scores again. Against that,
no score is stored, and tiles that a mask empties are left out.
"""

from __future__ import annotations

from dataclasses import replace

from ...kernels.cute.architectures import config_of
from ...kernels.cute.config import slice_of
from ...options import MEMORY, Profit
from ...problem import Problem
from ...program.expr import POSITIONS
from ...program.tile_classes import classify
from ..backends import hint
from ..chunked.cost import LEAST, SLACK, estimate, long_functions, padded_to_all, sizes_vary

# Rates of a Hopper, as fast as the H100 of `chunked.cost.RATES` (docs/lab/2026-11-26-slices.md).
# They serve Blackwell too, where nothing was measured.
RATE = 560e12  # multiplications and additions a second
SINGLE = 1.15e-12  # seconds for a score, of an operand that does not come in tiles
DIAGONAL = 100  # keys that a tile shows beside the half, where a mask leaves out tiles
LAUNCH = 30e-6  # seconds of the CPU


def slices(problem: Problem) -> int:
    """How many launches a forward takes; 1 where one has room for all channels of V."""
    kind, channels = config_of(problem.device), hint(problem.value_dim)
    return 1 if kind is None else channels // slice_of(kind, channels)


def slower_than_chunks(problem: Problem, scores: int) -> str:
    """Why chunks are the better choice for a forward, or "". scores: as many as there are at
    most."""
    if slices(problem) == 1 or sizes_vary(problem) or padded_to_all(problem):
        return ""
    forward = replace(problem, training=False)
    return _complaint(problem, scores, estimate(forward).chunked, 1.0, "chunks")


def slower(problem: Problem, scores: int, profit: Profit) -> str:
    """Why slices do not pay, or ""."""
    if slices(problem) == 1:
        return ""
    allowed = SLACK if profit == MEMORY else LEAST
    return _complaint(problem, scores, estimate(problem).stock, allowed, "the unfused form")


def _complaint(problem: Problem, scores: int, other: float, allowed: float, than: str) -> str:
    count = slices(problem)
    ratio = max(_seconds(problem, scores), count * LAUNCH) / other
    if ratio <= allowed:
        return ""
    return f"values in {count} slices are estimated at {ratio:.2f} times the time of {than}"


def _seconds(problem: Problem, scores: int) -> float:
    program, count = problem.program, slices(problem)
    masked = classify([program.weight], program.aux)
    shown = 1.0
    if masked.skips and not masked.bounds:
        shown = min(1.0, 0.5 + DIAGONAL / max(hint(problem.cols), 1))
    channels = count * hint(problem.head_dim) + hint(problem.value_dim)
    return scores * shown * (2 * channels / RATE + count * _apart(problem))


def _apart(problem: Problem) -> float:
    """Seconds for a score of what takes longer than the products allow."""
    operands = zip(problem.program.aux, problem.aux_dtypes, strict=True)
    single = [x for x, dtype in operands if x.axes >= POSITIONS and dtype != problem.dtype]
    return SINGLE * len(single) + long_functions(problem)
