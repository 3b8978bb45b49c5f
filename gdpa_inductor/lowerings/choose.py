"""Which backend runs a problem, or why none does.

`choose` is asked before anything is rewritten, so what it accepts must lower. A `Choice` names the
backend; a refusal is a falsy `Rejection`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..options import REFERENCE, Options
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
    """The backend for `problem` where it should be rewritten, or the first rule that it breaks."""
    return select(problem, options.kernel, options.profit and not problem.unbounded)


def select(problem: Problem, kernel: str, profit: bool) -> Choice | Rejection:
    """kernel: the option's value. profit: whether the cost model is asked too."""
    if kernel == REFERENCE:
        return Choice(REFERENCE, "asked for")
    device = problem.device.type
    known = [backend for backend in backends() if device in backend.devices]
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
    problem: Problem, candidates: list[Backend], kernel: str, profit: bool
) -> Choice | Rejection:
    """The first backend that takes the problem, or the refusal of the last."""
    passed = ""
    refusal: Refusal | None = None
    for backend in candidates:
        refusal = backend.refusal(problem, profit, kernel == backend.name)
        if refusal is None:
            about = f"{problem.dtype}, head dims {problem.head_dim} and {problem.value_dim}"
            return Choice(backend.name, about + passed)
        if kernel == backend.name or not refusal.rule.quiet:
            passed = f"; {backend.name}: {refusal.rejection.reason}"
    assert refusal is not None
    return refusal.rejection
