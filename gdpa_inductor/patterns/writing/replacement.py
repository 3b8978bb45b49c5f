"""Make the replacement of one region.

It brings the operands to the operator's layout, calls the operator, and gives the result the layout
that the model's result had.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from ..._compat import subclasses
from ...operands import Operands
from ...ops import ATTENTION, Arguments
from ...options import Options
from ...problem import Problem
from ...rejection import Code, GDPAError
from ..host import facts
from ..host.candidates import HostGraph
from ..host.pages import kept
from ..host.region import Region
from ..host.sizes import Size, alike, same
from ..jagged.sides import Sides
from ..jagged.unpadding import Understood
from ..reading.frame import Index
from ..reading.layout import Layout, aux_dims, output_dims, query_dims, shared_dims, sizes
from ..reading.paging import Paging, paging_of
from ..reading.reading import Operand, RowFactor
from ..result import Refused
from . import saved
from .recipe import Handle, Recipe

aten = torch.ops.aten


def replacement(
    graph: HostGraph, region: Region, understood: Understood, options: Options
) -> tuple[Recipe, tuple[Handle, ...], Problem]:
    """(the calls that replace a region, its result and row sums, the problem for a kernel).

    Raises Refused if the calls do not fit.
    """
    expected, layout = facts.tensors(region.end)[0], understood.layout
    paging = _paging(graph, region, understood)
    recipe = _recipe(graph, region, understood)
    upcasts = _has_upcasts(layout, understood.reading.dtypes[0])
    if upcasts:  # without them, all factors have one dtype
        query, key = (replace(o, casts=()) for o in (layout.query, layout.key))
        layout = replace(layout, query=query, key=key)
    try:
        inputs = _inputs(recipe, layout, understood, paging)
        # Scores that were fp32 in the model must not be stored in 16 bits.
        wide = options.fp32_scores or upcasts
        kernel_options = replace(options.kernel_options, fp32_scores=wide)
        call = Arguments(inputs, options={"kernel_options": str(kernel_options)})
        args, _ = ATTENTION.call(call)
        output = recipe.call(ATTENTION.of(inputs.program).op, *args)
        sums: tuple[Handle, ...] = ()
        if region.sums is not None:
            output, rows = (recipe.call(operator.getitem, output, number) for number in range(2))
            sums = (_row_sums(graph, region.sums.node, understood, recipe, rows),)
        result = _result(graph, region, understood, recipe, output)
    except (GDPAError, RuntimeError, ValueError, TypeError) as error:
        raise Refused(Code.ANALYSIS, f"the replacement does not fit: {error}") from error
    fits = map(same if region.sink is None else alike, result.value.shape, expected.shape)
    if not all(fits) or result.value.dtype != expected.dtype:
        reason = f"the replacement would be {result.value.dtype}, not {expected.dtype}"
        raise Refused(Code.DTYPE, reason)
    fakes = inputs.filled([getattr(item, "value", item) for item in inputs.flat()])
    training = recipe.grad and any(t.requires_grad for t in fakes.differentiable)
    return recipe, (result, *sums), Problem.of(fakes, training)


def _row_sums(
    graph: HostGraph, node: Node, understood: Understood, recipe: Recipe, sums: Handle
) -> Handle:
    """The row sums as the model has them, in the place of its call `node`."""
    expected, wanted = facts.tensors(node)[0], understood.reading.sums
    assert wanted is not None
    result = recipe.arrange(sums, output_dims(understood.layout)[:-1], wanted.index)
    result = recipe.with_strides(recipe.cast(result, expected.dtype), expected)
    return result if graph.wants(node) else recipe.detached(result)


def _recipe(graph: HostGraph, region: Region, understood: Understood) -> Recipe:
    layout, grad = understood.layout, graph.ambient[region.end].grad
    factors = [layout.query.leaf, layout.key.leaf, layout.value.leaf]
    # What is stored as small integers is a copy anyway, and a seed is nobody else's.
    copies = [o for o in understood.operands if o.places is not None or o.is_seed]
    others = [operand.leaf for operand in understood.operands if operand not in copies]
    pads = [side.pad for side in understood.sides.jagged]
    copied = saved.to_copy(graph, region, factors, others, pads) if grad else ()
    return Recipe(grad, subclasses.fake_mode_of(facts.tensors(region.end)[0]), copied)


def _paging(graph: HostGraph, region: Region, understood: Understood) -> Paging | None:
    layout = understood.layout
    paging = paging_of(layout, understood.sides.padding.offsets.one)
    leaves = [layout.query.leaf, *(operand.leaf for operand in understood.operands)]
    if paging is not None and graph.ambient[region.end].grad and saved.trains(graph, leaves):
        raise kept(layout.key.leaf, "gradients are wanted (`torch.no_grad()` wants none)")
    return paging


def _inputs(
    recipe: Recipe, layout: Layout, understood: Understood, paging: Paging | None
) -> Operands[Handle]:
    query, table = _operand(recipe, layout.query, query_dims(layout)), None
    if paging is None:
        key = _operand(recipe, layout.key, shared_dims(layout, layout.key, layout.inner))
        value = _operand(recipe, layout.value, shared_dims(layout, layout.value, layout.channels))
        query = _with_batch(recipe, layout, query, (key, value))
    else:
        key = _in_place(recipe, *paging.key, layout.key)
        value = _in_place(recipe, *paging.value, layout.value)
        table = _operand(recipe, *paging.table)
        query = _with_batch(recipe, layout, query, (table,))
    aux = [
        recipe.seed(x.leaf) if x.is_seed else _operand(recipe, x, aux_dims(layout, x)[0])
        for x in understood.operands
    ]
    device = query.value.device
    for number, tensor in enumerate(aux):
        # A scalar on the CPU may meet tensors of any device, but a kernel reads its own.
        if tensor.value.device != device:
            aux[number] = recipe.call(aten._to_copy.default, tensor, device=device)
    lengths = _lengths(recipe, understood.sides)
    scalars, program = understood.reading.scalars, understood.program
    operands = Operands(query, key, value, aux, scalars, program, *lengths)
    return replace(operands, page_table=table)


def _result(
    graph: HostGraph, region: Region, understood: Understood, recipe: Recipe, output: Handle
) -> Handle:
    expected, layout = facts.tensors(region.end)[0], understood.layout
    wanted = understood.reading.output
    if layout.query_tokens is not None:
        wanted = (layout.query_tokens, *wanted[2:])
    if understood.reading.factor is not None:
        output = _scaled(recipe, output, understood.reading.factor, layout)
    result = recipe.arrange(output, output_dims(layout), wanted)
    for dtype in understood.reading.dtypes:
        result = recipe.cast(result, dtype)
    if region.sink is not None and not all(map(same, result.value.shape, expected.shape)):
        # Other symbols for its sizes: the call checks at run time.
        result = recipe.call(aten.view.default, result, list(expected.shape))
    # Code after the region may ask for the strides, or view by them.
    result = recipe.with_strides(result, expected)
    # Made without gradients, but used where they flow: a view of the operator's output would be
    # refused an in-place write that the model may make.
    if not recipe.grad and any(state.grad for state in graph.ambient.values()):
        result = recipe.own(result)
    copies = _meets_foreach(graph, region.end)
    return recipe.call(aten.clone.default, result) if copies else result


def _scaled(recipe: Recipe, output: Handle, factor: RowFactor, layout: Layout) -> Handle:
    """The output of the op times, or divided by, a number for each row."""
    *axes, _ = output_dims(layout)
    by = _operand(recipe, factor.operand, (*axes, ()))
    function = {"mul": aten.mul.Tensor, "div": aten.div.Tensor}[factor.function]
    return recipe.call(function, output, by)


def _meets_foreach(graph: HostGraph, result: Node) -> bool:
    # In the body of a checkpoint torch gives wrong gradients if a torch._foreach_* function writes
    # into a view. The user's own result is not a view.
    writers = graph.written(facts.storages(result), graph.order[result])
    return any(facts.name(writer).startswith("_foreach") for writer in writers)


def _lengths(recipe: Recipe, sides: Sides) -> tuple[Any, ...]:
    """(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)"""
    pads = [None if side is None else side.pad for side in (sides.query, sides.key)]
    offsets = [None if pad is None else recipe.leaf(pad.offsets, part="offsets") for pad in pads]
    if sides.share_offsets:  # equal offsets are the same node
        offsets[1] = offsets[0]
    return *offsets, *(0 if pad is None else pad.longest for pad in pads)


def _has_upcasts(layout: Layout, result: torch.dtype) -> bool:
    """Whether query and key are upcast exactly, and all three factors have one 16-bit dtype."""
    return all(
        o.casts == (torch.float32,)
        and facts.tensors(o.leaf)[0].dtype == result
        and result.itemsize == 2
        for o in (layout.query, layout.key)
    )


def _operand(recipe: Recipe, operand: Operand, dims: Index) -> Handle:
    handle = recipe.leaf(operand.leaf, *operand.casts[:1])
    if operand.detached:
        handle = recipe.detached(handle)
    if operand.places is not None:
        handle = _small(recipe, handle, operand.places, operand.wraps)
    if operand.summed:
        handle = recipe.call(aten.sum.dim_IntList, handle, list(operand.summed), True)
    handle = recipe.arrange(handle, operand.index, dims)
    for dtype in operand.casts:
        handle = recipe.cast(handle, dtype)
    return handle


def _in_place(recipe: Recipe, pool: Operand, dims: Index, copy: Operand) -> Handle:
    """A pool as it lies. Raises Refused if it would be copied, with the gather of the copy."""
    handle = _operand(recipe, replace(pool, casts=copy.casts), dims)
    tensors = (handle.value, facts.tensors(pool.leaf)[0])
    if len({subclasses.storage_address(t.untyped_storage()) for t in tensors}) > 1:
        raise kept(copy.leaf, "the pools would be copied as a whole")
    return handle


def _small(recipe: Recipe, index: Handle, size: Size, wraps: bool) -> Handle:
    """An index into so many places in few bits. What lies outside becomes the first place outside,
    so that a look-up there gives NaN.
    """
    places = index
    if not _lies_within(index.node, size):
        places = recipe.cast(index, torch.int64)
        if wraps:
            below = recipe.call(aten.lt.Scalar, places, 0)
            from_end = recipe.call(aten.add.Scalar, places, size)
            places = recipe.call(aten.where.self, below, from_end, places)
        below = recipe.call(aten.lt.Scalar, places, 0)
        places = recipe.call(aten.masked_fill.Scalar, places, below, size)
        places = recipe.call(aten.clamp_max.default, places, size)
    dtypes = (torch.uint8, torch.int16)
    known = (x for x in dtypes if isinstance(size, int) and size <= torch.iinfo(x).max)
    return recipe.cast(places, next(known, torch.int32))


def _lies_within(index: Node | None, size: Size) -> bool:
    """Whether an index is clamped to 0 .. size - 1."""
    if index is None or facts.name(index) not in ("clamp", "clip"):
        return False
    low, high = facts.argument(index, 1, "min"), facts.argument(index, 2, "max")
    known = all(isinstance(x, int) for x in (low, high, size))
    return known and 0 <= low <= high < size


def _with_batch(recipe: Recipe, layout: Layout, query: Handle, others: Sequence[Handle]) -> Handle:
    # A mask alone may have a batch. The query is expanded to it then.
    jagged = layout.query_tokens is not None or layout.key_tokens is not None
    batches = [handle.value.shape[0] for handle in (query, *others)]
    if jagged or not layout.batch or any(isinstance(n, torch.SymInt) or n != 1 for n in batches):
        return query
    shape = [sizes(layout.batch), *query.value.shape[1:]]
    return recipe.call(aten.expand.default, query, shape)
