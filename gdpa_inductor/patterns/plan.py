"""Plan the replacement of one candidate. Nothing in the graph is changed here.

In: a candidate of a graph. Out: a `RegionPlan`, or a `Rejection` that says why there is none. A
candidate is read in the ways of `ATTEMPTS`, one after the other, until one succeeds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch.fx import Node

from .._compat import shapes
from ..options import Options
from ..problem import Problem
from ..program.score_mod import ScoreMod
from ..rejection import Code, Rejection
from . import profit, tables
from .host import facts, places, row_sums
from .host.candidates import Candidate, HostGraph
from .host.region import Finder, Region, Sink, Through
from .host.sizes import is_one, is_zero, product
from .jagged.padding import GraphPadding, NotPadded
from .jagged.unpadding import Understood, without_padding
from .reading import shadow
from .reading.layout import program_of
from .reading.matcher import read
from .reading.reached import with_gradients
from .reading.reading import Operand, Reading
from .result import Origin, Refused, internal_error
from .writing.recipe import Handle, Recipe
from .writing.replacement import replacement
from .writing.writer import Writer

log = logging.getLogger("gdpa_inductor")
Supports = Callable[[Problem], object]


@dataclass(frozen=True)
class RegionPlan:
    """A region that can be replaced, and its replacement.

    pads:     The calls that pad its operands.
    biases:   The operands of the score program, if the region trains.
    origins:  Where each of these operands comes from.
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
    origins: tuple[Origin, ...] = ()


@dataclass(frozen=True)
class Attempt:
    """One way to read a candidate.

    through:     The calls that are read as a part of the region, and not as its leaves.
    rows, keys:  The sides whose padding is removed.
    """

    name: str
    through: Through
    rows: bool = False
    keys: bool = False

    @property
    def is_jagged(self) -> bool:
        return self.rows or self.keys


_MASKS = Through.VIEWS | Through.MASKS
_PADDING = _MASKS | Through.PADDING

# The best attempt comes first, and each later one needs less. A jagged side computes no padded rows
# or keys.
ATTEMPTS = (
    Attempt("rows and keys unpadded", _PADDING, rows=True, keys=True),
    # For keys that are padded with other numbers than zeros, or by other offsets.
    Attempt("rows unpadded", _PADDING, rows=True),
    # For a padded output that is used as it is.
    Attempt("keys unpadded", _PADDING, keys=True),
    # A mask in the program skips tiles, and needs no tensor of the scores' size.
    Attempt("masks read", _MASKS),
    # If an operation of the mask is not in the vocabulary, the mask becomes an operand.
    Attempt("views read", Through.VIEWS),
    # If a view cuts across dims, or is changed in place, its result becomes an operand.
    Attempt("operands as they are", Through.NOTHING),
)

# Refusals that a call before a leaf may cause. They vanish if the leaf is an operand as it is.
_DEPENDS_ON_LEAVES = (
    Code.ANALYSIS, Code.LAYOUT, Code.POINTWISE_OP, Code.DTYPE, Code.OPERAND_EXPANDS,
    Code.MUTATED_OPERAND, Code.LOWERING,
)  # fmt: skip


# Refusals that say no more than that a product is none of scores: it may be a bias.
_OF_A_BIAS = (
    Code.LAYOUT, Code.CROSS_ELEMENT, Code.CONTRACTION, Code.SCORES_BROADCAST, Code.SCORES_ESCAPE,
    Code.SEVERAL_SCORES,
)  # fmt: skip

_MOST_CLOSED = 4  # after so many masks and biases that cannot be read, none is read


@dataclass
class Readings:
    """The readings of the regions of one candidate. Each region is traced once.

    A region that reads through fewer calls has other leaves, so it is another function. It is
    traced anew: the wider trace may have failed at the very call whose result is now a leaf.
    """

    graph: HostGraph
    first: Node
    known: dict[tuple[tuple[Node, ...], ...], Reading | Refused] = field(default_factory=dict)

    def of(self, region: Region) -> Reading:
        """The reading of a region. Raises Refused if it cannot be read."""
        key = (region.makers, region.nodes, region.leaves)
        if key not in self.known:
            try:
                self.known[key] = self._read(region)
            except Refused as refusal:
                self.known[key] = refusal
        reading = self.known[key]
        if isinstance(reading, Refused):
            raise reading
        return reading

    def _read(self, region: Region) -> Reading:
        nodes = sorted((*region.makers, *region.nodes), key=self.graph.order.__getitem__)
        return with_gradients(
            read(shadow.trace(nodes, self.first, region.leaves, self.graph.ambient))
        )


