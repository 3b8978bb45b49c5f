"""The part of the cost model that does not depend on the device.

The lowerings decide what the kernels of a device take, and where they are faster.
"""

from __future__ import annotations

from .._compat import shapes
from ..options import Profit
from ..problem import Problem
from ..program.expr import AXES, SCORE, postorder
from ..program.score_mod import ScoreMod
from ..rejection import Code
from .reading.reading import Reading
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
        reason = "three matrices are multiplied, the right-hand ones first: there are no weights"
        raise Refused(Code.CONTRACTION, reason)
    left, right = reading.left, reading.right
    inner = set(reading.inner)  # what the first product sums over
    dims = [[dim for dim, x in enumerate(o.index) if inner & set(x)] for o in (left, right)]
    if left.leaf is right.leaf and dims[0] != dims[1]:
        raise Refused(Code.CONTRACTION, "a power of a matrix")
    return SCALE


def judge(problem: Problem, rank: int, profit: Profit) -> Refused | None:
    """Why a problem does not pay on any device, or None. Unknown sizes count as large."""
    known = {
        name: shapes.size_hint(getattr(problem, name))
        for name in ("rows", "cols", "head_dim", "value_dim")
    }
    rows, cols, dim, value_dim = (1 << 20 if hint is None else hint for hint in known.values())
    if not profit or problem.unbounded:
        return None
    if min(dim, value_dim) < MIN_CHANNELS:
        reason = f"the head dims are {dim} and {value_dim}; fusing pays from {MIN_CHANNELS}"
        return Refused(Code.TOO_SMALL, reason)
    if not problem.jagged and rows * cols < MIN_SCORES:
        few = f"{rows} rows × {cols} keys are {rows * cols} scores"
        return Refused(Code.TOO_SMALL, f"{few}; fusing pays from {MIN_SCORES}")
    if rank == SCALE and cols <= 2 * max(dim, value_dim):
        reason = f"with {cols} columns between: the scores are small"
        return Refused(Code.SLOWER, f"three matrices are multiplied, {reason}")
    return None
