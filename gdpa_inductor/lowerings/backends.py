"""What a backend is, and all that there are.

A backend is a family of kernels: a folder or module under kernels/, and a module here. The latter
is named like its option value and holds a `BACKEND`. Its name in `options.BACKENDS` is what
registers it. Choice, dispatch, counters, option values and the doctor's table follow from that
tuple.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .._compat import shapes
from ..options import BACKENDS, MEMORY, Profit
from ..problem import Problem, Size
from ..rejection import Code, Rejection
from .call import Call


@dataclass(frozen=True)
class Rule:
    """`complaint(problem)`: why the backend cannot or should not run it, or "". quiet: no news to
    who asked for nothing, since all such problems go to another backend, or are refused by it.
    """

    code: Code
    complaint: Callable[[Problem], str]
    quiet: bool = False


@dataclass(frozen=True)
class Refusal:
    """The rule that a problem breaks."""

    rule: Rule
    rejection: Rejection


@dataclass(frozen=True)
class Backend:
    """One family of kernels. A problem that no rule refuses must lower.

    devices         torch's device types
    by_name         those where it runs only for who asks for it by its name
    refuses         what it cannot run
    pays            what it should not run
    frugal          the same under profit="memory", where that differs
    yields          what a later backend does better
    lower           the output, contiguous. Inductor IR in and out
    lower_backward  the asked gradients, as `ops.laid_gradients` has them; the same IR
    about           what a report adds to a choice
    ahead           begins to compile the kernels of a call, whose nodes are fakes
    """

    name: str
    devices: tuple[str, ...]
    refuses: tuple[Rule, ...]
    pays: tuple[Rule, ...]
    lower: Callable[[Call], Any]
    lower_backward: Callable[[Call], list[Any]]
    yields: tuple[Rule, ...] = ()
    frugal: tuple[Rule, ...] | None = None
    about: Callable[[Problem], str] = lambda problem: ""
    by_name: tuple[str, ...] = ()
    ahead: Callable[[Call], None] = lambda call: None

    def runs_on(self, device: str, kernel: str) -> bool:
        """kernel: as it was asked for."""
        return device in self.devices and (kernel == self.name or device not in self.by_name)

    def profits(self, profit: Profit) -> tuple[Rule, ...]:
        """The cost model that is asked."""
        return self.frugal if profit == MEMORY and self.frugal is not None else self.pays

    def refusal(self, problem: Problem, profit: Profit, asked: bool = False) -> Refusal | None:
        """The first rule that the problem breaks. asked: for this backend, by name."""
        pays = self.profits(profit) if profit else ()
        for rule in (*(() if asked else self.yields), *self.refuses, *pays):
            complaint = rule.complaint(problem)
            if complaint:
                return Refusal(rule, Rejection(rule.code, complaint))
        return None

    def run(self, call: Call) -> Any:
        return self.lower_backward(call) if call.backward else self.lower(call)


def backend(name: str) -> Backend:
    return importlib.import_module(f".{name}", __package__).BACKEND


def backends() -> tuple[Backend, ...]:
    """All of them, the preferred first."""
    return tuple(map(backend, BACKENDS))


def one_query(problem: Problem) -> str:
    """Why a dense problem of one query is left unfused, where it pays not at all, or ""."""
    if problem.jagged or hint(problem.rows) > 1:
        return ""
    return "there is one query row: the scores are a vector, which costs little to store"


def hint(size: Size, otherwise: int = 1 << 20) -> int:
    """A size, or what it was at capture; unknown sizes count as large. Adds no guard."""
    known = shapes.size_hint(size)
    return otherwise if known is None else known
