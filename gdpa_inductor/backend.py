"""The entry points: `torch.compile(m, backend="gdpa")`, and the same pass inside stock Inductor.

Both find and rewrite regions in the Dynamo graph (`patterns`), if `lowerings` can run them. All
else is left to Inductor.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from . import compiles, lowerings, proving
from ._compat import dynamo, inductor
from .graphs import copy_graph
from .options import BACKENDS, Options, check_names, split
from .patterns import Result, rewrite_graph
from .problem import Problem
from .rejection import Category, Code, GDPAError, Rejection

log = logging.getLogger("gdpa_inductor")


def gdpa_backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The Dynamo backend "gdpa": rewrite GDPA regions of `gm`, then compile with Inductor.

    Args:
        mode: as torch.compile's, for Inductor.
        options: `gdpa.*` are ours (see `options.Options`), all others Inductor's.

    Raises:
        ValueError: an option that is neither ours nor Inductor's, with the nearest name.
        GDPAError: under `gdpa.strict` or `gdpa.expect`.
        Under torch.compile both arrive as the `inner_exception` of BackendCompilerFailed.
    """
    inductor.start_processes()
    ours, theirs = split(options)
    check_names(theirs, inductor.option_names())
    chosen = Options.make(ours)
    settings = inductor.inductor_config(mode, theirs)
    original = copy_graph(gm) if chosen.verify else None
    with inductor.random_settings(settings):
        result = rewrite(gm, chosen)
    compiled = inductor.compile_with_inductor(gm, example_inputs, settings, lowerings.cache_tag())
    if original is not None and result.matches:
        from .verify import verified

        return verified(compiled, original, result)
    return compiled


def rewrite(gm: torch.fx.GraphModule, options: Options) -> Result:
    """`apply`, of a graph that is compiled next. Its kernels begin to compile while it is
    judged."""
    result = apply(gm, options, lowerings.begin)
    if options.prove:
        _begin_proof(result)
    return result


def _begin_proof(result: Result) -> None:
    try:
        proving.begin(match.problem.device for match in result.matches)
    except Exception as error:
        log.warning("kernels are not proved in the background: %s: %s", type(error).__name__, error)


def apply(
    gm: torch.fx.GraphModule,
    options: Options,
    written: Callable[[torch.fx.GraphModule], None] | None = None,
) -> Result:
    """Find, judge and rewrite in place, count and log. written: as `rewrite_graph` has it."""
    part = analyse(gm, gm, options, written)
    result, frame = part.result, dynamo.frame_under_way()
    if frame:  # what raises below is not compiled: its frame runs in eager, or not at all
        dynamo.counters["gdpa_regions"].pop(frame, None)
    counters = dynamo.counters["gdpa"]
    counters["matched"] += len(result.matches)
    if varlen := sum(match.problem.jagged for match in result.matches):
        counters["matched_varlen"] += varlen
    counters["rejected"] += len(result.rejections)
    for match in result.matches:
        log.info("%s", match)
    for rejection in result.rejections:
        log.info("%s", rejection)
    _warn(part, options)
    if options.summary:
        compiles.summarise(part.so_far)
    if result.matches or result.rejections:
        inductor.trace_artifact(
            "gdpa_regions", lambda: "\n".join(map(str, [*result.matches, *result.rejections]))
        )
    _hold_to_promises(part, options)
    if frame:
        dynamo.counters["gdpa_regions"][frame] = len(part.so_far.matches)
    return result


def analyse(
    gm: torch.fx.GraphModule,
    target: torch.fx.GraphModule,
    options: Options,
    written: Callable[[torch.fx.GraphModule], None] | None = None,
) -> compiles.PartResult:
    """Rewrite `target`, which is the captured graph `gm` or a copy of it."""
    rewrite = functools.partial(rewrite_graph, options=options, supports=lowering_judge(options))
    under_way, values = compiles.under_way(), compiles.values(gm.graph)
    result = rewrite(target, written=written)
    if under_way is None:
        return compiles.PartResult(result, result, True)
    return under_way.add(values, result, rewrite)


def _warn(part: compiles.PartResult, options: Options) -> None:
    """Of what was asked for by name and cannot be had, and of what DDP takes apart."""
    if options.kernel in BACKENDS:
        reasons = [r.reason for r in part.result.rejections if r.code is Code.DEVICE]
        for reason in dict.fromkeys(reasons):
            log.warning("not fused: %s", reason)
    cut = [r for r in part.so_far.rejections if r.code is Code.DDP_CUT]
    if cut and part.last:
        advice = Code.DDP_CUT.advice
        log.warning("%d not fused: %s; to change: %s", len(cut), cut[0].reason, advice)


def lowering_judge(options: Options) -> Callable[[Problem], object]:
    """It says whether, and on which kernel, a region can run."""

    def judge(problem: Problem) -> object:
        lowerings.register()
        return lowerings.choose(problem, options)

    return judge


def _hold_to_promises(part: compiles.PartResult, options: Options) -> None:
    """Raise where `strict` is not met, or `expect` by the whole of a captured graph."""
    blames = (Category.UNSAFE, Category.UNSUPPORTED)
    blamed = [r for r in part.result.rejections if r.code.category in blames]
    if options.strict and blamed:
        raise GDPAError("gdpa.strict: a candidate was not fused\n" + _lines(blamed))
    count, left = len(part.so_far.matches), part.so_far.rejections
    if part.last and options.expect not in (None, count):
        raise GDPAError(
            f"gdpa.expect={options.expect}, regions rewritten: {count}\n" + _lines(left)
        )


def _lines(rejections: Sequence[Rejection]) -> str:
    return "\n".join(f"  {r}" for r in rejections) or "  (there was no other candidate)"
