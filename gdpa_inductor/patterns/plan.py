"""Plan the replacement of one candidate. Nothing in the graph is changed here.

In: a candidate of a graph. Out: a `RegionPlan`, or a `Rejection` that says why there is none. A
candidate is read in the ways of `ATTEMPTS`, one after the other, until one succeeds.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch.fx import Node

from .._compat import shapes
from ..options import Options
from ..problem import Problem
from ..rejection import Code, Rejection
from . import profit, tables
from .host import facts, heads, pages, places, row_sums
from .host.candidates import Candidate, HostGraph, is_index
from .host.finder import Finder, Through
from .host.functions import REASONS
from .host.region import Region, Sink
from .host.sizes import is_one, is_zero
from .jagged.padding import GraphPadding, NotPadded
from .jagged.unpadding import Understood, without_padding
from .reading import shadow
from .reading.layout import drawn
from .reading.matcher import read
from .reading.reached import with_gradients
from .reading.reading import Reading
from .result import Draw, Origin, Refused, internal_error
from .writing.recipe import Handle, Recipe
from .writing.replacement import replacement
from .writing.writer import Writer, may_move

log = logging.getLogger("gdpa_inductor")
Supports = Callable[[Problem], object]


@dataclass(frozen=True)
class RegionPlan:
    """A region that can be replaced, and its replacement.

    sums:     The row sums, if they are a result too.
    pads:     The calls that pad its operands.
    draws:    The dropouts for which its call draws.
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
    sums: Handle | None = None
    pads: tuple[Node, ...] = ()
    draws: tuple[Draw, ...] = ()
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


_MASKS = Through.VIEWS | Through.MASKS | Through.PAGES
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
    Code.MUTATED_OPERAND, Code.LOWERING, Code.TABLE_STORED,
)  # fmt: skip


# Refusals that say no more than that a product is none of scores: it may be a bias.
_OF_A_BIAS = (
    Code.LAYOUT, Code.CROSS_ELEMENT, Code.CONTRACTION, Code.SCORES_BROADCAST, Code.SCORES_ESCAPE,
    Code.SEVERAL_SCORES,
)  # fmt: skip

_TOGETHER = "sum the weights under the autocast that they are multiplied under"
_BEFORE = "compute V, masks and biases before the weights are summed or multiplied"
_MOST_CLOSED = 8  # after so many masks and biases that cannot be read, none is read