@dataclass(frozen=True)
class Analyst:
    """Plans the replacement of candidates of one graph."""

    graph: HostGraph
    padding: GraphPadding
    writer: Writer
    options: Options
    supports: Supports | None

    def outcome(self, candidate: Candidate) -> RegionPlan | Rejection:
        """The plan of a candidate, or why there is none.

        Of several products one may give the scores, and the others biases or gates, which are
        operands then. The one with the most elements is the first to try: those are not stored.
        """
        if self.graph.is_one_product(candidate.firsts):
            return self._outcome(candidate)
        reduction = self.graph.reduction(candidate)
        if reduction is not None:
            return rejection(candidate, row_sums.within(reduction, candidate.second))
        outcomes = [
            self._outcome(Candidate(candidate.second, one)) for one in self._ones(candidate)
        ]
        plans = [x for x in outcomes if isinstance(x, RegionPlan) and not is_one(x.problem.rows)]
        if plans:
            return plans[0]
        refusal = next((x for x in outcomes if isinstance(x, Rejection)), None)
        if refusal is not None and refusal.code not in _OF_A_BIAS:
            return refusal
        reason = "the weights are built from more than one product"
        return rejection(candidate, Refused(Code.SEVERAL_SCORES, reason))

    def _ones(self, candidate: Candidate) -> list[tuple[Node, ...]]:
        """The products of a candidate, each with its copies, the largest first."""
        counts: dict[tuple[Node, ...], int] = {}
        for first in candidate.firsts:
            one = tuple(x for x in candidate.firsts if self.graph.is_one_product((first, x)))
            counts[one] = shapes.size_hint(facts.tensors(first)[0].numel()) or 0
        return sorted(counts, key=lambda one: -counts[one])

    def _outcome(self, candidate: Candidate) -> RegionPlan | Rejection:
        """The plan of a candidate whose scores are one product, or why there is none.

        A side is jagged if it can be. Otherwise `RegionPlan.notes` says why it stays padded.
        """
        notes: dict[Code, Rejection] = {}
        readings = Readings(self.graph, candidate.firsts[0])
        refused: Refused | None = None
        for attempt, sink in self._attempts(candidate, notes):
            try:
                plan = self._plan(candidate, attempt, sink, readings)
                return replace(plan, notes=tuple(notes.values()))
            except Refused as refusal:
                log.debug("%s, %s: %s", candidate.second, attempt.name, refusal.reason)
                if attempt.is_jagged:
                    if not isinstance(refusal, NotPadded):
                        notes.setdefault(refusal.code, rejection(candidate, refusal))
                    continue
                refused = refused or refusal
                if refusal.code not in _DEPENDS_ON_LEAVES:
                    break
        assert refused is not None
        return rejection(candidate, refused)

    def guarded(self, candidate: Candidate) -> RegionPlan | Rejection:
        """The outcome.

        An error of this package becomes a refusal, and leaves the model as it is.
        """
        try:
            return self.outcome(candidate)
        except Exception as error:
            log.warning("a region could not be analysed", exc_info=True)
            return rejection(candidate, internal_error(error))

    def _attempts(
        self, candidate: Candidate, notes: dict[Code, Rejection]
    ) -> Iterator[tuple[Attempt, Sink | None]]:
        """The attempts to make for a candidate, each with the sink of its rows if one removes their
        padding.
        """
        feeds = self.padding.feeds(candidate)
        for refusal in () if feeds else self._unused_padding(candidate):
            notes[refusal.code] = rejection(candidate, refusal)
        sink = self._sink(candidate, notes) if feeds else None
        for attempt in ATTEMPTS:
            if not attempt.is_jagged or (feeds and (sink is not None or not attempt.rows)):
                yield attempt, sink if attempt.rows else None

    def _unused_padding(self, candidate: Candidate) -> Iterator[Refused]:
        """Why padding before the operands cannot be removed."""
        if self.padding.derives(candidate):
            yield Refused(
                Code.JAGGED_OPERAND,
                "the operands are computed from padded values: act on the values before they are "
                "padded",
            )
        unread = self.padding.unread_pad(candidate)
        if unread is not None:
            reason = (
                f"{places.describe(unread)} pads what is attended to, and all of it is computed"
            )
            yield Refused(Code.JAGGED_PADDING, reason)

    def _sink(self, candidate: Candidate, notes: dict[Code, Rejection]) -> Sink | None:
        """The unpadding of the output, or None.

        If the rows are padded, the reason becomes a note.
        """
        try:
            return self.padding.sink(candidate.second)
        except Refused as refusal:
            if self.padding.pads_rows(candidate):
                notes[refusal.code] = rejection(candidate, refusal)
            return None

    def _plan(
        self, candidate: Candidate, attempt: Attempt, sink: Sink | None, readings: Readings
    ) -> RegionPlan:
        """The plan of one attempt. A mask or bias that cannot be read becomes an operand."""
        closed: set[Node] = set()
        while True:
            try:
                region = self._region(candidate, attempt, sink, closed)
                return self._planned(candidate, region, attempt, readings)
            except Refused as refusal:
                node = refusal.node
                if node is None or node in closed or len(closed) == _MOST_CLOSED:
                    raise
                if not self._worth_closing(node, candidate):
                    raise
                closed.add(node)

    def _worth_closing(self, node: Node, candidate: Candidate) -> bool:
        """Whether a node may become an operand.

        It must not be made from scores. It should not be an integer for each score either, if a
        mask of one byte for each score is made from it.
        """
        tensors, scores = facts.tensors(node), facts.tensors(candidate.firsts[0])[0]
        if len(tensors) != 1 or set(candidate.firsts) & self.graph.reach[node]:
            return False
        if tensors[0].dtype == torch.bool or tensors[0].dtype.is_floating_point:
            return True
        size, square = map(shapes.size_hint, (tensors[0].numel(), product(scores.shape[-2:])))
        return size is not None and square is not None and size < square

    def _region(
        self, candidate: Candidate, attempt: Attempt, sink: Sink | None, closed: Collection[Node]
    ) -> Region:
        siblings = self.graph.siblings(candidate)
        finder = Finder(self.graph, self.padding.padded, self.padding.pads, siblings)
        region = finder.of(candidate, attempt.through, sink, closed)
        tensors = [t for n in (*region.nodes, *region.leaves) for t in facts.tensors(n)]
        if any(is_zero(size) for t in tensors for size in t.shape):
            raise Refused(Code.TOO_SMALL, "a dimension has size 0", change="")
        return region

    def _planned(
        self, candidate: Candidate, region: Region, attempt: Attempt, readings: Readings
    ) -> RegionPlan:
        understood = without_padding(
            self.padding, readings.of(region), region.sink, attempt.keys, region.end
        )
        reading = understood.reading
        program, operands = program_of(reading, understood.layout)
        try:
            plan = self._approved(candidate, region, understood, program, operands)
        except Refused as refusal:
            refusal.formula = program.formula
            raise
        known = self.padding.pads
        pads = tuple(n for leaf in region.leaves if leaf in known for n in known[leaf].calls)
        biases = tuple(operand.leaf for operand in operands) if plan.problem.training else ()
        origins = tuple(places.origin(o.leaf, candidate.second) for o in operands)
        return replace(plan, pads=pads, biases=biases, origins=origins)

    def _approved(
        self, candidate: Candidate, region: Region, understood: Understood, program: ScoreMod,
        operands: Sequence[Operand],
    ) -> RegionPlan:  # fmt: skip
        """The plan of a region that was read.

        Raises Refused if it does not pay, or cannot be written or lowered.
        """
        reading = understood.reading
        rank = profit.rank(program, reading)
        if rank == profit.SCALE and not understood.layout.rows:
            reason = "three matrices are multiplied, one of them a row: there are no weights"
            raise Refused(Code.CONTRACTION, reason)
        recipe, result, problem = replacement(
            self.graph, region, understood, program, operands, self.options
        )
        if problem.training:
            leaves = [operand.leaf for operand in operands]
            problem = replace(problem, crowded=tables.crowded(self.graph, leaves))
        refusal = profit.judge(problem, rank, self.options.profit)
        if refusal is not None:
            raise refusal
        sizes = [size for node in region.sizes for size in _shape_values(node)]
        if not all(map(self.writer.can_write, [*reading.scalars, *sizes, *recipe.sizes()])):
            raise Refused(
                Code.ANALYSIS, "a symbolic size cannot be computed from the graph's inputs"
            )
        return RegionPlan(candidate, region, recipe, result, problem, self._choice(problem), rank)

    def _choice(self, problem: Problem) -> object:
        choice = True if self.supports is None else self.supports(problem)
        if not choice:
            refusal = (
                choice
                if isinstance(choice, Rejection)
                else Rejection(Code.LOWERING, "no kernel supports it")
            )
            raise Refused(refusal.code, refusal.reason)
        return choice


def rejection(candidate: Candidate, refusal: Refused) -> Rejection:
    """A refusal as a value, with its place in the user's source."""
    second, firsts = candidate.second, candidate.firsts
    return Rejection(
        refusal.code,
        refusal.reason,
        places.location(second),
        second.name,
        places.module(*firsts, second),
        refusal.formula,
        None if second in firsts else _bytes(facts.tensors(firsts[0])[0]),
        refusal.change,
    )


def _bytes(scores: torch.Tensor) -> int | None:
    """The bytes of the scores. Symbolic sizes count by their hints."""
    count = shapes.size_hint(scores.numel())
    return None if count is None else count * scores.itemsize


def _shape_values(node: Node) -> list[int | torch.SymInt]:
    value = facts.value(node)
    return [
        s
        for s in (value if isinstance(value, (tuple, list)) else [value])
        if isinstance(s, (int, torch.SymInt))
    ]
