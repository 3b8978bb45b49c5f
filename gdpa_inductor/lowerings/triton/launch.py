"""Put one Triton kernel into the graph: `run` takes operands and terms, and returns buffers.

`plan` says what the kernel reads and visits. Here are its operands, its template with the size of
its grid, and the configurations that are tried, with the compile-time constants of each. `lower`
decides which terms the kernel computes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch

from ..._compat import inductor, lowering, shapes, templates
from ...kernels import devices
from ...kernels.triton.configs import SHORT, Config, Shape, configs, settled
from ...kernels.triton.device_tables import (
    BOUNDS_TILE,
    WORK_TILE,
    likely_offsets,
    tile_bounds,
    tile_order,
)
from ...kernels.triton.splits import FEW_ROWS, MOST_ROWS
from ...kernels.triton.template import DIAGONAL, PART, AuxRead, Plan
from ...operands import Size
from ...problem import Problem
from ...program.expr import POSITIONS
from ..backends import hint
from . import five_matmul, one_tile
from .inputs import Inputs, block_dim
from .plan import FEW, Output, few, plan_kernel
from .rules import rounds

# Makes another choice for autotuning, from the plan of a kernel and the body of its template.
Rival = Callable[[Plan, dict[str, Any]], Any]
LANES = 32  # tiles that are classified at once: one in each lane, so that no warp waits


def run(
    kernel: str,
    outputs: list[Output],
    o: Inputs,
    added: Sequence[Any] = (),
    rival: Rival | None = None,
    order: Any = None,
    begin: Any = None,
    **fields: Any,
) -> list[Any]:
    """Put one kernel into the graph. Returns the buffers of its outputs.

    added: More buffers that it writes. rival: Makes another choice for autotuning. order: The order
    of the sequences, if a CTA computes whole sequences. begin: The first (batch, head) of "tiles",
    int32 [2]. fields: More fields of `Plan`.
    """
    first, device = outputs[0], o.problem.device
    adds = kernel == "keys" and bool(added)
    fields |= {"adds": adds, "of_share": begin is not None}
    plan, subgraphs = plan_kernel(kernel, outputs, o, **fields)
    others = [
        out.room or lowering.empty(out.size, out.dtype, device, out.strides) for out in outputs[1:]
    ]
    written = [*others, *added]
    body = {
        "subgraphs": subgraphs,
        "input_nodes": [
            *(o.matrices[name] for name in plan.operands),
            *(o.offsets[side] for side in plan.measured),
            *([o.pages] if plan.paged else []),
            *([order or _order(plan.listed, o)] if plan.ordered else []),
            *([lowering.realized(begin, device)] if plan.of_share else []),
            *(o.aux[a.number] for a in plan.reads),
            *(_table(a, o) for a in plan.tables),
            *written,
        ],
        "mutated_inputs": written or None,
        "layout": lowering.layout_of(first.size, first.dtype, device, first.strides),
        "call_sizes": _call_sizes(plan, first, o),
    }
    choices = [
        {"num_warps": c.warps, "num_stages": c.stages, **_constants(plan, c, o, first)}
        for c in _configs(plan, o.problem)
    ]
    examples = _examples(plan, body["input_nodes"], o)
    rivals = [] if rival is None else [rival(plan, body)]
    sizes = [*o.scalars, *(o.longest(side) for side in plan.measured)]
    name = f"gdpa_{kernel}"
    return [
        templates.best_of(_template(plan), name, choices, body, examples, sizes, rivals),
        *others,
    ]


def _order(side: str, o: Inputs) -> Any:
    """The table of the work tiles of a jagged side. Kernels of the graph share it."""
    nodes, fakes = o.extent(side)
    counted = few(o, FEW)
    key = (o.offsets[side].get_name(), *map(str, nodes[1:]), counted)

    def formula(offsets: torch.Tensor, total: Any, longest: Any) -> torch.Tensor:
        return tile_order(offsets, total, longest, counted)

    return _once(key, formula, nodes, fakes, o)


def _table(a: AuxRead, o: Inputs) -> Any:
    """The tile bounds of an operand. Kernels of the graph share them."""
    rows, columns = (
        a.access.index(axis) if axis in a.axes else None for axis in ("q_idx", "kv_idx")
    )
    node = o.aux[a.number]
    formula = lambda operand: tile_bounds(operand, rows, columns)
    return _once((node.get_name(), rows, columns), formula, [node], [o.fakes.aux[a.number]], o)


def _once(
    key: tuple[Any, ...], formula: Callable[..., Any], nodes: list[Any], fakes: list[Any], o: Inputs
) -> Any:
    """The formula's result as a buffer, computed once for the kernels of a graph."""
    return lowering.once_per_graph(
        key,
        lambda: lowering.realized(lowering.inline_formula(formula, nodes, fakes), o.problem.device),
    )


