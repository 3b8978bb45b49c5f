"""The results of the finder: a `Match` for each rewritten region, else a `Rejection`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from ..operands import Size
from ..problem import Problem
from ..program.score_mod import ScoreMod
from ..rejection import Code, Rejection
from ..terminal import printable

INTERNAL = "internal error"  # the reason of a refusal begins so if this package has a bug


@dataclass(frozen=True)
class Origin:
    """A tensor of the user.

    name:      The user's name or expression for it; "" if it is only known by its `line`.
    location:  The "file:line" that makes it, or reads it first.
    line:      The source of that line, where there is no name.
    """

    name: str
    location: str
    node: str = ""
    line: str = ""


@dataclass(frozen=True)
class Draw:
    """A dropout of the user for which a fused call draws.

    node:  Its name.
    dims:  What each of its dims counts: the size, the axis of the scores, and how far that goes on.
           A dim that is folded counts several.
    """

    node: str
    dims: tuple[tuple[tuple[Size, str, Size], ...], ...]


@dataclass(frozen=True)
class Match:
    """One rewritten region.

    location:    The "file:line" of the second product.
    module:      The path of its module, such as "layers.0".
    body:        The path of its body, such as "wrap_body_0", or "" for the graph itself.
    node:        The node that calls the op.
    replaced:    The names of the nodes that the op replaces, in program order.
    stands_for:  The node that returns the result now, and the one that returned it before.
    also:        The same of other second products, whose values stand beside the first one's.
    sums:        The same of row sums.
    draws:       The dropouts on the weights, in the order of their seeds.
    choice:      The answer of the caller's `supports`, such as the chosen kernel.
    origins:     Where each operand of the score program comes from.
    notes:       Why a padded side stays padded, or why a learned table keeps its gradient.
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
    also: tuple[tuple[str, str], ...] = ()
    sums: tuple[tuple[str, str], ...] = ()
    draws: tuple[Draw, ...] = ()

    @property
    def score_mod(self) -> ScoreMod:
        return self.problem.program

    def __str__(self) -> str:
        place = f"{self.location}: " if self.location else ""
        return printable(f"{place}O = ({self.problem.program.formula}) V, s = Q Kᵀ")


@dataclass(frozen=True)
class Result:
    """All matches and refusals of one graph and its bodies, in program order."""

    matches: tuple[Match, ...] = ()
    rejections: tuple[Rejection, ...] = ()

    def __add__(self, other: Result) -> Result:
        return Result(self.matches + other.matches, self.rejections + other.rejections)


class Refused(Exception):
    """Raised in the analysis of one candidate. It becomes the candidate's `Rejection`.

    node:     The user's node that could not be read, if there is one.
    change:   The advice, where that of the code does not fit.
    formula:  The weights, if they were read before the refusal.
    """

    def __init__(
        self,
        code: Code,
        reason: str,
        node: Node | None = None,
        change: str | None = None,
        formula: str = "",
    ) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.node = node
        self.change = change
        self.formula = formula

    def but(self, **known: Any) -> Refused:
        """The same refusal with what is known further out."""
        return Refused(**{**vars(self), **known})


def internal_error(error: Exception) -> Refused:
    """An error of this package, as a refusal: the model is left as it is."""
    lines = str(error).strip().splitlines() or [""]
    return Refused(Code.ANALYSIS, f"{INTERNAL}: {type(error).__name__}: {lines[0]}")
