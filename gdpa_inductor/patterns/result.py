"""What the finder says: a `Match` for every region that was rewritten, a `Rejection` for every
candidate that was not.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import Node

from ..problem import Problem
from ..program.score_mod import ScoreMod
from ..rejection import Code, Rejection

INTERNAL = "internal error"  # how the reason of such a refusal begins: always a bug of ours


@dataclass(frozen=True)
class Origin:
    """A tensor of the user's: its name, and "file:line" of what makes or first reads it."""

    name: str
    location: str


@dataclass(frozen=True)
class Match:
    """One rewritten region.

    location    "file:line" of the second product
    module      the path of the module that it is in, such as "layers.0"
    body        the path of the body that it is in, such as "wrap_body_0"; "" for the graph
    node        the node that calls the op
    replaced    the names of the nodes that the op stands for, in program order
    stands_for  the node that returns the result, and the one that returned it before
    choice      what the caller's `supports` answered: the kernel, for whoever lowers it
    origins     where each operand between the products comes from
    notes       why a side that is padded in the model stays padded, or a learned table keeps its
                gradient
    """

    problem: Problem
    location: str
    node: str
    choice: object = None
    replaced: tuple[str, ...] = ()
    notes: tuple[Rejection, ...] = ()
    stands_for: tuple[str, str] = ("", "")
    module: str = ""
    origins: tuple[Origin, ...] = ()
    body: str = ""

    @property
    def score_mod(self) -> ScoreMod:
        return self.problem.program

    def __str__(self) -> str:
        place = f"{self.location}: " if self.location else ""
        return f"{place}O = ({self.problem.program.formula}) V, s = Q Kᵀ"


@dataclass(frozen=True)
class Result:
    """All that was found in one graph and its bodies, in program order."""

    matches: tuple[Match, ...] = ()
    rejections: tuple[Rejection, ...] = ()

    def __add__(self, other: Result) -> Result:
        return Result(self.matches + other.matches, self.rejections + other.rejections)


class Refused(Exception):
    """Raised inside the analysis of one candidate; it becomes the candidate's `Rejection`.

    node: the one that could not be read, where it is one of the user's. formula: the weights, where
    they were understood before the refusal.
    """

    def __init__(self, code: Code, reason: str, node: Node | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.node = node
        self.formula = ""


def internal_error(error: Exception) -> Refused:
    """An error of this package, as a refusal: the model is left as it is."""
    lines = str(error).strip().splitlines() or [""]
    return Refused(Code.ANALYSIS, f"{INTERNAL}: {type(error).__name__}: {lines[0]}")
