"""The lowering of `gdpa::chunk_product`, S = Q Kᵀ of a chunk: a Triton template.

Inductor fuses the score program into its epilogue.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .._compat import lowering, shapes, templates
from ..kernels.blocked import fused
from ..kernels.triton.configs import Config
from . import gpu

# Tiles so small that two CTAs fit on a multiprocessor: one multiplies while the other stores.
_CONFIG = Config(128, 128, 8, 3)
_SMALL = Config(64, 64, 4, 2)  # for GPUs with little shared memory
_DEPTH = 64  # channels in a step, if there are more than `fused.WHOLE`


@functools.cache
def _template() -> Any:
    def grid(
        m: Any, n: Any, units: Any, meta: dict[str, Any], *, cdiv: Callable[..., Any]
    ) -> tuple[Any, int, int]:
        return cdiv(m, meta["BLOCK_M"]) * cdiv(n, meta["BLOCK_N"]) * units, 1, 1

    return templates.triton_template("gdpa_chunk_product", grid, fused.source(), {})


def lower(query: Any, key: Any, heads: int) -> Any:
    """The scores, fp32 [U/heads, heads, M, N]. Inductor IR in and out."""
    device = query.get_device()
    if device.type != "cuda":
        return lowering.extern_call(fused.PRODUCT, query, key, heads)
    query, key = (lowering.realized(t, device) for t in (query, key))
    units, rows, dim = (int(size) for size in query.get_size())
    cols = int(key.get_size()[1])
    config = _CONFIG if gpu.shared_memory(device) >= 160 << 10 else _SMALL
    padded = max(16, 1 << (dim - 1).bit_length())
    depth = padded if padded <= fused.WHOLE else _DEPTH
    size = (units // heads, heads, rows, cols)
    body = {
        "input_nodes": [query, key],
        "layout": lowering.layout_of(size, torch.float32, device),
        "call_sizes": [shapes.size_expr(size) for size in (rows, cols, units)],
    }
    choice = {
        "num_warps": config.warps,
        "num_stages": config.stages if dim > depth else 1,
        "BLOCK_M": config.rows,
        "BLOCK_N": config.keys,
        "BLOCK_D": depth,
        "D": dim,
        "HEADS": int(heads),
        "EVEN_M": rows % config.rows == 0,
        "EVEN_N": cols % config.keys == 0,
        "EVEN_D": dim % depth == 0,
    }
    return templates.best_of(_template(), "gdpa_chunk_product", [choice], body, {}, [])


@functools.cache
def register() -> None:
    lowering.register_lowering(fused.PRODUCT, lower)
