"""Put one Triton kernel into the graph: `run` takes operands and terms, and returns buffers.

This module decides the shapes of results, which tiles the kernel visits, and the configurations
that are tried. `lower` decides which terms the kernel computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ..._compat import inductor, lowering, shapes, templates
from ...kernels.triton.configs import SHORT, Config, Shape, configs, settled
from ...kernels.triton.order import WORK_TILE, likely_offsets, tile_order
from ...kernels.triton.splits import FEW_ROWS, MOST_ROWS
from ...kernels.triton.template import AuxRead, Plan, loop_axis
from ...kernels.triton.tile_bounds import tile_bounds
from ...problem import Problem, Size
from ...program.expr import POSITIONS, Expr, const, postorder
from ...program.loop_bounds import closed
from ...program.tails import still
from ...program.tile_classes import TileClasses, boundable, classify_by_tables
from .. import gpu
from ..backends import hint
from . import emit, one_tile
from .constants import constants, template
from .inputs import Inputs, block_dim

# Makes another choice for autotuning, from the plan of a kernel and the body of its template.
Rival = Callable[[Plan, dict[str, Any]], Any]
# Up to so many sequences are sorted by counting (see `tile_order`). For 1152 sequences that takes
# 35 to 70 µs on an H200, far more than a search. And the more sequences there are, the less an
# order saves.
_FEW = 256
Ends = Mapping[str, Expr] | None  # see `loop_bounds.closed`
# Bytes of an aux operand that all batches read, which the L2 cache holds. ALiBi in fp32, 128 MiB
# for 8 heads of 2048 rows: a forward on an H100 takes 0.30 ms if the batches of a tile are
# neighbours, else 0.45. A bias of 32 MiB stays in the cache anyway: 0.26 and 0.25.
CACHED = 32 << 20


@dataclass(frozen=True)
class Output:
    """One term that a kernel computes, and the buffer that it fills.

    strides: Those of the buffer, or None if contiguous. room: The buffer, if the caller has it. The
    first output of a kernel has none.
    """

    name: str
    term: Expr
    size: tuple[Size, ...]
    dtype: torch.dtype
    strides: tuple[Size, ...] | None = None
    room: Any = None


def run(
    kernel: str,
    outputs: list[Output],
    o: Inputs,
    added: Sequence[Any] = (),
    rival: Rival | None = None,
    order: Any = None,
    **plan: Any,
) -> list[Any]:
    """Put one kernel into the graph. Returns the buffers of its outputs.

    added: More buffers that it writes. rival: Makes another choice for autotuning. order: The order
    of the sequences, if a CTA computes whole sequences. plan: More fields of `Plan`.
    """
    classes = None if kernel == "one_tile" else _classes(outputs, o)
    ends = _ends(kernel, classes, o) if classes else None
    adds = kernel == "keys" and bool(added)
    planned = _plan(kernel, outputs, classes, ends, o, adds=adds, **plan)
    others = [
        out.room or lowering.empty(out.size, out.dtype, o.problem.device, out.strides)
        for out in outputs[1:]
    ]
    written = [*others, *added]
    body = {
        "subgraphs": _subgraphs(planned, outputs, classes, ends, o),
        "input_nodes": [
            *(o.matrices[name] for name in planned.operands),
            *(o.offsets[side] for side in planned.measured),
            *([order or _order(planned.listed, o)] if planned.ordered else []),
            *(o.aux[a.number] for a in planned.reads),
            *(_table(a, o) for a in planned.tables),
            *written,
        ],
        "mutated_inputs": written or None,
        "layout": lowering.layout_of(
            outputs[0].size, outputs[0].strides, outputs[0].dtype, o.problem.device
        ),
        "call_sizes": _call_sizes(planned, outputs[0], o),
    }
    tried = _configs(planned, o.problem)
    choices = [
        {"num_warps": c.warps, "num_stages": c.stages, **constants(planned, c, o, outputs[0])}
        for c in tried
    ]
    examples = _examples(planned, body["input_nodes"], o)
    rivals = [] if rival is None else [rival(planned, body)]
    sizes = [*o.scalars, *(o.longest(side) for side in planned.measured)]
    best = templates.best_of(
        template(planned), f"gdpa_{kernel}", choices, body, examples, sizes, rivals
    )
    return [best, *others]


def _classes(outputs: list[Output], o: Inputs) -> TileClasses | None:
    """Which tiles of a kernel are empty or whole, or None if it computes all tiles alike."""
    if not o.options.skip:
        return None
    terms = [output.term for output in outputs]
    classes = classify_by_tables(terms, o.program.aux, _bounded(o))
    if not classes.skips:
        return None
    masked = classes.full.is_const and not classes.full.value  # no tile is known to be whole
    if masked:
        return replace(classes, full=const(True), full_terms=tuple(terms), keep=const(True))
    return classes


def skips(outputs: list[Output], o: Inputs) -> bool:
    """Whether a kernel with these outputs skips tiles."""
    return _classes(outputs, o) is not None


def _bounded(o: Inputs) -> list[int]:
    """The aux operands that may have tables of tile bounds. Their sizes have to be known."""
    fakes = o.fakes.aux
    return [
        number
        for number in boundable(o.program.aux)
        if all(shapes.size_hint(size) for size in fakes[number].shape)
    ]


def _ends(kernel: str, classes: TileClasses, o: Inputs) -> Ends:
    """The ends of a kernel's inner loop, or None if the kernel has to classify its tiles."""
    if kernel == "tiles":
        return None
    axis = loop_axis(kernel)
    inside = [number for number in classes.bounds if axis in o.program.aux[number].axes]
    return closed(classes, axis, inside)


