"""The outcome of the judge, and the two exceptions that lead to one."""

from __future__ import annotations

from dataclasses import dataclass


class Fault(Exception):
    """The rewritten graph computes something else. The message says what, `node` where if known."""

    def __init__(self, reason: str, node: str = "") -> None:
        super().__init__(reason)
        self.node = node


class Incomplete(Exception):
    """The graph cannot be interpreted or evaluated. The message says why."""


@dataclass(frozen=True)
class Verdict:
    """A rewrite that must not be applied.

    invalid: It computes something else. If False, the judge could not decide. node: The node of the
    rewritten graph with the fault, if it is known.
    """

    reason: str
    node: str = ""
    invalid: bool = True
