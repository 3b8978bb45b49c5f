"""What the judge says of a rewrite that is not to be applied."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """A rewrite that is not to be applied. invalid: it computes something else; else that could not
    be told. node: of the rewritten graph, where the fault is known to lie.
    """

    reason: str
    node: str = ""
    invalid: bool = True
