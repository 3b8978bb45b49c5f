"""The verdict of the judge on a rewrite that must not be applied."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """A rewrite that must not be applied.

    invalid: It computes something else. If False, the judge could not decide. node: The node of the
    rewritten graph with the fault, if it is known.
    """

    reason: str
    node: str = ""
    invalid: bool = True