def _examples(plan: Plan, nodes: list[Any], o: Inputs) -> dict[int, Callable[[], torch.Tensor]]:
    """Inputs on which configurations are timed, by the number of the argument."""
    # Offsets have likely lengths. Integers of the program are between 0 and the number of keys, so
    # that some tiles are skipped.
    likely = lambda size: lowering.likely_size(shapes.size_expr(size))
    numbers = {name: number for number, name in enumerate(plan.arguments)}
    batch, device = max(1, likely(o.problem.batch)), o.problem.device

    def offsets(side: str) -> torch.Tensor:
        lengths = likely_offsets(batch, likely(o.total(side)), likely(o.longest(side)), device)
        return lengths.to(o.offsets[side].get_dtype())

    def order(side: str) -> torch.Tensor:
        return tile_order(offsets(side), likely(o.total(side)), likely(o.longest(side)), False)

    examples = {f"CU_{side.upper()}": functools.partial(offsets, side) for side in plan.measured}
    if plan.ordered and plan.listed:
        examples["ORDER"] = functools.partial(order, plan.listed)
    elif plan.ordered:
        examples["ORDER"] = functools.partial(torch.arange, batch, dtype=torch.int32, device=device)
    if plan.paged:
        count = max(1, likely(o.fakes.key.shape[0]))
        examples["PAGES"] = functools.partial(lowering.random_integers, o.pages, count)
    columns = max(1, likely(o.problem.cols))
    for a in plan.reads if plan.skips else ():
        if a.kind == "i" and not a.axes & POSITIONS:
            examples[a.name] = functools.partial(
                lowering.random_integers, nodes[numbers[a.name]], columns
            )
    return {numbers[name]: make for name, make in examples.items()}


def _call_sizes(plan: Plan, output: Output, o: Inputs) -> list[Any]:
    """The arguments of the grid: (rows, keys, units).

    A unit is a (batch, head), or a (work tile, head) of a jagged side.
    """
    p = o.problem
    batch, heads, rows, cols = map(shapes.size_expr, p.sizes.values())
    if plan.listed:
        own = output.size[0] * output.size[2] if plan.split else output.size[1]
        return [WORK_TILE, WORK_TILE, _work_tiles(plan, o) * shapes.size_expr(own)]
    if plan.kernel == "five_matmul":
        return [1, 1, sympy.Min(batch * heads, devices.processors(p.device))]
    if plan.kernel == "one_tile":
        return [1, 1, batch * heads * one_tile.shares(p)]
    units = output.size[: 3 if plan.split or plan.kernel == "tiles" else 2]
    return [rows, cols, math.prod(map(shapes.size_expr, units), start=shapes.size_expr(1))]


def _work_tiles(plan: Plan, o: Inputs) -> Any:
    """How many work tiles of the jagged side get CTAs."""
    batch = shapes.size_expr(o.problem.batch)
    listed = shapes.listed_work_tiles(shapes.size_expr(o.total(plan.listed)), batch, WORK_TILE)
    longest = shapes.size_expr(o.longest(plan.listed))
    each = batch * shapes.work_tiles_each(longest, WORK_TILE)
    return each if plan.direct else sympy.Min(listed, each) if few(o, FEW) else listed