def _subgraphs(
    plan: Plan, outputs: list[Output], classes: TileClasses | None, ends: Ends, o: Inputs
) -> list[Any]:
    """The subgraphs of a template, in the order of `Plan.subgraphs`."""
    device = o.problem.device

    def emitted(terms: Iterable[Expr]) -> list[Any]:
        return [emit.subgraph(t, o.program.weight, o.scalars, device, o.fast) for t in terms]

    lengths = [emit.size(o.longest(side), device) for side in plan.measured]
    subgraphs = emitted(output.term for output in outputs) + lengths
    if classes:
        chosen = [classes.zero, classes.full] if ends is None else ends.values()
        keep = [] if classes.keep is None else [classes.keep]
        subgraphs += emitted([*chosen, *classes.full_terms, *keep])
    return subgraphs


def _plan(
    kernel: str,
    outputs: list[Output],
    classes: TileClasses | None,
    ends: Ends,
    o: Inputs,
    **plan: Any,
) -> Plan:
    names, terms = [output.name for output in outputs], [output.term for output in outputs]
    whole = classes.full_terms if classes else ()

    def read(numbers: Iterable[int]) -> tuple[AuxRead, ...]:
        return tuple(AuxRead(i, o.program.aux[i]) for i in numbers)

    def reads(roots: Sequence[Expr]) -> tuple[AuxRead, ...]:
        return read(sorted({int(x.value or 0) for x in postorder(roots) if x.op == "aux"}))

    def flat(roots: Sequence[Expr]) -> frozenset[str]:
        return frozenset(
            name
            for name, root in zip(names, roots, strict=False)
            if not any(node.op in ("s", "g") for node in postorder([root]))
        )

    base = Plan(
        kernel=kernel,
        names=tuple(names),
        reads=reads(terms),
        flat=flat(terms),
        skips=classes is not None,
        bounds=None if ends is None else tuple(ends),
        tables=read(classes.bounds) if classes else (),
        whole_reads=reads(whole),
        whole_flat=flat(whole),
        keeps=classes is not None and classes.keep is not None,
        # The forward keeps its mask at the ends. It is no faster without, and its two loops spill.
        still=frozenset() if kernel == "forward" else still(names, [terms, whole or terms]),
        shared=o.shared,
        grouped=o.grouped,
        jagged=frozenset(o.offsets),
        alike=o.alike,
        **plan,
    )
    return replace(
        base,
        direct=bool(base.listed) and _direct(base.listed, o),
        batch_first=_batch_first(base, o),
    )


