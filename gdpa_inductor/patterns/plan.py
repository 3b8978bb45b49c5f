"""One candidate: from its nodes to the plan of what replaces them.

A candidate is read in the ways of `ATTEMPTS`, one after the other, until it is understood. Nothing
of the graph is changed here.
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
from .host import facts, places
from .host.candidates import Candidate, HostGraph
from .host.region import Finder, Region, Sink, Through
from .host.sizes import is_zero, product
from .jagged.padding import GraphPadding, NotPadded
from .jagged.step import Understood, without_padding
from .reading import shadow
from .reading.matcher import read
from .reading.program import program_of
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
    """A region that can be replaced: how, by what, and how much it should be preferred.

    pads: what pads its operands. biases: the operands between the products, where it trains.
    origins: where each of these operands comes from.
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
    """One way to read a candidate. through: what its operands are read through. rows, keys: the
    sides that are to do without their padding.
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

# The best first: each later one asks for less. A jagged side computes no padded rows or keys.
ATTEMPTS = (
    Attempt("rows and keys unpadded", _PADDING, rows=True, keys=True),
    # The keys may be padded with other numbers than zeros, or by other offsets.
    Attempt("rows unpadded", _PADDING, rows=True),
    # The padded output may be used as such.
    Attempt("keys unpadded", _PADDING, keys=True),
    # A mask that is a part of the program leaves tiles out, and is no tensor of the scores' size.
    Attempt("masks read", _MASKS),
    # What computes a mask may be out of the vocabulary: then its result is an operand.
    Attempt("views read", Through.VIEWS),
    # A view may cut across dimensions, or be changed in place: then its result is an operand.
    Attempt("operands as they are", Through.NOTHING),
)

# Refusals that may come from what a leaf is made by, and then vanish when it is taken as it is.
_DEPENDS_ON_LEAVES = (
    Code.ANALYSIS, Code.LAYOUT, Code.POINTWISE_OP, Code.DTYPE, Code.OPERAND_EXPANDS,
    Code.MUTATED_OPERAND, Code.LOWERING,
)  # fmt: skip


_MOST_CLOSED = 4  # parts of masks and biases that are not read, before none is


@dataclass
class Readings:
    """What the regions of one candidate are read as: each is traced once, whoever tries it.

    A region that reads through less is another function, of other inputs. It is traced anew: the
    wider trace may have failed at the very call whose result is now a leaf.
    """

    graph: HostGraph
    first: Node
    known: dict[tuple[tuple[Node, ...], ...], Reading | Refused] = field(default_factory=dict)

    def of(self, region: Region) -> Reading:
        """The reading of a region. Raises Refused where it cannot be read."""
        key = (region.makers, region.nodes, region.leaves)
        if key not in self.known:
            try:
                self.known[key] = self._read(region)
            except Refused as refusal:
                self.known[key] = refusal
        found = self.known[key]
        if isinstance(found, Refused):
            raise found
        return found

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
        """Jagged if it can be, else dense; `RegionPlan.notes` says why a side stays padded."""
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
        """The outcome; an error of ours leaves the candidate as it is."""
        try:
            return self.outcome(candidate)
        except Exception as error:
            log.warning("a region could not be analysed", exc_info=True)
            return rejection(candidate, internal_error(error))

    def _attempts(
        self, candidate: Candidate, notes: dict[Code, Rejection]
    ) -> Iterator[tuple[Attempt, Sink | None]]:
        """The attempts that a candidate gives cause for, with the sink of its rows where they are
        to be unpadded.
        """
        feeds = self.padding.feeds(candidate)
        for refusal in () if feeds else self._unused_padding(candidate):
            notes[refusal.code] = rejection(candidate, refusal)
        sink = self._sink(candidate, notes) if feeds else None
        for attempt in ATTEMPTS:
            if not attempt.is_jagged or (feeds and (sink is not None or not attempt.rows)):
                yield attempt, sink if attempt.rows else None

    def _unused_padding(self, candidate: Candidate) -> Iterator[Refused]:
        """Why padding that is behind the operands is of no use."""
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
        """What unpads the output. Why nothing does becomes a note, if the rows are padded."""
        try:
            return self.padding.sink(candidate.second)
        except Refused as refusal:
            if self.padding.pads_rows(candidate):
                notes[refusal.code] = rejection(candidate, refusal)
            return None

    def _plan(
        self, candidate: Candidate, attempt: Attempt, sink: Sink | None, readings: Readings
    ) -> RegionPlan:
        """What cannot be read of a mask or bias is taken as the model computes it."""
        if not self.graph.is_one_product(candidate.firsts):
            raise Refused(Code.SEVERAL_SCORES, "the weights are built from more than one product")
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
        """It is made of no scores. Nor is it an integer for each of them where the mask that is
        made of it may be one byte.
        """
        made, scores = facts.tensors(node), facts.tensors(candidate.firsts[0])[0]
        if len(made) != 1 or set(candidate.firsts) & self.graph.reach[node]:
            return False
        if made[0].dtype == torch.bool or made[0].dtype.is_floating_point:
            return True
        size, square = map(shapes.size_hint, (made[0].numel(), product(scores.shape[-2:])))
        return size is not None and square is not None and size < square

    def _region(
        self, candidate: Candidate, attempt: Attempt, sink: Sink | None, closed: Collection[Node]
    ) -> Region:
        finder = Finder(self.graph, self.padding.padded, self.padding.pads)
        region = finder.of(candidate, attempt.through, sink, closed)
        tensors = [t for n in (*region.nodes, *region.leaves) for t in facts.tensors(n)]
        if any(is_zero(size) for t in tensors for size in t.shape):
            raise Refused(Code.TOO_SMALL, "a dimension has size 0")
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
        """The plan of a region that is understood. Raises Refused where it does not pay, or cannot
        be written or lowered.
        """
        reading = understood.reading
        rank = profit.rank(program, reading)
        if rank == profit.SCALE and not understood.layout.rows:
            raise Refused(Code.TOO_SMALL, "three matrices are multiplied, one of them a row")
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
        return RegionPlan(candidate, region, recipe, result, problem, self._judged(problem), rank)

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
    second, firsts = candidate.second, candidate.firsts
    return Rejection(
        refusal.code,
        refusal.reason,
        places.location(second),
        second.name,
        places.module(*firsts, second),
        refusal.formula,
        None if second in firsts else _bytes(facts.tensors(firsts[0])[0]),
    )


def _bytes(scores: torch.Tensor) -> int | None:
    """What the scores take, by the sizes at capture."""
    count = shapes.size_hint(scores.numel())
    return None if count is None else count * scores.itemsize


def _shape_values(node: Node) -> list[int | torch.SymInt]:
    value = facts.value(node)
    return [
        s
        for s in (value if isinstance(value, (tuple, list)) else [value])
        if isinstance(s, (int, torch.SymInt))
    ]
