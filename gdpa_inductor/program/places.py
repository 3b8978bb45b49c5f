"""Places of tables: how they move with the positions, and terms without their look-ups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .expr import POSITIONS, Expr, aux, call, fold, postorder
from .score_mod import ScoreMod


def of_integers(term: Expr) -> bool:
    """Whether a place reads neither the score nor an element of a table."""
    return not any(node.op in ("s", "lookup") for node in postorder([term]))


def by_distance(program: ScoreMod, number: int) -> bool:
    """Whether what is read of a table depends on q_idx - kv_idx, batch and head only."""
    operands = program.aux

    def leaf(node: Expr) -> int | None:
        if node.op == "aux":
            return None if operands[node.value].axes & POSITIONS else 0
        return int(node.op in POSITIONS)

    def apply(node: Expr, moves: list[Any]) -> int | None:
        own = moves[: len(node.args)]
        if None in own:
            return None
        if node.op == "neg":
            return -own[0]
        if node.op in ("add", "sub"):
            return own[0] + own[1] if node.op == "add" else own[0] - own[1]
        return None if any(own) else 0

    # How far a term moves if both positions move by one.
    (move,) = fold([program.places[number]], leaf, apply)
    return move == 0 and not operands[number].axes & POSITIONS


def elements(roots: Sequence[Expr]) -> list[Expr]:
    """The terms with the elements of tables as those of other operands, without their places. So
    are the random bits of a seed.
    """

    def apply(node: Expr, args: list[Any]) -> Expr:
        if node.op in ("lookup", "random16"):
            return aux(args[0].value, node.kind)
        changed = any(new is not old for new, old in zip(args, node.args, strict=False))
        return call(node.op, *args) if changed else node

    return fold(roots, lambda node: node, apply)
