"""The interface of a backend, and the list of all backends.

A backend is a family of kernels. It has a folder or module under kernels/, and a module here that
holds a `BACKEND`. The module is named like its value of the option `kernel`. The tuple
`options.BACKENDS` registers it by this name. Choice, dispatch, counters, option values and the
doctor's table follow from that tuple.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .._compat import shapes
from ..operands import Size
from ..options import BACKENDS, MEMORY, Profit
from ..problem import Problem
from ..program.places import of_integers
from ..rejection import Code, Rejection
from .call import Call


@dataclass(frozen=True)
class Rule:
    """A reason for which a backend does not run a problem."""

    code: Code
    complaint: Callable[[Problem], str]  # why it cannot or should not run a problem, or ""
    # The report leaves the reason out, unless the user asked for this backend: another backend
    # takes such problems, or refuses them for a reason of its own.
    quiet: bool = False


@dataclass(frozen=True)
class Backend:
    """One family of kernels. A problem that breaks no rule must lower."""

    name: str  # its value of the option `kernel`
    devices: tuple[str, ...]  # the device types of torch on which it runs
    refuses: tuple[Rule, ...]  # rules for problems that it cannot run
    pays: tuple[Rule, ...]  # rules for problems where it is slower than the unfused form
    # Inductor IR of the output, contiguous; of a backward a list of the wanted gradients, which lie
    # as those of `ops.laid_gradients`
    lower: Callable[[Any], Any]
    yields: tuple[Rule, ...] = ()  # rules for problems that a later backend runs better
    frugal: tuple[Rule, ...] | None = None  # the same rules for profit="memory", if they differ
    # Rules for problems whose kernels are not trusted. A user who asks for the backend by name gets
    # them, with a warning.
    doubts: tuple[Rule, ...] = ()
    about: Callable[[Problem], str] = lambda problem: ""  # what the report adds to a choice of it
    by_name: tuple[str, ...] = ()  # devices on which it runs only if the user asks for it by name
    # Begins to compile the kernels of a call. Its nodes are fake tensors.
    precompile: Callable[[Call], None] = lambda call: None
    # Its kernel of P and dS of a chunk, if it has one. Of that, `lower` takes a `StoredPass`, and
    # gives a function as of `BlockOperands.direct`, or None if Inductor compiles it.
    weights: Backend | None = None

    def runs_on(self, device: str, kernel: str) -> bool:
        """Whether it runs on a device type, under this value of the option `kernel`."""
        return device in self.devices and (kernel == self.name or device not in self.by_name)

    def profits(self, profit: Profit) -> tuple[Rule, ...]:
        """The rules of the cost model under this value of the option `profit`."""
        return self.frugal if profit == MEMORY and self.frugal is not None else self.pays

    def refusal(
        self, problem: Problem, profit: Profit, explicit: bool = False
    ) -> tuple[Rule, Rejection] | None:
        """The first rule that the problem breaks, with what it says, or None.

        profit: False leaves the cost model out. explicit: The user asked for this backend by name.
        """
        pays = self.profits(profit) if profit else ()
        yields, doubts = ((), ()) if explicit else (self.yields, self.doubts)
        for rule in (*yields, *self.refuses, *doubts, *pays):
            complaint = rule.complaint(problem)
            if complaint:
                return rule, Rejection(rule.code, complaint)
        return None

    def doubt(self, problem: Problem) -> str:
        """Why the kernels are not trusted with a problem, or ""."""
        return next(filter(None, (rule.complaint(problem) for rule in self.doubts)), "")


def backend(name: str) -> Backend:
    return importlib.import_module(f".{name}", __package__).BACKEND


def backends() -> tuple[Backend, ...]:
    """All backends, the preferred first."""
    return tuple(map(backend, BACKENDS))


def strange_places(problem: Problem) -> str:
    """Why no kernel looks up a table of the problem, or ""."""
    if all(map(of_integers, problem.program.places.values())):
        return ""
    return "a table is looked up by the score, or by an element of a table"


def draws(problem: Problem) -> str:
    """Why a kernel that draws no random numbers does not run a problem, or ""."""
    return "it draws no random numbers" if problem.program.seeds else ""


def one_query(problem: Problem) -> str:
    """Why a dense problem with one query is left unfused, or ""."""
    if problem.jagged or hint(problem.rows) > 1:
        return ""
    return "there is one query row: the scores are a vector, which costs little to store"


def hint(size: Size, otherwise: int = 1 << 20) -> int:
    """A size, or the hint of a symbolic one. Unknown sizes count as large. Adds no guard."""
    known = shapes.size_hint(size)
    return otherwise if known is None else known
