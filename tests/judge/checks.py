"""The safety checks of the matcher, each with what the matcher does without it.

A check is a function, or an entry of a table, of the matcher; `without` makes its replacement from
it. One entry removes one check and leaves all others in place.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from gdpa_inductor.patterns import plan, rewrite, selection
from gdpa_inductor.patterns.host import candidates, effects, facts, finder, functions, pages, writes
from gdpa_inductor.patterns.host import row_sums as summed
from gdpa_inductor.patterns.jagged import offsets, padding, pads, sides, unpadding
from gdpa_inductor.patterns.reading import (
    contract,
    layout,
    matcher,
    precision,
    row_sums,
    views,
    vocabulary,
    weights,
)
from gdpa_inductor.patterns.tables import lookups
from gdpa_inductor.patterns.writing import recipe, replacement, saved, writer
from gdpa_inductor.program import canonical, expr, score_mod
from gdpa_inductor.rejection import Code
from tests.judge import mutants
from tests.judge.mutants import (
    Without,
    copies,
    first_argument,
    gives,
    identity,
    nothing,
    raised,
    unless,
)


@dataclass(frozen=True)
class Check:
    """owner, name: where the check is: a module, a class or a dict. without: the check -> what
    stands in its place. says: what it is for. decides: whether a call, by its result and its
    arguments, would be another one without the check; None where the replacement is asked.
    part: which part of a check that refuses for several reasons.
    """

    says: str
    owner: Any
    name: str
    without: Without
    decides: Callable[..., bool] | None = None
    part: str = ""

    @property
    def label(self) -> str:
        if isinstance(self.owner, dict):
            return f"rule of {self.name}"
        module = getattr(self.owner, "__module__", None) or self.owner.__name__
        inner = f"{self.owner.__name__}." if isinstance(self.owner, type) else ""
        return f"{module.rsplit('.', 1)[-1]}.{inner}{self.name}{self.part and ' ' + self.part}"

    @property
    def original(self) -> Any:
        if isinstance(self.owner, dict):
            return self.owner[self.name]
        return vars(self.owner)[self.name]

    def probed(self, note: Callable[[], None]) -> Any:
        """Call `note` where the check decides something: where it raises, or its replacement gives
        something else.
        """
        old = self.original
        old = old.__func__ if isinstance(old, staticmethod) else old
        new = self.without(old)

        def probe(*args: Any, **kwargs: Any) -> Any:
            try:
                result = old(*args, **kwargs)
            except Exception:
                note()
                raise
            if self.decides is not None:
                other = self.decides(result, *args, **kwargs)
            else:
                other = not _same(result, new(*args, **kwargs))
            if other:
                note()
            return result

        return self.replaced(probe)

    @property
    def runs(self) -> bool:
        """What it removes shows when the rewritten graph runs, not in its text."""
        return self.owner is expr.OPS

    @property
    def is_data(self) -> bool:
        """A table, or what only a running graph asks: nobody sees what it decides."""
        return self.runs or not (callable(self.original) or isinstance(self.original, staticmethod))

    def concerns(self, text: str) -> bool:
        """Whether a graph of this text names anything of a table."""
        names = [self.name, "minimum"] if self.runs else self.original
        return any(re.search(rf"\b{name}\b", text) for name in names)

    @contextmanager
    def replaced(self, new: Any) -> Iterator[None]:
        """`new` in place of the check."""
        new = staticmethod(new) if isinstance(self.original, staticmethod) else new
        patch: Any = mock.patch.object(self.owner, self.name, new)
        if isinstance(self.owner, dict):
            patch = mock.patch.dict(self.owner, {self.name: new})
        try:
            with patch:
                self._forget()
                yield
        finally:
            self._forget()

    def _forget(self) -> None:
        if self.runs:
            score_mod._parse.cache_clear()  # a program keeps its gradients

    def removed(self) -> Any:
        return self.replaced(self.without(self.original))


def _same(left: Any, right: Any) -> bool:
    try:
        return left is right or bool(left == right)
    except Exception:
        return False


CHECKS: list[Check] = [
    # In-place calls
    Check("no operand changes between its use and the output", effects, "_check_operands", nothing),
    Check("a number is read where `.item()` took it", effects, "_first_reads",
          mutants.reads_of_leaves),
    Check("no dims change in place", effects, "_check_dims", nothing),
    Check("a copy that may be an alias is not written", effects, "_check_copies", nothing),
    Check("nothing is written through expanded views", effects, "_check_expanded", nothing),
    Check("nothing is cut from its history in place", effects, "_check_history", nothing),
    Check("no write that autograd misses", effects, "_check_silent_writes", nothing),
    Check("a written copy is an operand of its own", effects, "is_overwritten", gives(False)),
    Check("a tensor whose gradient is asked for stays", effects, "is_watched", gives(False)),
    Check("no tensor gets another storage", functions, "MOVES", lambda old: frozenset()),
    Check("`detach_` and `requires_grad_` are seen", functions, "CUTS", lambda old: frozenset()),
    Check("`.data` is an alias without history", functions, "SILENT", lambda old: frozenset()),
    Check("an alias has no history", writes, "cuts_history", gives(False)),
    Check("casts and reshapes may return an alias", writes, "may_alias", gives(False)),
    Check("some functions write without a word", writes, "_silently_written", copies(list)),
    Check("`inplace=True` writes", writes, "_asks_inplace", gives(False)),
    Check("strides that are symbols decide about aliases", candidates, "_relate", nothing,
          lambda result, node, related: bool(related)),
    # Regions
    Check("operands are plain and on one device", finder.Finder, "_check_kinds", nothing),
    Check("one gradient mode, no transform", finder.Finder, "_check_ambient", nothing),
    Check("nobody else uses the scores", finder.Finder, "_with_users",
          unless(Code.SCORES_ESCAPE, mutants.users_as_factories)),
    Check("plans share the nodes of the same scores only", selection, "_may_meet", gives(True)),
    Check("plans of the same scores are all written", selection, "_outer_users", copies(list)),
    Check("in training values have calls of their own", selection, "_trains", gives(False)),
    Check("values of one call are there, and stay", selection, "may_move", gives(True)),
    Check("what is dead is pure", finder, "_is_pure", gives(True)),
    Check("what is dead reaches no write", finder.Finder, "_is_dead", mutants.dead_or_not,
          lambda result, *_: not result),
    Check("a factory's result is not written", finder.Finder, "_is_factory",
          mutants.names_of_factories),
    Check("of a shape only sizes are read", finder, "_is_readable", gives(True)),
    Check("masks are read in their own gradient mode", finder, "_wants_gradients", gives(False)),
    Check("only exact upcasts are read through", facts, "is_upcast", mutants.any_cast),
    Check("softmax and dropout are not fused, at once", finder, "NO_WEIGHTS", lambda old: {}),
    Check("unknown calls are opaque", facts, "_is_opaque_target", gives(False)),
    Check("random calls are no functions", facts, "is_random", gives(False)),
    Check("a mask that is written is not read through", candidates.HostGraph, "_is_spread",
          mutants.unwritten),
    Check("`detach` in a mask cuts its gradient", candidates, "_cuts_nothing",
          lambda old: lambda node: facts.name(node) == "detach"),
    Check("several products are one product", candidates.HostGraph, "is_one_product", gives(True)),
    Check("of several products one is the scores", candidates.HostGraph, "_scores_of",
          mutants.first_reach),
    Check("pages and their table are not written", pages, "_check_writes", nothing),
    Check("row sums and what they sum are not written", summed, "between", mutants.unwritten_sums),
    # What is kept for the backward
    Check("operands that change before the backward are copied", saved, "to_copy",
          copies(frozenset)),
    Check("a copy hides no change that autograd sees", saved, "_check_later", nothing),
    Check("a write through `.data` is silent", saved, "_is_silent", gives(False)),
    Check("callers may change what they gave", saved, "_caller_storages", copies(set)),
    Check("operands that autograd does not reach are cut", plan, "with_gradients", identity),
    Check("a checkpoint's operands may change after it", rewrite, "_changed_after",
          copies(frozenset)),
    Check("inputs of a body may want gradients", rewrite, "_learning", copies(frozenset)),
    Check("a dropout that drops nothing is an alias", facts, "_behind_idle_dropouts",
          lambda old: lambda graph, nodes: nodes),
    # Replacement
    Check("a foreach call writes into no view", replacement, "_meets_foreach", gives(False)),
    Check("a result made under no_grad is no view", recipe.Recipe, "own", first_argument),
    Check("the result has eager's strides", recipe.Recipe, "with_strides", first_argument),
    Check("an operand that is cut is detached", recipe.Recipe, "detached", first_argument),
    Check("no dimension is empty", plan, "is_zero", gives(False)),
    Check("sizes can be computed where the op stands", writer.Writer, "can_write",
          mutants.any_size),
    Check("a dead region is not rewritten", rewrite, "compatible", mutants.all_compatible),
    Check("a looked-up table may scale its gradient", lookups.LOOKUPS, "embedding",
          mutants.index_alone),
    # Reading
    Check("integers do not wrap", precision, "fits", gives(True)),
    Check("integers of comparisons meet in one dtype", weights, "meeting_dtype",
          lambda old: lambda node, name, result: result),
    Check("integers past 2^24 round in fp32", precision, "is_small", gives(True)),
    Check("a mask does not depend on rounding", precision, "fragile_condition", nothing),
    Check("fp32 beside fp64 rounds", precision, "rounded_term", nothing),
    Check("factors are real, fp64 is seen", precision.Precision, "check_dtypes", nothing, raised),
    Check("positions in 16 bits round", precision.Precision, "note_rounding", nothing),
    Check("operands that meet 16 bits round", weights, "in_16_bits", identity),
    Check("casts of scores round", weights.Weights, "_cast", mutants.rounds_nothing,
          lambda result, *_: result.op in ("bf16", "f16")),
    Check("all scores are of one position", weights.Weights, "_product",
          unless(Code.CROSS_ELEMENT, lambda *_: expr.SCORE), raised),
    Check("a second product is the first again", weights.Weights, "_is_twin", gives(True)),
    Check("`detach` cuts the gradient", weights.Weights, "_read", mutants.reads_detached,
          lambda result, self, node, index: facts.name(node) == "detach"),
    Check("a number from `.item()` has no gradient", weights.Weights, "_outside",
          mutants.not_detached, lambda result, self, leaf, index, detached=False: detached),
    Check("all of the second product is used, as it is", matcher.Matcher, "_second_product",
          mutants.part_of_result, raised),
    Check("a write of a part is no write of the whole", views, "_through_scatter",
          mutants.whole_scatter),
    Check("a constant is an index in its branch only", weights, "in_branches",
          mutants.all_branches),
    Check("row sums vanish with their weights only", row_sums, "_check_zero", nothing),
    Check("views keep the scores' dimensions apart", layout, "_check_views", nothing),
    Check("constants that overflow are not folded", canonical, "_same_range", gives(True)),
    Check("a clamp's slope is asked of torch", contract, "holding", mutants.of_another_torch),
    Check("lerp has two branches", vocabulary.RULES, "lerp", lambda old: mutants.plain_lerp),
    Check("division rounds towards zero", vocabulary.RULES, "div", mutants.towards_minus),
    Check("maximum beside a NaN", expr.OPS, "maximum", mutants.loses_to_nan),
    # Jagged sides
    Check("padded values are not written", offsets.Offsets, "changes", gives(False)),
    Check("offsets are the same", offsets.Offsets, "one", gives(True)),
    Check("padding in the region's gradient mode", padding.GraphPadding, "usable",
          unless(Code.GRAD_MODE, mutants.pad_of_leaf), part="GRAD_MODE"),
    Check("padded values stay until the output", padding.GraphPadding, "usable",
          unless(Code.MUTATED_OPERAND, mutants.pad_of_leaf), part="MUTATED_OPERAND"),
    Check("values are padded with zeros", sides, "_side", mutants.any_fill,
          lambda result, *_: result.pad.fill != 0),
    Check("the output is unpadded as the query is padded", sides, "_check_sink", nothing),
    Check("jagged lengths agree", sides, "alike", gives(True)),
    Check("a wrapped pad has its inverse as backward", pads, "_is_inverse", gives(True)),
    Check("subscripts with tensors are no views", padding, "_reads_through", mutants.by_type),
    Check("lengths are those of the offsets", unpadding, "measures", gives(True)),
    Check("lengths are differences of the offsets", unpadding, "_differences", gives(True)),
    Check("offsets are sums of integers", offsets, "_keeps_integers", gives(True)),
]  # fmt: skip
