"""Choose the backend that runs a problem, or say why none does.

The rewrite calls `choose` before it changes the graph. So each problem that `choose` accepts must
lower. A `Choice` names the backend. A refusal is a `Rejection`, which is falsy.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..options import LADDER, REFERENCE, Options, Profit
from ..problem import Problem
from ..rejection import Code, Rejection
from .backends import Backend, backends


@dataclass(frozen=True)
class Choice:
    """The chosen backend."""

    kernel: str  # a value of the option `kernel`, not "auto"
    reason: str

    def __str__(self) -> str:
        return f"{self.kernel} ({self.reason})"


def choose(problem: Problem, options: Options) -> Choice | Rejection:
    """The backend for `problem`, or the reason to leave it as it is."""
    return select(problem, options.kernel, options.profit)


def select(problem: Problem, kernel: str, profit: Profit) -> Choice | Rejection:
    """The backend for `problem`, or the reason to leave it as it is.

    If several backends can run it, one that is faster than the unfused form comes first. With a
    name as `kernel`, its cost model counts only before the rewrite: a lowering passes profit=False.
    """
    choice: Choice | Rejection
    steps = LADDER[False if problem.unbounded else profit]
    for step in steps if kernel == "auto" else steps[-1:]:
        choice = _select(problem, kernel, step)
        if choice:
            break
    return choice


def _select(problem: Problem, kernel: str, profit: Profit) -> Choice | Rejection:
    if kernel == REFERENCE:
        return Choice(REFERENCE, "asked for")
    device = problem.device.type
    known = [backend for backend in backends() if backend.runs_on(device, kernel)]
    if not known:
        return Rejection(Code.DEVICE, f"there is no kernel for the device {device!r}")
    names = [backend.name for backend in known]
    if kernel != "auto" and kernel not in names:
        others = ", ".join(names)
        return Rejection(
            Code.DEVICE, f"gdpa.kernel={kernel!r} does not run on {device!r}; there is: {others}"
        )
    # A backend that the user asked for may refuse. Those after it come next.
    first = 0 if kernel == "auto" else names.index(kernel)
    return _first(problem, known[first:], kernel, profit)


def _first(
    problem: Problem, candidates: list[Backend], kernel: str, profit: Profit
) -> Choice | Rejection:
    """The first backend that takes the problem, or a refusal.

    A refusal has the code of the last rule that is not quiet, and the reasons of the others.
    """
    refusals: list[tuple[str, Rejection]] = []
    first: Rejection | None = None
    for backend in candidates:
        explicit = kernel == backend.name
        refusal = backend.refusal(problem, profit, explicit)
        if refusal is None:
            about = f"{problem.dtype}, head dims {problem.head_dim} and {problem.value_dim}"
            more = backend.about(problem)
            return Choice(backend.name, about + (f", {more}" if more else "") + _others(refusals))
        rule, rejection = refusal
        first = rejection if first is None else first
        if explicit or not rule.quiet:
            refusals.append((backend.name, rejection))
        # A backend that the user asked for, and that does not pay: no other is tried.
        if explicit and rule in backend.profits(profit):
            break
    last = refusals.pop()[1] if refusals else first
    assert last is not None
    return Rejection(last.code, last.reason + _others(refusals))


def _others(refusals: list[tuple[str, Rejection]]) -> str:
    return "".join(f"; {name}: {rejection.reason}" for name, rejection in refusals)
