"""The Triton template of a plan, and its grid.

A `Plan` says which axes a kernel cuts into tiles: queries by BLOCK_M, keys by BLOCK_N. For each
configuration Inductor calls `grid` to get the number of CTAs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..._compat import templates
from ...kernels.triton.template import Plan


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