def _batch_first(plan: Plan, o: Inputs) -> bool:
    """Whether all batches read an operand of [H, M, N] that is too large for the L2 cache."""
    if plan.jagged or plan.split or plan.kernel not in ("forward", "rows", "keys"):
        return False
    read = [a for a in plan.reads if a.axes >= POSITIONS and "b" not in a.axes]
    return any(_bytes(o.fakes.aux[a.number]) > CACHED for a in read)


def _bytes(operand: torch.Tensor) -> int:
    """The bytes of an operand. Symbolic sizes count by their hints."""
    return operand.dtype.itemsize * math.prod(hint(size, 1) for size in operand.shape)


def few(o: Inputs, most: int) -> bool:
    """Whether there are at most `most` sequences. An unknown number counts as many."""
    hint = shapes.size_hint(o.problem.batch)
    return hint is not None and hint <= most


def _direct(side: str, o: Inputs) -> bool:
    """Whether the kernel computes its work tiles without a table.

    It does if a table would have no fewer work tiles than if all sequences had the greatest length.
    Few sequences always have a table, because it sorts them.
    """
    batch, total, longest = map(shapes.size_hint, (o.problem.batch, o.total(side), o.longest(side)))
    if few(o, _FEW) or batch is None or total is None or longest is None:
        return False
    return batch * max(1, -(-longest // WORK_TILE)) <= total // WORK_TILE + batch


def _order(side: str, o: Inputs) -> Any:
    """The table of the work tiles of a jagged side. Kernels of the graph share it."""
    nodes, fakes = o.extent(side)
    counted = few(o, _FEW)

    def formula(offsets: torch.Tensor, total: Any, longest: Any) -> torch.Tensor:
        return tile_order(offsets, total, longest, counted)

    def make() -> Any:
        return lowering.realized(lowering.inline_formula(formula, nodes, fakes), o.problem.device)

    key = (o.offsets[side].get_name(), *map(str, nodes[1:]), counted)
    return lowering.once_per_graph(key, make)


def _table(a: AuxRead, o: Inputs) -> Any:
    """The tile bounds of an operand. Kernels of the graph share them."""
    rows, columns = (
        a.access.index(axis) if axis in a.axes else None for axis in ("q_idx", "kv_idx")
    )

    def formula(operand: torch.Tensor) -> torch.Tensor:
        return tile_bounds(operand, rows, columns)

    def make() -> Any:
        bounds = lowering.inline_formula(formula, [o.aux[a.number]], [o.fakes.aux[a.number]])
        return lowering.realized(bounds, o.problem.device)

    return lowering.once_per_graph((o.aux[a.number].get_name(), rows, columns), make)


def _examples(plan: Plan, nodes: list[Any], o: Inputs) -> dict[int, Callable[[], torch.Tensor]]:
    """Inputs on which configurations are timed, by the number of the argument.

    Offsets have likely lengths. Integers of the program are between 0 and the number of keys, so
    that some tiles are skipped.
    """
    numbers = {name: number for number, name in enumerate(plan.arguments)}
    batch = max(1, lowering.likely_size(shapes.size_expr(o.problem.batch)))

    def sizes(side: str) -> tuple[int, int]:
        total, longest = (
            lowering.likely_size(shapes.size_expr(x)) for x in (o.total(side), o.longest(side))
        )
        return total, longest

    def offsets(side: str) -> torch.Tensor:
        likely = likely_offsets(batch, *sizes(side), o.problem.device)
        return likely.to(o.offsets[side].get_dtype())

    def order(side: str) -> torch.Tensor:
        return tile_order(offsets(side), *sizes(side), False)

    examples = {f"CU_{side.upper()}": partial(offsets, side) for side in plan.measured}
    if plan.ordered and plan.listed:
        examples["ORDER"] = partial(order, plan.listed)
    elif plan.ordered:
        examples["ORDER"] = partial(torch.arange, batch, dtype=torch.int32, device=o.problem.device)
    columns = max(1, lowering.likely_size(shapes.size_expr(o.problem.cols)))
    for a in plan.reads if plan.skips else ():
        if a.kind == "i" and not a.axes & POSITIONS:
            examples[a.name] = partial(lowering.random_integers, nodes[numbers[a.name]], columns)
    return {numbers[name]: make for name, make in examples.items()}


def _call_sizes(plan: Plan, output: Output, o: Inputs) -> list[Any]:
    """The arguments of the grid: (rows, keys, units).

    A unit is a (batch, head), or a (work tile, head) of a jagged side.
    """
    p = o.problem
    rows, cols, batch = map(shapes.size_expr, (p.rows, p.cols, p.batch))
    if plan.listed:
        heads = output.size[0] * output.size[2] if plan.split else output.size[1]
        return [WORK_TILE, WORK_TILE, _work_tiles(plan, o) * shapes.size_expr(heads)]
    if plan.kernel == "five_matmul":
        ctas = gpu.processors(p.device)
        return [1, 1, shapes.smaller(batch * shapes.size_expr(p.heads), ctas)]
    if plan.kernel == "one_tile":
        return [1, 1, batch * shapes.size_expr(p.heads) * one_tile.shares(p)]
    units = output.size[: 3 if plan.split or plan.kernel == "tiles" else 2]
    return [rows, cols, math.prod(map(shapes.size_expr, units), start=shapes.size_expr(1))]


def _work_tiles(plan: Plan, o: Inputs) -> Any:
    """How many work tiles of the jagged side get CTAs."""
    batch = shapes.size_expr(o.problem.batch)
    listed = shapes.listed_work_tiles(shapes.size_expr(o.total(plan.listed)), batch, WORK_TILE)
    longest = shapes.size_expr(o.longest(plan.listed))
    each = batch * shapes.work_tiles_each(longest, WORK_TILE)
    return each if plan.direct else shapes.smaller(listed, each) if few(o, _FEW) else listed


def _configs(plan: Plan, problem: Problem) -> list[Config]:
    dims = [block_dim(d) for d in (problem.head_dim, problem.value_dim)]
    tiles = [a.number for a in plan.reads if a.axes >= POSITIONS]
    score_bytes = sum(problem.aux_dtypes[number].itemsize for number in tiles)
    rows, cols = hint(problem.rows), hint(problem.cols)
    split = plan.split or (plan.kernel == "one_tile" and one_tile.shares(problem) > 1)
    kinds = {"skips": plan.skips, "jagged": bool(plan.jagged), "split": split}
    kinds |= {"short": cols <= SHORT, "few": rows <= FEW_ROWS, "tile": rows <= MOST_ROWS}
    loop = frozenset(kind for kind, is_so in kinds.items() if is_so)
    least = one_tile.tile_rows(problem) if plan.kernel == "one_tile" else 0
    shape = Shape(dims[0], dims[1], problem.dtype.itemsize, score_bytes, loop, least)
    shared, capability = gpu.shared_memory(problem.device), gpu.capability(problem.device)
    candidates = configs(plan.kernel, shape, shared, inductor.thorough(), capability)
    if plan.kernel != "five_matmul":  # the layout of its sums follows from these very tiles
        candidates = list(dict.fromkeys(_cut(config, problem, least) for config in candidates))
    alone = not inductor.thorough() and settled(
        plan.kernel, shape, _operations(problem), capability
    )
    return candidates[:1] if alone else candidates


def _operations(problem: Problem) -> int:
    """The FLOP of one product. An unknown size counts as long."""
    sizes = (problem.batch, problem.heads, problem.rows, problem.cols, problem.head_dim)
    return 2 * math.prod(shapes.size_hint(size) or SHORT for size in sizes)


def _cut(config: Config, problem: Problem, least: int) -> Config:
    """Make tiles no longer than the rows and keys that there are.

    These are hints if symbolic. So a tile that has to hold all rows keeps at least `least`.
    """
    limits = [
        1 << max(4, (size - 1).bit_length())
        for size in (shapes.size_hint(problem.rows), shapes.size_hint(problem.cols))
        if size
    ]
    if len(limits) < 2:
        return config
    rows = max(least, min(config.rows, limits[0]))
    return replace(config, rows=rows, keys=min(config.keys, limits[1]))
