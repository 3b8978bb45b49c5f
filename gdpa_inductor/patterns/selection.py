"""Which plans of a graph are written together. Plans of the same scores may share all but their
second products, if all of them are written: each of them then computes the scores anew. Without
gradients, values of the same weights stand side by side in one call.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from torch.fx import Node

from ..options import Profit
from ..problem import Problem
from ..rejection import Code
from .host.candidates import HostGraph
from .host.finder import escape
from .plan import RegionPlan, Supports
from .result import Refused
from .writing.concatenation import concatenate
from .writing.recipe import Handle, Recipe
from .writing.writer import Writer, may_move


@dataclass(frozen=True)
class Replacement:
    """What is written in the place of the first plan: the calls, and a result for each plan."""

    plans: tuple[RegionPlan, ...]
    recipe: Recipe
    results: tuple[Handle, ...]
    problem: Problem
    choice: object

    @staticmethod
    def of(plan: RegionPlan) -> Replacement:
        return Replacement((plan,), plan.recipe, (plan.result,), plan.problem, plan.choice)

    @property
    def replaced(self) -> tuple[str, ...]:
        nodes = itertools.chain(*((*p.region.all_nodes, *p.region.dead) for p in self.plans))
        return tuple(dict.fromkeys(node.name for node in nodes))


def compatible(
    plans: Sequence[RegionPlan], graph: HostGraph, profit: Profit
) -> tuple[list[RegionPlan], list[tuple[RegionPlan, Refused]]]:
    """(the plans to write, in program order; the plans whose scores something else uses, and why).

    Plans of different scores share no node. A plan with an activation is preferred to one with only
    a mask, and that to one without either. A plan whose result nobody uses is left out: it vanishes
    with the scores that it is made of.
    """
    dead = {node for plan in plans for node in plan.region.dead}
    left = sorted((p for p in plans if p.region.end not in dead), key=lambda p: -p.rank)
    refused: list[tuple[RegionPlan, Refused]] = []
    while True:
        chosen: list[RegionPlan] = []
        for plan in left:
            if all(_may_meet(plan, other) for other in chosen):
                chosen.append(plan)
        # Without a plan that uses the same scores, the scores are stored after all. So a choice is
        # made again until all users of each region are replaced, or the region is given up.
        incomplete = [plan for plan in chosen if _outer_users(plan, chosen)]
        slow: list[RegionPlan] = []
        if not incomplete and profit is True:
            for plan in chosen:
                alike = _of_same_scores(plan, chosen)
                if len(alike) > 1 and any(p.problem.training for p in alike):
                    slow.append(plan)
        if not incomplete and not slow:
            return sorted(chosen, key=lambda p: graph.order[p.region.end]), refused
        refused += [(plan, Refused(Code.SLOWER, _AGAIN, change=_BESIDE)) for plan in slow]
        dropped = set(map(id, (*incomplete, *slow)))
        left = [plan for plan in left if id(plan) not in dropped]
        elsewhere = {n for plan in left for n in plan.region.all_nodes}
        for plan in incomplete:
            user, node = _outer_users(plan, chosen)[0]
            if user not in elsewhere:  # else another region multiplies these "scores" as its values
                refused.append((plan, escape(node, user, plan.candidate.second)))


_AGAIN = "in training the scores would be computed anew for each product that uses them"
_BESIDE = (
    "put values of the same weights side by side, as `w @ torch.cat([v, u], -1)`, "
    "or force it with `options={'gdpa.profit': False}`"
)


def _of_same_scores(plan: RegionPlan, plans: Sequence[RegionPlan]) -> list[RegionPlan]:
    return [p for p in plans if p.candidate.firsts == plan.candidate.firsts]


def _may_meet(one: RegionPlan, other: RegionPlan) -> bool:
    """Whether two plans share no node, or just what is made of the same scores."""
    mine, theirs = set(one.region.all_nodes), set(other.region.all_nodes)
    if mine.isdisjoint(theirs):
        return True
    if not {x.node for x in one.draws}.isdisjoint(x.node for x in other.draws):
        return False  # their masks might differ
    same = one.candidate.firsts == other.candidate.firsts
    return same and one.region.end not in theirs and other.region.end not in mine


def _outer_users(plan: RegionPlan, chosen: Sequence[RegionPlan]) -> list[tuple[Node, Node]]:
    """The users of a region that no other plan of these scores replaces, and what they use."""
    regions = [p.region for p in _of_same_scores(plan, chosen)]
    replaced = {node for region in regions for node in (*region.all_nodes, *region.dead)}
    return [(user, node) for user, node in plan.region.shared if user not in replaced]


def replacements(
    chosen: Sequence[RegionPlan],
    writer: Writer,
    supports: Supports | None,
    banned: Collection[tuple[str, ...]],
) -> list[Replacement]:
    """What to write for plans in program order. banned: As `PassConfig` has it."""
    result: list[Replacement] = []
    for plan in chosen:
        for number, other in enumerate(result):
            both = _beside(other, plan, writer, supports)
            if both is not None and both.replaced not in banned:
                result[number] = both
                break
        else:
            result.append(Replacement.of(plan))
    return result


def _beside(
    earlier: Replacement, plan: RegionPlan, writer: Writer, supports: Supports | None
) -> Replacement | None:
    """One replacement for a plan and earlier ones of the same weights; None where that is not
    possible, or the kernel would be another one.

    With gradients, each result would reach the values of the others. These would have gradients of
    zeros where the model has none.
    """
    first, plans = earlier.plans[0], (*earlier.plans, plan)
    if first.candidate.firsts != plan.candidate.firsts or _trains(plans, writer):
        return None
    if first.problem.page is not None:  # pools are not copied
        return None
    if any(p.sums is not None or p.draws for p in plans):
        return None
    here, there = first.region.end, plan.region.end
    if not may_move(plan.recipe.calls, here, there, writer.host):
        return None
    try:
        merged = concatenate([(p.recipe, p.result) for p in plans])
    except (RuntimeError, ValueError, TypeError):  # the values do not fit
        return None
    if merged is None:
        return None
    recipe, results = merged
    if not all(writer.can_write(size, before=first.region.end) for size in recipe.sizes()):
        return None
    problem = replace(first.problem, value_dim=recipe.attention.value.shape[-1])
    choice = True if supports is None else supports(problem)
    # A wider value may be past the head dims of a kernel, and another one is no gain.
    kernels = {getattr(x, "kernel", None) for x in (choice, *(p.choice for p in plans))}
    if not choice or len(kernels) > 1:
        return None
    return Replacement(plans, recipe, tuple(results), problem, choice)


def _trains(plans: Sequence[RegionPlan], writer: Writer) -> bool:
    return plans[-1].recipe.grad and any(writer.host.wants(p.region.end) for p in plans)
