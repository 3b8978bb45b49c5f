"""The Triton template of a plan with its grid, and the compile-time constants of a kernel.

A `Plan` says which axes a kernel cuts into tiles: queries by BLOCK_M, keys by BLOCK_N. For each
configuration Inductor calls `grid` to get the number of CTAs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..._compat import shapes, templates
from ...kernels.triton.configs import Config
from ...kernels.triton.order import WORK_TILE
from ...kernels.triton.template import Plan
from ...kernels.triton.tile_bounds import BOUNDS_TILE
from ...operands import Size
from .. import gpu
from . import five_matmul, one_tile
from .inputs import Inputs, block_dim, rounds
from .plan import Output

LANES = 32  # tiles that are classified at once: one in each lane, so that no warp waits


def constants(plan: Plan, config: Config, o: Inputs, output: Output) -> dict[str, Any]:
    """The value of each constant of the templates."""
    problem = o.problem
    head_dim, value_dim = int(problem.head_dim), int(problem.value_dim)
    block_d, block_v = block_dim(head_dim), block_dim(value_dim)

    def even(side: str, size: Size, block: int) -> bool:
        return side not in plan.jagged and shapes.statically_known_true(size % block == 0)

    single = all(shapes.statically_known_true(size == 1) for size in output.size)
    if single and plan.jagged:  # several CTAs would write the element
        raise NotImplementedError("an output of one element of a jagged side")
    splits = int(output.size[0]) if plan.split or plan.kernel == "tiles" else 1
    known: dict[str, Any] = {
        "BLOCK_M": config.rows,
        "BLOCK_N": config.keys,
        "D": head_dim,
        "DV": value_dim,
        "BLOCK_D": block_d,
        "BLOCK_V": block_v,
        "EVEN_M": even("q", problem.rows, config.rows),
        "EVEN_N": even("k", problem.cols, config.keys),
        "EVEN_D": block_d == head_dim,
        "EVEN_V": block_v == value_dim,
        "SPLITS": one_tile.shares(problem) if plan.kernel == "one_tile" else splits,
        "PRECISION": repr(gpu.float32_precision()),
        "ROUND_TF32": rounds(problem),
    }
    if plan.listed:
        known["WORK_TILE"] = WORK_TILE
    if plan.kernel == "forward" and plan.jagged:
        known |= _halves(plan, config)
    if plan.tables:
        known["BOUNDS_TILE"] = BOUNDS_TILE
    if plan.kernel == "five_matmul":
        known |= {"WARPS": config.warps, "ROWS": five_matmul.ROWS}
    if plan.skips and plan.bounds is None:
        known["LANES"] = LANES
    if single:
        known["SINGLE"] = True
    return known


def _halves(plan: Plan, config: Config) -> dict[str, int]:
    """Smaller tiles for the end of a sequence, if half a tile holds what is left; 0 for none."""
    # With uniform lengths they save a quarter of a tile on average. Where nearly all sequences have
    # the greatest length, a copy of the loop is not worth it.
    keys_alike = plan.direct and plan.alike
    return {  # half of a smaller tile is too small for the tensor core
        "HALF_M": 0 if plan.direct or config.rows < 128 else config.rows // 2,
        "HALF_N": 0 if keys_alike or config.keys < 32 else config.keys // 2,
    }


@functools.cache
def template(plan: Plan) -> Any:
    """Inductor's template for a plan, which is a global of the jinja source."""
    block_m = "BLOCK_M" if plan.kernel in ("forward", "rows", "tiles") else None
    block_n = "BLOCK_N" if plan.kernel in ("keys", "tiles") else None

    def grid(
        m: Any, n: Any, units: Any, meta: dict[str, Any], *, cdiv: Callable[..., Any]
    ) -> tuple[Any, int, int]:
        tiles_m = cdiv(m, meta[block_m]) if block_m else 1
        tiles_n = cdiv(n, meta[block_n]) if block_n else 1
        return tiles_m * tiles_n * units, 1, 1

    return templates.triton_template(plan.name, grid, plan.source, {"plan": plan})
