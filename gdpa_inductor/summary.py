"""One line for each compiled model: how much of it was fused. `gdpa.summary=False` silences it.

A model is what one torch.compile returned. It may have several graphs, and Dynamo may compile a
graph twice. So what was found is told when the model's call ends, and only once.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections import Counter
from collections.abc import Iterable

from ._compat import dynamo
from .patterns import Result
from .rejection import Category

log = logging.getLogger("gdpa_inductor")
# By compiled model: what was found in each of its compiles; None once that was told.
_results: weakref.WeakKeyDictionary[object, dict[str, Result] | None] = weakref.WeakKeyDictionary()


def note(result: Result) -> None:
    """Tell, when the compiled model's call ends, what was found in the graph being compiled."""
    call = dynamo.outermost_call()
    if call is None or not (result.matches or result.rejections):
        return
    if call.model not in _results:
        _results[call.model] = {}
        call.at_end.append(functools.partial(_tell, weakref.ref(call.model)))
    compiles = _results[call.model]
    if compiles is not None:
        compiles[dynamo.compile_under_way()] = result


def _tell(reference: weakref.ref[object]) -> None:
    model = reference()
    results = _results.get(model) if model is not None else None
    if results:
        _results[model] = None
        total = sum(results.values(), Result())
        log.log(_level(total), "%s", line(total))


def _level(result: Result) -> int:
    """A warning where nothing was fused, or not all that is GDPA. Softmax beside it is not."""
    left = any(r.code.category is not Category.NOT_GDPA for r in result.rejections)
    return logging.WARNING if left or not result.matches else logging.INFO


def line(result: Result) -> str:
    """`gdpa: 3 of 4 attention regions fused, 1 not fused (SLOWER); …`."""
    fused, left = len(result.matches), len(result.rejections)
    text = f"gdpa: {fused} of {fused + left} attention regions fused"
    if not left:
        return text
    codes = Counter(rejection.code.name for rejection in result.rejections)
    why = ", ".join(_counted(codes.most_common()))
    return f"{text}, {left} not fused ({why}); gdpa_inductor.explain(model)(*inputs) says why"


def _counted(codes: Iterable[tuple[str, int]]) -> Iterable[str]:
    return (f"{count} {code}" if count > 1 else code for code, count in codes)