@dataclass(frozen=True)
class Analyst:
    """Plans the replacement of candidates of one graph.

    readings: The readings of regions, each of which is traced once. A region that reads through
    fewer calls has other leaves, so it is traced anew: the wider trace may have failed at the very
    call whose result is now a leaf.
    """

    graph: HostGraph
    padding: GraphPadding
    writer: Writer
    options: Options
    supports: Supports | None
    readings: dict[tuple[Node | tuple[Node, ...], ...], Reading | Refused] = field(
        default_factory=dict
    )

    def outcome(self, candidate: Candidate) -> RegionPlan | Rejection:
        """The plan of a candidate, or why there is none.

        An error of this package becomes a refusal, and leaves the model as it is.
        """
        try:
            if self.graph.is_one_product(candidate.firsts):
                return self._outcome(candidate)
            return self._outcome_of_several(candidate)
        except Exception as error:
            log.warning("a region could not be analysed", exc_info=True)
            return rejection(candidate, internal_error(error))

    def _outcome_of_several(self, candidate: Candidate) -> RegionPlan | Rejection:
        """One of several products may give the scores; the others are operands: biases or gates.

        The one with the most elements is the first to try: those are not stored.
        """
        reduction = self.graph.reduction(candidate)
        if reduction is not None:
            return rejection(candidate, row_sums.within(reduction, candidate.second))
        counts: dict[tuple[Node, ...], int] = {}
        for first in candidate.firsts:
            copies = tuple(x for x in candidate.firsts if self.graph.is_one_product((first, x)))
            counts[copies] = shapes.size_hint(facts.tensors(first)[0].numel()) or 0
        largest_first = sorted(counts, key=lambda copies: -counts[copies])
        outcomes = [self._outcome(Candidate(candidate.second, one)) for one in largest_first]
        for plan in outcomes:
            # One row against many keys is rather a gate or a pooled bias than scores.
            if isinstance(plan, RegionPlan) and not is_one(plan.problem.rows):
                return plan
        refusal = next((x for x in outcomes if isinstance(x, Rejection)), None)
        if refusal is not None and refusal.code not in _OF_A_BIAS:
            return refusal
        reason = "the weights are built from more than one product"
        return rejection(candidate, Refused(Code.SEVERAL_SCORES, reason))

    def _outcome(self, candidate: Candidate) -> RegionPlan | Rejection:
        """The plan of a candidate whose scores are one product, or why there is none.

        A side is jagged if it can be. Otherwise `RegionPlan.notes` says why it stays padded.
        """
        sink, refusals = self._sink(candidate)
        notes = {refusal.code: rejection(candidate, refusal) for refusal in refusals}
        feeds = self.padding.feeds(candidate)
        refused: Refused | None = None
        siblings = self.graph.siblings(candidate)
        finder = Finder(self.graph, self.padding.padded, self.padding.pads, siblings)
        for attempt in ATTEMPTS:
            if (attempt.is_jagged and not feeds) or (attempt.rows and sink is None):
                continue
            try:
                plan = self._plan(candidate, attempt, sink if attempt.rows else None, finder)
                return replace(plan, notes=(*notes.values(), *plan.notes))
            except Refused as refusal:
                log.debug("%s, %s: %s", candidate.second, attempt.name, refusal.reason)
                # What forbids a jagged side does not forbid the dense form: it is a note beside the
                # match.
                if attempt.is_jagged:
                    if not isinstance(refusal, NotPadded):
                        notes.setdefault(refusal.code, rejection(candidate, refusal))
                    continue
                # The first refusal is the one to report: later attempts read less of what the user
                # wrote.
                refused = refused or refusal
                if refusal.code not in _DEPENDS_ON_LEAVES:
                    break
        assert refused is not None
        mixing = self.graph.projection(candidate) if refused.code is Code.LAYOUT else None
        if mixing is not None:
            reason = f"{places.describe(mixing)} {REASONS[Code.CROSS_ELEMENT]}"
            refused = Refused(Code.CROSS_ELEMENT, reason)
        return rejection(candidate, refused)

    def _sink(self, candidate: Candidate) -> tuple[Sink | None, list[Refused]]:
        """(the call that unpads the rows, why padding stays)"""
        if not self.padding.feeds(candidate):
            return None, list(self._unused_padding(candidate))
        try:
            return self.padding.sink(candidate.second), []
        except Refused as refusal:
            return None, [refusal] if self.padding.pads_rows(candidate) else []

    def _unused_padding(self, candidate: Candidate) -> Iterator[Refused]:
        if self.padding.derives(candidate):
            reason = "the operands are computed from padded values"
            advice = "act on the values before they are padded"
            yield Refused(Code.JAGGED_OPERAND, f"{reason}: {advice}")
        unread = self.padding.unread_pad(candidate)
        if unread is not None:
            reason = "pads what is attended to, and all of it is computed"
            yield Refused(Code.JAGGED_PADDING, f"{places.describe(unread)} {reason}")

    def _plan(
        self, candidate: Candidate, attempt: Attempt, sink: Sink | None, finder: Finder
    ) -> RegionPlan:
        closed: dict[Node, Refused] = {}
        while True:
            makers: tuple[Node, ...] = ()
            try:
                region = finder.of(candidate, attempt.through, sink, closed)
                makers = region.makers
                plan = self._planned(candidate, region, attempt)
                return replace(plan, notes=tuple(self._stored(candidate, closed)))
            except Refused as refusal:
                # A mask or bias that cannot be read may be an operand as it is. It is closed, and
                # the region is found again without it.
                node = self._whole(refusal.node, makers)
                if node is None or node in closed or len(closed) == _MOST_CLOSED:
                    raise
                if not self._worth_closing(node, candidate):
                    raise
                closed[node] = refusal

    def _whole(self, node: Node | None, makers: Collection[Node]) -> Node | None:
        """A node, or what joins it with others: one operand instead of many."""
        moved = self.graph.rearranging.intersection(makers)
        if node not in moved:
            return node
        onwards = facts.walk([node], lambda n: moved.intersection(n.users))
        joins = [n for n in onwards if facts.name(n) in heads.JOINS]
        return self.graph.in_order(joins)[-1] if joins else node

    def _stored(self, candidate: Candidate, closed: Mapping[Node, Refused]) -> Iterator[Rejection]:
        """Why pages are gathered, and why biases that are looked up are operands."""
        copied = [x for x in closed.values() if x.code is Code.PAGES_COPIED]
        yield from (rejection(candidate, refusal) for refusal in copied[:1])
        for node, refusal in closed.items():
            if refusal in copied:
                continue
            if self.graph.looks_up(node):
                reason = f"{places.describe(node)}: {refusal.reason}"
                yield rejection(candidate, Refused(Code.TABLE_STORED, reason))

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
        if is_index(node):  # which is stored in a byte
            return True
        size, square = map(shapes.size_hint, (tensors[0].numel(), math.prod(scores.shape[-2:])))
        return size is not None and square is not None and size < square

    def _planned(self, candidate: Candidate, region: Region, attempt: Attempt) -> RegionPlan:
        tensors = [t for n in (*region.nodes, *region.leaves) for t in facts.tensors(n)]
        if any(is_zero(size) for t in tensors for size in t.shape):
            raise Refused(Code.TOO_SMALL, "a dimension has size 0", change="")
        if region.sums is not None and attempt.is_jagged:
            raise Refused(Code.JAGGED_LAYOUT, "rows of padded weights are summed")
        reading = self._reading(region, candidate.firsts[0])
        understood = without_padding(self.padding, reading, region.sink, attempt.keys, region.end)
        try:
            return self._approved(candidate, region, understood)
        except Refused as refusal:
            raise refusal.but(formula=understood.program.formula) from refusal.__cause__

    def _reading(self, region: Region, first: Node) -> Reading:
        # Attempts and siblings often come to the same nodes, and a trace is the dear part.
        key = first, region.makers, region.all_nodes, region.leaves
        if key not in self.readings:
            try:
                traced = shadow.trace(self.graph, region, first)
                self.readings[key] = with_gradients(read(traced))
            except Refused as refusal:
                self.readings[key] = refusal
        reading = self.readings[key]
        if isinstance(reading, Refused):
            raise reading
        return reading

    def _approved(self, candidate: Candidate, region: Region, understood: Understood) -> RegionPlan:
        reading = understood.reading
        rank = profit.rank(understood.program, reading)
        if rank == profit.SCALE and not understood.layout.rows:
            reason = "three matrices are multiplied, one of them a row: there are no weights"
            raise Refused(Code.CONTRACTION, reason)
        recipe, results, problem = replacement(self.graph, region, understood, self.options)
        first = self._first_end(region, recipe.until(*results[1:]))
        leaves = tuple(operand.leaf for operand in understood.operands)
        others = tuple(operand.leaf for operand in understood.operands if not operand.is_seed)
        biases = others if problem.training else ()
        key = understood.layout.key.leaf
        copies = (key, understood.layout.value.leaf)
        looking = [n for n in region.makers if self.graph.looks_up(n) and n not in copies]
        if problem.training:
            problem = replace(problem, crowded=tables.crowded(self.graph, [*biases, *looking]))
        profit.check(problem, rank, self.options.profit)
        sizes = [*reading.scalars, *recipe.sizes()]
        for values in map(facts.value, region.sizes):
            sizes += values if isinstance(values, (tuple, list)) else [values]
        # Asked before anything is written: a half-written graph could not be taken back.
        known_sizes = [size for size in sizes if isinstance(size, (int, torch.SymInt))]
        before = None if first is region.end else first
        if not all(self.writer.can_write(size, before) for size in known_sizes):
            reason = "a symbolic size cannot be computed from the graph's inputs"
            raise Refused(Code.ANALYSIS, reason)
        known = self.padding.pads
        try:
            choice = self._choice(problem, looking, understood)
        except Refused as refusal:
            if problem.page is None or refusal.node is not None:
                raise
            raise pages.kept(key, refusal.reason) from refusal
        return RegionPlan(
            candidate=candidate,
            region=region,
            recipe=recipe,
            result=results[0],
            sums=results[1] if len(results) > 1 else None,
            problem=problem,
            choice=choice,
            rank=rank,
            pads=tuple(n for leaf in region.leaves if leaf in known for n in known[leaf].calls),
            draws=tuple(drawn(understood.layout, o) for o in understood.operands if o.is_seed),
            biases=biases,
            origins=tuple(places.origin(leaf, candidate.second) for leaf in leaves),
        )

    def _first_end(self, region: Region, calls: Sequence[Handle]) -> Node:
        """The first node to replace. Raises Refused if `calls` cannot be made there."""
        first, *later = self.graph.in_order(region.ends)
        ambient = self.graph.ambient
        apart = next((n for n in later if ambient[n].autocast != ambient[first].autocast), None)
        if apart is not None:
            reason = f"{places.describe(apart)} runs under another autocast than "
            reason += places.describe(first)
            raise Refused(Code.SCORES_ESCAPE, reason, change=_TOGETHER)
        if not all(may_move(calls, first, node, self.graph) for node in later):
            reason = f"all that {places.describe(region.end)} reads is not known at "
            reason += f"{places.describe(first)}, or changes after it"
            raise Refused(Code.SCORES_ESCAPE, reason, change=_BEFORE)
        return first

    def _choice(self, problem: Problem, looking: Sequence[Node], understood: Understood) -> object:
        """The backend. Raises Refused with a look-up, if its result is rather an operand."""
        if not problem.program.places or not looking:
            return self._supported(problem)
        pairs = zip(understood.operands, problem.program.aux, strict=True)
        learns = any(facts.may_want_gradients(x.leaf) for x, spec in pairs if spec.is_table)
        try:
            choice = self._supported(problem)
            kernel = getattr(choice, "kernel", "")
            reason = profit.rather_stored(problem, kernel, learns, self.options.profit)
        except Refused as refusal:
            reason = refusal.reason
        if reason:
            raise Refused(Code.TABLE_STORED, reason, looking[-1])
        return choice

    def _supported(self, problem: Problem) -> object:
        choice = True if self.supports is None else self.supports(problem)
        if isinstance(choice, Rejection):
            raise Refused(choice.code, choice.reason)
        if not choice:
            raise Refused(Code.LOWERING, "no kernel supports it")
        return choice


def rejection(candidate: Candidate, refusal: Refused) -> Rejection:
    """A refusal as a value, with its place in the user's source."""
    second, firsts = candidate.second, candidate.firsts
    scores = facts.tensors(firsts[0])[0]
    count = shapes.size_hint(scores.numel())
    return Rejection(
        refusal.code,
        refusal.reason,
        places.location(second),
        second.name,
        places.module(*firsts, second),
        refusal.formula,
        None if second in firsts or count is None else count * scores.itemsize,
        refusal.change,
    )