def _configs(plan: Plan, problem: Problem) -> list[Config]:
    dims = [int(d) for d in (problem.head_dim, problem.value_dim)]
    dims = [-(-d // 16) * 16 if plan.kernel == "weights" else block_dim(d) for d in dims]
    tiles = [a.number for a in plan.reads if a.axes >= POSITIONS]
    score_bytes = sum(problem.aux_dtypes[number].itemsize for number in tiles)
    rows, cols = hint(problem.rows), hint(problem.cols)
    split = plan.split or (plan.kernel == "one_tile" and one_tile.shares(problem) > 1)
    kinds = {"skips": plan.skips, "jagged": bool(plan.jagged), "split": split}
    kinds |= {"short": cols <= SHORT, "few": rows <= FEW_ROWS, "tile": rows <= MOST_ROWS}
    kinds["table"] = any(a.place and a.axes >= POSITIONS for a in plan.reads)
    loop = frozenset(kind for kind, is_so in kinds.items() if is_so)
    least = one_tile.tile_rows(problem) if plan.kernel == "one_tile" else 0
    shape = Shape(dims[0], dims[1], problem.dtype.itemsize, score_bytes, loop, least)
    shared, capability = devices.shared_memory(problem.device), devices.capability(problem.device)
    thorough = inductor.thorough()
    candidates = configs(plan.kernel, shape, shared, thorough, capability)
    if plan.kernel != "five_matmul":  # the layout of its sums follows from these very tiles
        cut = [_cut(config, problem, least) for config in candidates]
        candidates = list(dict.fromkeys(map(_square, cut) if plan.diagonal else cut))
    sizes = (*problem.sizes.values(), problem.head_dim)
    # The FLOP of one product. An unknown size counts as long.
    operations = 2 * math.prod(shapes.size_hint(size) or SHORT for size in sizes)
    alone = not thorough and settled(plan.kernel, shape, operations, capability)
    return candidates[:1] if alone else candidates


def _cut(config: Config, problem: Problem, least: int) -> Config:
    """Make tiles no longer than the rows and keys that there are."""
    sizes = [shapes.size_hint(size) for size in (problem.rows, problem.cols)]
    limits = [1 << max(4, (size - 1).bit_length()) for size in sizes if size]
    if len(limits) < 2:
        return config
    # A symbolic size is a hint only. So a tile that has to hold all rows keeps at least `least`.
    rows = max(least, min(config.rows, limits[0]))
    return replace(config, rows=rows, keys=min(config.keys, limits[1]))


def _square(config: Config) -> Config:
    """For diagonals. Without stages a multiprocessor holds several CTAs, which hide latency."""
    block = min(config.rows, config.keys, DIAGONAL)
    return replace(config, rows=block, keys=block, stages=1)


def _constants(plan: Plan, config: Config, o: Inputs, output: Output) -> dict[str, Any]:
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
        "PRECISION": repr(devices.float32_precision()),
        "ROUND_TF32": rounds(problem),
    }
    if plan.listed:
        known["WORK_TILE"] = WORK_TILE
    known |= _own_constants(plan, config, problem)
    if plan.diagonal:
        known["DIAGONAL"] = DIAGONAL
    if plan.tables:
        known["BOUNDS_TILE"] = BOUNDS_TILE
    if plan.skips and plan.bounds is None:
        known["LANES"] = LANES
    if single:
        known["SINGLE"] = True
    return known


def _own_constants(plan: Plan, config: Config, problem: Problem) -> dict[str, Any]:
    """Those of a single kernel."""
    if plan.kernel == "forward":
        halves = _halves(plan, config) if plan.jagged else {}
        return halves | ({"PAGE": problem.page} if plan.paged else {})
    if plan.kernel == "five_matmul":
        return {"WARPS": config.warps, "ROWS": five_matmul.ROWS}
    return {"STEPS": max(1, PART // config.keys)} if plan.kernel == "weights" else {}


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
def _template(plan: Plan) -> Any:
    """Inductor's template for a plan, which is a global of the jinja source.

    The plan says which axes are cut into tiles. For each configuration Inductor calls `grid` to get
    the number of CTAs.
    """
    if plan.diagonal:
        return templates.triton_template(plan.name, _diagonals, plan.source, {"plan": plan})
    block_m = "BLOCK_M" if plan.kernel in ("forward", "rows", "tiles", "weights") else None
    block_n = "BLOCK_N" if plan.kernel in ("keys", "tiles", "weights") else None

    def grid(
        m: Any, n: Any, units: Any, meta: dict[str, Any], *, cdiv: Callable[..., Any]
    ) -> tuple[Any, int, int]:
        tiles_m = cdiv(m, meta[block_m]) if block_m else 1
        tiles_n = cdiv(n, meta[block_n] * meta.get("STEPS", 1)) if block_n else 1
        return tiles_m * tiles_n * units, 1, 1

    return templates.triton_template(plan.name, grid, plan.source, {"plan": plan})


def _diagonals(
    m: Any, n: Any, units: Any, meta: dict[str, Any], *, cdiv: Callable[..., Any]
) -> tuple[Any, int, int]:
    """The grid of "tiles", if its CTAs own diagonals of square tiles."""
    block = meta["BLOCK_M"]
    return (cdiv(m, block) + cdiv(n, block) + 1) * (DIAGONAL // block) * units, 1, 1
