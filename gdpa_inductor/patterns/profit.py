"""The part of the cost model that does not depend on the device.

The lowerings decide what the kernels of a device take, and where they are faster.
"""

from __future__ import annotations

from .._compat import shapes
from ..options import MEMORY, Profit
from ..problem import Problem
from ..program.expr import AXES, SCORE, postorder
from ..program.score_mod import ScoreMod
from ..rejection import Code
from .reading.reading import LINEAR_ATTENTION, Reading
from .result import Refused

MIN_CHANNELS, MIN_SCORES = 16, 32 * 32
ACTIVATION, MASK, SCALE = 2, 1, 0


def rank(program: ScoreMod, reading: Reading) -> int:
    """How much the program does to the scores, for preferring one plan to another.

    Raises Refused for X (Y Z), which is linear attention. A program that only scales gives a
    product of three matrices, which may be computed in either order. If the model multiplies the
    right two first, that order is kept.
    """
    slope = program.gradients.score
    if slope is None or SCORE in set(postorder([slope])):
        return ACTIVATION
    if any(spec.axes for spec in program.aux) or any(
        x.op in AXES for x in postorder([program.weight])
    ):
        return MASK
    if reading.swapped:
        raise Refused(Code.CONTRACTION, LINEAR_ATTENTION)
    left, right = reading.left, reading.right
    inner = set(reading.inner)  # what the first product sums over
    dims = [[dim for dim, x in enumerate(o.index) if inner & set(x)] for o in (left, right)]
    if left.leaf is right.leaf and dims[0] != dims[1]:
        raise Refused(Code.CONTRACTION, "a power of a matrix")
    return SCALE


def rather_stored(problem: Problem, kernel: str, learns: bool, profit: Profit) -> str:
    """Why a bias is rather stored than looked up in a program, or "".

    Measured on an H200 (docs/lab/2026-11-28-tables.md). What was not measured stays as it was.

    Args:
        kernel: The backend that the problem would run on.
        learns: A table has a gradient.
    """
    program = problem.program
    if not program.places or not profit or profit == MEMORY or problem.device.type != "cuda":
        return ""
    if kernel != "cute":
        return "kernels for this problem read a stored bias sooner than a table"
    # Where a bias has an element for each score, storing it costs more than all sums.
    large = any(program.axes(number) >= set(AXES) for number in program.places)
    if problem.training and learns and not large and problem.stored_biases():
        beside = "a table beside a mask or bias that is a tensor"
        return f"a training step with the gradient of {beside} rather stores a small bias"
    return ""


def check(problem: Problem, rank: int, profit: Profit) -> None:
    """Raise Refused if a problem does not pay on any device. Unknown sizes count as large."""
    if not profit or problem.unbounded:
        return
    sizes = (problem.rows, problem.cols, problem.head_dim, problem.value_dim)
    hints = map(shapes.size_hint, sizes)
    rows, cols, dim, value_dim = (1 << 20 if hint is None else hint for hint in hints)
    if min(dim, value_dim) < MIN_CHANNELS:
        reason = f"the head dims are {dim} and {value_dim}; fusing pays from {MIN_CHANNELS}"
        raise Refused(Code.TOO_SMALL, reason)
    if not problem.jagged and rows * cols < MIN_SCORES:
        few = f"{rows} rows × {cols} keys are {rows * cols} scores"
        raise Refused(Code.TOO_SMALL, f"{few}; fusing pays from {MIN_SCORES}")
    if rank == SCALE and cols <= 2 * max(dim, value_dim):
        reason = f"with {cols} columns between: the scores are small"
        raise Refused(Code.SLOWER, f"three matrices are multiplied, {reason}")
