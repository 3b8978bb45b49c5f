"""Choose the backend that runs a problem, or say why none does.

The rewrite calls `choose` before it changes the graph. So each problem that `choose` accepts must
lower. A `Choice` names the backend. A refusal is a `Rejection`, which is falsy.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..options import LADDER, REFERENCE, Options, Profit
from ..problem import Problem
from ..rejection import Code, Rejection
from .backends import Backend, Refusal, backends


@dataclass(frozen=True)
class Choice:
    """The chosen backend. kernel: A value of the option `kernel` other than "auto"."""

    kernel: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kernel} ({self.reason})"


def choose(problem: Problem, options: Options) -> Choice | Rejection:
    """The backend for `problem`, or the reason to leave it as it is."""
    return select(problem, options.kernel, options.profit)


def select(problem: Problem, kernel: str, profit: Profit) -> Choice | Rejection:
    """The backend for `problem`, or the reason to leave it as it is.

    If several backends can run it, one that is faster than the unfused form comes first.

    Args:
        kernel: The value of the option. With a name, its cost model counts only before the rewrite:
            a lowering passes profit=False.
        profit: Which cost models count.
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
    candidates = _from(kernel, known)
    if not candidates:
        others = ", ".join(backend.name for backend in known)
        return Rejection(
            Code.DEVICE, f"gdpa.kernel={kernel!r} does not run on {device!r}; there is: {others}"
        )
    return _first(problem, candidates, kernel, profit)


def _from(kernel: str, known: list[Backend]) -> list[Backend]:
    """The backend that the user asked for, and those after it in case it refuses."""
    names = [backend.name for backend in known]
    if kernel == "auto":
        return known
    return known[names.index(kernel) :] if kernel in names else []


def _first(
    problem: Problem, candidates: list[Backend], kernel: str, profit: Profit
) -> Choice | Rejection:
    """The first backend that takes the problem, or a refusal.

    A refusal has the code of the last rule that is not quiet, and the reasons of the others. If the
    user asked for a backend and it does not pay, no other backend is tried.
    """
    refusals: list[tuple[str, Refusal]] = []
    last: Refusal | None = None
    for backend in candidates:
        by_name = kernel == backend.name
        refusal = backend.refusal(problem, profit, by_name)
        if refusal is None:
            about = f"{problem.dtype}, head dims {problem.head_dim} and {problem.value_dim}"
            more = backend.about(problem)
            return Choice(backend.name, about + (f", {more}" if more else "") + _others(refusals))
        last = last or refusal
        if by_name or not refusal.rule.quiet:
            refusals.append((backend.name, refusal))
        if by_name and refusal.rule in backend.profits(profit):
            break
    if refusals:
        _, last = refusals.pop()
    assert last is not None
    return Rejection(last.rejection.code, last.rejection.reason + _others(refusals))


def _others(refusals: list[tuple[str, Refusal]]) -> str:
    """The reasons of the backends that were not taken, as text."""
    return "".join(f"; {name}: {refusal.rejection.reason}" for name, refusal in refusals)
