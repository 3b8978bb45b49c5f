"""Estimate when a forward pays if its value is too wide for one launch, and runs in slices.

Each launch computes some channels of V (`slice_of`), and computes all scores again. In exchange no
score is stored, and tiles that a mask empties are skipped. The estimate is compared with those of
chunks and of the unfused form.
"""

from __future__ import annotations

from dataclasses import replace

from ...kernels.cute.architectures import config_of
from ...kernels.cute.config import slices_of
from ...problem import Problem
from ...program.expr import POSITIONS
from ...program.tile_classes import classify
from ..backends import hint
from ..chunked import LEAST, SLACK, estimate, long_functions, padded_to_all, sizes_vary

# Rates of a Hopper GPU, as fast as the H100 of `chunked.RATES`
# (docs/lab/2026-11-26-slices.md). They serve Blackwell too, where nothing was measured.
RATE = 560e12  # FLOP/s
SINGLE = 1.15e-12  # seconds for a score, for each aux operand that TMA does not load
DIAGONAL = 100  # under a mask a query is assumed to meet half of the keys and so many more
LAUNCH = 30e-6  # seconds of the CPU for a launch


def slices(problem: Problem) -> int:
    """How many launches a forward needs: 1 if a launch has room for all channels of V."""
    kind = config_of(problem.device)
    return 1 if kind is None else slices_of(kind, hint(problem.value_dim))


def scores(problem: Problem) -> int:
    """How many scores the problem has at most. A jagged side is bounded by its total rows too."""
    dense = (problem.batch, problem.rows, problem.cols)
    batch, rows, cols = (hint(size) for size in dense)
    bounds = [batch * rows * cols]
    if problem.jagged_query:
        bounds.append(hint(problem.total_rows) * cols)
    if problem.jagged_key:
        bounds.append(hint(problem.total_cols) * rows)
    return hint(problem.heads) * min(bounds)


def slower_than_chunks(problem: Problem) -> str:
    """Why chunks are faster for a forward, or ""."""
    if slices(problem) == 1 or sizes_vary(problem) or padded_to_all(problem):
        return ""
    forward = replace(problem, training=False)
    return _complaint(problem, estimate(forward).chunked, 1.0, "chunks")


def slower(problem: Problem, allowed: float = LEAST) -> str:
    """Why slices are slower than the unfused form, or ""."""
    if slices(problem) == 1:
        return ""
    return _complaint(problem, estimate(problem).stock, allowed, "the unfused form")


def much_slower(problem: Problem) -> str:
    """The same for profit="memory"."""
    return slower(problem, SLACK)


def _complaint(problem: Problem, other: float, allowed: float, than: str) -> str:
    count = slices(problem)
    ratio = max(_seconds(problem), count * LAUNCH) / other
    if ratio <= allowed:
        return ""
    return f"values in {count} slices are estimated at {ratio:.2f} times the time of {than}"


def _seconds(problem: Problem) -> float:
    program, count = problem.program, slices(problem)
    masked = classify([program.weight], program.aux)
    shown = 1.0
    if masked.skips and not masked.bounds:
        shown = min(1.0, 0.5 + DIAGONAL / max(hint(problem.cols), 1))
    channels = count * hint(problem.head_dim) + hint(problem.value_dim)
    return scores(problem) * shown * (2 * channels / RATE + count * _slow_reads(problem))


def _slow_reads(problem: Problem) -> float:
    """Seconds for a score that slow reads and slow functions add to the products."""
    operands = zip(problem.program.aux, problem.aux_dtypes, strict=True)
    single = [x for x, dtype in operands if x.axes >= POSITIONS and dtype != problem.dtype]
    return SINGLE * len(single) + long_functions(problem)
