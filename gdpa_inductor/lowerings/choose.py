"""Which backend runs a problem, or why none does.

`choose` is asked before anything is rewritten, so what it accepts must lower. A `Choice` names the
backend; a refusal is a falsy `Rejection`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..options import LADDER, REFERENCE, Options, Profit
from ..problem import Problem
from ..rejection import Code, Rejection
from .backends import Backend, Refusal, backends


@dataclass(frozen=True)
class Choice:
    """What runs the problem, a value of the option `kernel` other than "auto", and why."""

    kernel: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kernel} ({self.reason})"


def choose(problem: Problem, options: Options) -> Choice | Rejection:
    """The backend for `problem` where it should be rewritten, or the last rule that it breaks."""
    return select(problem, options.kernel, options.profit)


def select(problem: Problem, kernel: str, profit: Profit) -> Choice | Rejection:
    """kernel: the option's value. profit: which cost models are asked.

    A backend that pays comes before one that does not. One that is asked for by name is asked
    whether it pays only where nothing was rewritten yet.
    """
    found: Choice | Rejection
    steps = LADDER[False if problem.unbounded else profit]
    for step in steps if kernel == "auto" else steps[-1:]:
        found = _select(problem, kernel, step)
        if found:
            break
    return found


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
    """The backend that was asked for and, should it refuse, those after it."""
    names = [backend.name for backend in known]
    if kernel == "auto":
        return known
    return known[names.index(kernel) :] if kernel in names else []


def _first(
    problem: Problem, candidates: list[Backend], kernel: str, profit: Profit
) -> Choice | Rejection:
    """The first backend that takes the problem, or the refusal of the last that has news, with what
    the others say. One that was asked for, and does not pay, leaves the problem to none.
    """
    told: list[tuple[str, Refusal]] = []
    last: Refusal | None = None
    for backend in candidates:
        asked = kernel == backend.name
        refusal = backend.refusal(problem, profit, asked)
        if refusal is None:
            about = f"{problem.dtype}, head dims {problem.head_dim} and {problem.value_dim}"
            more = backend.about(problem)
            return Choice(backend.name, about + (f", {more}" if more else "") + _others(told))
        last = last or refusal
        if asked or not refusal.rule.quiet:
            told.append((backend.name, refusal))
        if asked and refusal.rule in backend.profits(profit):
            break
    if told:
        _, last = told.pop()
    assert last is not None
    return Rejection(last.rejection.code, last.rejection.reason + _others(told))


def _others(told: list[tuple[str, Refusal]]) -> str:
    """Why backends were not taken."""
    return "".join(f"; {name}: {refusal.rejection.reason}" for name, refusal in told)
