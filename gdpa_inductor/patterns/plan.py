"""One candidate: from its nodes to the plan of what replaces them.

A candidate is read jagged first, if padding feeds it, and dense then, each time with less and less
of what makes its operands, until it is understood. Nothing of the graph is changed here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from .. import _compat
from ..operands import Operands
from ..options import Options
from ..problem import Problem
from ..program.expr import INDEX, SCORE, Expr, aux, call, const, fold, postorder
from ..program.score_mod import Aux, ScoreMod
from ..rejection import Code, GDPAError, Rejection
from . import profit
from .host import facts, places
from .host.candidates import Candidate, HostGraph
from .host.region import Finder, Region, Sink
from .host.sizes import alike, is_zero, product, same
from .jagged.implied import without_implied
from .jagged.padding import GraphPadding, NotPadded
from .jagged.sides import Sides, sides
from .reading import shadow
from .reading.canonical import canonical
from .reading.layout import Layout, aux_dims, layout_of, output_dims, query_dims, shared_dims
from .reading.matcher import read
from .reading.reached import with_gradients
from .reading.reading import Operand, Reading
from .result import Refused, internal_error
from .writing import saved
from .writing.recipe import Handle, Recipe
from .writing.writer import Writer

log = logging.getLogger("gdpa_inductor")
Supports = Callable[[Problem], object]


@dataclass(frozen=True)
class Plan:
    """A region that can be replaced: how, by what, and how much it should be preferred.

    pads: what pads its operands. biases: the operands between the products, where it trains.
    """

    candidate: Candidate
    region: Region
    recipe: Recipe
    result: Handle
    problem: Problem
    choice: object
    rank: int
    pads: tuple[Node, ...] = ()
    biases: tuple[Node, ...] = ()
    notes: tuple[Rejection, ...] = ()


# Refusals that may come from what a leaf is made by, and then vanish when it is taken as it is.
_DEPENDS_ON_DEPTH = (
    Code.ANALYSIS, Code.LAYOUT, Code.POINTWISE_OP, Code.DTYPE, Code.OPERAND_EXPANDS,
    Code.MUTATED_OPERAND, Code.LOWERING,
)  # fmt: skip


_MOST_CLOSED = 4  # parts of masks and biases that are not read, before none is


@dataclass(frozen=True)
class Attempt:
    """How a candidate is read. depth: through what its operands are (see `region.Finder`).

    jagged: on which sides the values are to be taken without their padding, "q" with the `sink`
    that unpads the output.
    """

    depth: int
    jagged: str = ""
    sink: Sink | None = None


@dataclass(frozen=True)
class Analyst:
    """Plans the replacement of candidates of one graph."""

    graph: HostGraph
    padding: GraphPadding
    writer: Writer
    options: Options
    supports: Supports | None

    def outcome(self, candidate: Candidate) -> Plan | Rejection:
        """Jagged if it can be, else dense; `Plan.notes` says why a side stays padded."""
        told = lambda refusal: rejection(candidate, refusal)
        notes: dict[Code, Rejection] = {}
        refused: Refused | None = None
        for attempt in self._attempts(candidate, notes, told):
            try:
                return replace(self._plan(candidate, attempt), notes=tuple(notes.values()))
            except Refused as refusal:
                if attempt.jagged:
                    if not isinstance(refusal, NotPadded):
                        notes.setdefault(refusal.code, told(refusal))
                    continue
                refused = refused or refusal
                if refusal.code not in _DEPENDS_ON_DEPTH:
                    break
        assert refused is not None
        return told(refused)

    def guarded(self, candidate: Candidate) -> Plan | Rejection:
        """The outcome; an error of ours leaves the candidate as it is."""
        try:
            return self.outcome(candidate)
        except Exception as error:
            log.warning("a region could not be analysed", exc_info=True)
            return rejection(candidate, internal_error(error))

    def _attempts(
        self, candidate: Candidate, notes: dict[Code, Rejection], told: Callable[..., Rejection]
    ) -> Iterator[Attempt]:
        """The best first. Why the output has no sink becomes a note, if an operand is padded."""
        if self.padding.feeds(candidate):
            try:
                sink = self.padding.sink(candidate.second)
                yield from (Attempt(3, sides, sink) for sides in ("qk", "q"))
            except Refused as refusal:
                if self.padding.pads_rows(candidate):
                    notes[refusal.code] = told(refusal)
            yield Attempt(3, "k")
        elif self.padding.derives(candidate):
            notes[Code.JAGGED_OPERAND] = told(
                Refused(
                    Code.JAGGED_OPERAND,
                    "the operands are computed from padded values: act on the values before they "
                    "are padded",
                )
            )
        yield from map(Attempt, (2, 1, 0))

    def _plan(self, candidate: Candidate, attempt: Attempt) -> Plan:
        """What cannot be read of a mask or bias is taken as the model computes it."""
        if not self.graph.is_one_product(candidate.firsts):
            raise Refused(Code.SEVERAL_SCORES, "the weights are built from more than one product")
        closed: set[Node] = set()
        while True:
            try:
                return self._planned(candidate, attempt, closed)
            except Refused as refusal:
                node = refusal.node
                if node is None or node in closed or len(closed) == _MOST_CLOSED:
                    raise
                if not self._worth_closing(node, candidate):
                    raise
                closed.add(node)

    def _worth_closing(self, node: Node, candidate: Candidate) -> bool:
        """It is made of no scores, and is not an integer for each of them where the mask that is
        made of it may be one byte.
        """
        made, scores = facts.tensors(node), facts.tensors(candidate.firsts[0])[0]
        if len(made) != 1 or set(candidate.firsts) & self.graph.reach[node]:
            return False
        if made[0].dtype == torch.bool or made[0].dtype.is_floating_point:
            return True
        size, square = map(_compat.size_hint, (made[0].numel(), product(scores.shape[-2:])))
        return size is not None and square is not None and size < square

    def _planned(self, candidate: Candidate, attempt: Attempt, closed: Collection[Node]) -> Plan:
        graph, options = self.graph, self.options
        finder = Finder(graph, self.padding.padded, self.padding.pads)
        region = finder.of(candidate, attempt.depth, attempt.sink, closed)
        if any(
            is_zero(s)
            for n in (*region.nodes, *region.leaves)
            for t in facts.tensors(n)
            for s in t.shape
        ):
            raise Refused(Code.TOO_SMALL, "a dimension has size 0")
        ordered = sorted((*region.makers, *region.nodes), key=graph.order.__getitem__)
        reading = read(shadow.trace(ordered, candidate.firsts[0], region.leaves, graph.ambient))
        reading = with_gradients(reading)
        jagged = sides(self.padding, attempt.jagged, reading, attempt.sink, region.end)
        layout = jagged.layout(layout_of(reading, jagged.batch, jagged.rows))
        reading = replace(reading, aux=tuple(map(jagged.operand, reading.aux)))
        reading = without_implied(self.padding, reading, jagged)
        program, operands = _program(reading, layout)
        rank = profit.rank(program, reading)
        if rank == profit.SCALE and not layout.rows:
            raise Refused(Code.TOO_SMALL, "three matrices are multiplied, one of them a row")
        recipe, result, problem = _replacement(
            region, graph, reading, layout, jagged, program, operands, options
        )
        refusal = profit.judge(problem, rank, options.profit)
        if refusal is not None:
            raise refusal
        needed = [
            *reading.scalars,
            *(s for n in region.sizes for s in _shape_values(n)),
            *recipe.sizes(),
        ]
        if not all(map(self.writer.can_write, needed)):
            raise Refused(
                Code.ANALYSIS, "a symbolic size cannot be computed from the graph's inputs"
            )
        choice = self._judged(problem)
        known = self.padding.pads
        pads = tuple(n for leaf in region.leaves if leaf in known for n in known[leaf].calls)
        biases = tuple(operand.leaf for operand in operands) if problem.training else ()
        return Plan(candidate, region, recipe, result, problem, choice, rank, pads, biases)

    def _judged(self, problem: Problem) -> object:
        choice = True if self.supports is None else self.supports(problem)
        if not choice:
            given = (
                choice
                if isinstance(choice, Rejection)
                else Rejection(Code.LOWERING, "no kernel supports it")
            )
            raise Refused(given.code, given.reason)
        return choice


def rejection(candidate: Candidate, refusal: Refused) -> Rejection:
    """A refusal as a value, with its place."""
    second = candidate.second
    return Rejection(refusal.code, refusal.reason, places.location(second), second.name)


def _program(reading: Reading, layout: Layout) -> tuple[ScoreMod, list[Operand]]:
    """The program in terms of b, h, n and m, with its operands in the order of their first use."""
    used = [node for node in postorder([reading.weight]) if node.op == "aux"]
    numbers = {int(leaf.value or 0): position for position, leaf in enumerate(used)}
    axes = {layout.axes[axis]: index for axis, index in INDEX.items() if layout.axes[axis]}

    def leaf(node: Expr) -> Expr:
        if node.op == "aux":
            return aux(numbers[int(node.value or 0)], node.kind)
        if node.op == "index":
            digits = reading.space.resolve(reading.positions[int(node.value or 0)])
            if digits not in axes:
                raise Refused(Code.LAYOUT, "a triangle is cut from merged dimensions of the scores")
            return axes[digits]
        return node

    def apply(node: Expr, values: list[object]) -> Expr:
        return call(node.op, *(v if isinstance(v, Expr) else const(v) for v in values))  # type: ignore[arg-type]

    (weight,) = fold([reading.weight], leaf, apply)
    operands = [reading.aux[number] for number in numbers]
    declared = tuple(
        Aux(node.kind, aux_dims(layout, operand)[1]) for node, operand in zip(used, operands)
    )
    weight = canonical(weight)
    if SCORE not in set(postorder([weight])):
        raise Refused(Code.CONTRACTION, "the weights do not depend on the first product")
    return ScoreMod(weight, declared), operands


def _replacement(
    region: Region, graph: HostGraph, reading: Reading, layout: Layout, jagged: Sides,
    program: ScoreMod, operands: Sequence[Operand], options: Options,
) -> tuple[Recipe, Handle, Problem]:  # fmt: skip
    """The calls that replace a region, tried on its fakes."""
    expected = facts.tensors(region.end)[0]
    grad = graph.ambient[region.end].grad
    leaves = [layout.query.leaf, layout.key.leaf, layout.value.leaf]
    sides = [side.pad for side in (jagged.query, jagged.key) if side is not None]
    copied = saved.to_copy(graph, region, leaves, [o.leaf for o in operands], sides) if grad else ()
    recipe = Recipe(grad, _compat.fake_mode_of(expected), copied)
    try:
        layout = _without_upcasts(layout, expected.dtype)
        query = _operand(recipe, layout.query, query_dims(layout))
        key = _operand(recipe, layout.key, shared_dims(layout, layout.key, layout.inner))
        value = _operand(recipe, layout.value, shared_dims(layout, layout.value, layout.channels))
        query = _with_batch(recipe, layout, query, (key, value))
        tensors = [_operand(recipe, operand, aux_dims(layout, operand)[0]) for operand in operands]
        tensors = [recipe.moved(t, query.value.device) for t in tensors]
        given: Operands[Handle] = Operands(
            query, key, value, tensors, reading.scalars, program, *_lengths(recipe, jagged)
        )
        output = recipe.call(
            torch.ops.gdpa.attention.default, *given.arguments(str(options.kernel_options))
        )
        wanted = reading.output
        if layout.query_tokens is not None:
            wanted = (layout.query_tokens, *reading.output[2:])
        result = recipe.arrange(output, output_dims(layout), wanted)
        if region.sink is not None:
            result = recipe.sized(result, expected.shape)
        result = recipe.with_strides(result, expected)
        if not grad and any(state.grad for state in graph.ambient.states.values()):
            result = recipe.own(result)
        if _meets_foreach(graph, region.end):
            result = recipe.duplicated(result)
    except (GDPAError, RuntimeError, ValueError, TypeError) as error:
        raise Refused(Code.ANALYSIS, f"the replacement does not fit: {error}") from error
    if (
        not all(map(same if region.sink is None else alike, result.value.shape, expected.shape))
        or result.value.dtype != expected.dtype
    ):
        raise Refused(
            Code.DTYPE, f"the replacement would be {result.value.dtype}, not {expected.dtype}"
        )
    fakes = given.filled([getattr(item, "value", item) for item in given.flat()])
    training = recipe.grad and any(t.requires_grad for t in fakes.differentiable)
    return recipe, result, Problem.of(fakes, training)


def _meets_foreach(graph: HostGraph, result: Node) -> bool:
    """Whether one of torch._foreach_* writes into the result. In a checkpoint's body torch gives
    wrong gradients where it writes into a view, which the user's own result is not.
    """
    writers = graph.written(facts.storages(result), graph.order[result])
    return any(facts.name(writer).startswith("_foreach") for writer in writers)


def _lengths(recipe: Recipe, sides: Sides) -> tuple[Any, ...]:
    """cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k; offsets that are one are one node."""
    query, key = sides.query, sides.key
    offsets_q = None if query is None else recipe.offsets(query.pad.offsets)
    offsets_k = None if key is None else recipe.offsets(key.pad.offsets)
    if sides.share_offsets:
        offsets_k = offsets_q
    longest = (0 if side is None else side.pad.longest for side in (query, key))
    return offsets_q, offsets_k, *longest


def _without_upcasts(layout: Layout, result: torch.dtype) -> Layout:
    """Query and key before an exact upcast, where all three factors are then of one 16-bit type."""
    operands = (layout.query, layout.key)
    upcast = all(
        o.casts == (torch.float32,)
        and facts.tensors(o.leaf)[0].dtype == result
        and result.itemsize == 2
        for o in operands
    )
    if not upcast:
        return layout
    query, key = (replace(o, casts=()) for o in operands)
    return replace(layout, query=query, key=key)


def _operand(recipe: Recipe, operand: Operand, dims: tuple[tuple[object, ...], ...]) -> Handle:
    handle = recipe.leaf(operand.leaf)
    handle = recipe.detached(handle) if operand.detached else handle
    handle = recipe.arrange(handle, operand.index, dims)  # type: ignore[arg-type]
    for dtype in operand.casts:
        handle = recipe.cast(handle, dtype)
    return handle


def _with_batch(recipe: Recipe, layout: Layout, query: Handle, others: Sequence[Handle]) -> Handle:
    """One of query, key and value must have the batch: where a mask alone has it, the query is
    expanded.
    """
    jagged = layout.query_tokens is not None or layout.key_tokens is not None
    if jagged or not layout.batch or any(not _is_one(h.value.shape[0]) for h in (query, *others)):
        return query
    return recipe.expanded(query, layout.batch)


def _is_one(size: int | torch.SymInt) -> bool:
    return isinstance(size, int) and size == 1


def _shape_values(node: Node) -> list[int | torch.SymInt]:
    value = facts.value(node)
    return [
        s
        for s in (value if isinstance(value, (tuple, list)) else [value])
        if isinstance(s, (int, torch.SymInt))
    ]
