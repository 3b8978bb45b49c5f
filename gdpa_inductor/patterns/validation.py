"""`rewrite_graph`: repeat passes over a graph until the judge accepts the result.

A pass changes the graph itself, because its owner keeps references to its nodes. The judge compares
the result with a copy of the original graph. If it rejects a rewrite, or a rewrite cannot be
written to its end, that rewrite is banned. Then the graph is restored, and the next pass begins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from torch.fx import GraphModule

from .. import graphs, judge
from .._compat import autograd, dynamo
from ..options import Options
from ..rejection import Code, Rejection
from .plan import Supports
from .result import Match, Result
from .rewrite import Ban, PassConfig, RewriteError, rewrite_once

log = logging.getLogger("gdpa_inductor")


@autograd.saved_tensor_hooks_set_aside()
def rewrite_graph(
    gm: GraphModule,
    *,
    options: Options | None = None,
    supports: Supports | None = None,
    written: Callable[[GraphModule], None] | None = None,
) -> Result:
    """Rewrite a Dynamo or ATen graph in place, and the bodies that it calls.

    Args:
        supports: Called for each region. Its answer becomes the match's `choice`. A falsy answer (a
            Rejection) leaves the region as it is. None supports all regions.
        written: Called with the rewritten graph before it is judged. The judge may still reject it.
    """
    original: list[GraphModule] = []

    def snapshot() -> None:
        if not original:
            original.append(graphs.copy_graph(gm))

    config = PassConfig(options or Options(), supports, snapshot)
    rejections: list[Rejection] = []
    while True:
        try:
            result = rewrite_once(gm, config)
            if written is not None and result.matches:
                written(gm)
            judged = config.options.judge and result.matches
            bans = list(_bans(original[0], gm, result)) if judged else []
        except RewriteError as failure:
            bans = failure.bans
        if not bans:
            return result + Result((), tuple(rejections))
        graphs.restore(gm, original[0])
        rejections += [refusal for _, refusal in bans]
        banned = {*config.banned, *(names for names, _ in bans)}
        if banned == set(config.banned):  # another pass would have the same result
            return Result((), tuple(rejections))
        config.banned = banned


def claims(gm: GraphModule, matches: Iterable[Match]) -> judge.Claims:
    """The claims to judge: each result of a fused call stands for a node of the original graph."""
    results: dict[GraphModule, dict[str, str]] = {}
    for path, body in gm.named_modules(remove_duplicate=False):
        if isinstance(body, GraphModule):
            own = [match for match in matches if match.body == path]
            pairs = [pair for match in own for pair in (match.stands_for, *match.also, *match.sums)]
            results.setdefault(body, {}).update(pairs)
    return results


def _bans(original: GraphModule, gm: GraphModule, result: Result) -> Iterator[Ban]:
    """The rewrites to ban: the one at fault, or all if it is not known which one is."""
    verdict = judge.validate(original, gm, claims(gm, result.matches))
    if verdict is None:
        return
    code = Code.INVALID_REWRITE if verdict.invalid else Code.ANALYSIS
    for match in [m for m in result.matches if m.node == verdict.node] or result.matches:
        _log_verdict(match, verdict, original)
        place = (match.location, match.node, match.module, match.score_mod.formula)
        yield match.replaced, Rejection(code, verdict.reason, *place)


def _log_verdict(match: Match, verdict: judge.Verdict, graph: GraphModule) -> None:
    dynamo.counters["gdpa"]["invalid" if verdict.invalid else "unjudged"] += 1
    if verdict.invalid:
        log.error(
            "a planned rewrite is invalid and not applied; please report it with these lines\n"
            "%s\n%s\nprogram: %s\n%s",
            match,
            verdict.reason,
            match.score_mod,
            graph.print_readable(print_output=False),
        )
