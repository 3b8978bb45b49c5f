"""Whether a mask decides the same in every precision.

A mask from positions in fp32, such as `(i - j) * 0.1 <= 3`, depends on rounding. In fp64, or with a
fused multiply-add or a fast division, it may keep other scores. Such a mask does not become a part
of a program. It stays a tensor that the model computes. Decisions on integers, on whole numbers in
floats, and on unchanged operands do not depend on rounding.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Collection
from typing import Any

import torch

from .expr import OPS, Expr, Trait, fold, postorder


class Grade(enum.IntEnum):
    """How exactly a term without a score is known.

    It may be rounded, or have the same value in every precision from fp32 on, or be an integer of
    at most 24 bits. A term with a score has a grade of its own.
    """

    ROUNDED = 0
    VALUE = 1
    WHOLE = 2
    SCORED = 3


def _is(node: Expr, trait: Trait) -> bool:
    return node.op in OPS and bool(OPS[node.op].traits & trait)


def fragile_condition(weight: Expr, rounded: Collection[Expr] = ()) -> Expr | None:
    """A term that decides by a rounded number without a score, or None.

    rounded: Terms that the model has in 16 bits, where whole numbers are rounded too.
    """
    grades = _grades(
        weight,
        lambda x: x in rounded and not (_is(x, Trait.KEEPS_VALUES) or x.op == "where"),
    )
    for node in postorder([weight]):
        if _is(node, Trait.DECIDES):
            operands = {grades[a] for a in node.args if a.kind == "f"}
            if Grade.ROUNDED in operands and Grade.SCORED not in operands:
                return node
    return None


def decision_at_limit(weight: Expr, limited: Collection[Expr]) -> Expr | None:
    """A term that decides by whether one of `limited` is at its limit of 1 or -1, or None.

    limited: Terms that only rounding to 16 bits takes there.
    """
    for node in postorder([weight]) if limited else ():
        compares = len(node.args) == 2 and {1.0, -1.0} & {x.value for x in node.args if x.is_const}
        cuts = node.op in ("int", "floor", "ceil", "trunc") or (compares and node.kind == "b")
        if cuts and not set(limited).isdisjoint(node.args):
            return node
    return None


def reworded_decision(
    weight: Expr, reworded: Collection[Expr], turns: Trait = Trait.NONE
) -> Expr | None:
    """A term that decides by one of `reworded`, or None.

    The last bit of `reworded` terms may differ from torch's. It matters if scores are whole
    numbers, as with one-hot keys. turns: Further traits that count as deciding.
    """
    inexact = set(reworded)
    for node in postorder([weight]) if inexact else ():
        fed = not inexact.isdisjoint(node.args)
        if fed and _is(node, Trait.DECIDES | turns):
            return node
        if fed and node.kind == "f":
            inexact.add(node)
    return None


def rounded_term(weight: Expr, terms: Collection[Expr], large: Collection[Expr]) -> Expr | None:
    """The outermost of `terms` whose value depends on the precision, or None.

    large: Terms with integers past 2^24.
    """
    grades = _grades(weight, lambda x: x.op == "float" and x.args[0] in large)
    order = [node for node in postorder([weight]) if node in terms]
    return next((node for node in reversed(order) if grades[node] is Grade.ROUNDED), None)


def _grades(weight: Expr, rounds: Callable[[Expr], bool]) -> dict[Expr, Grade]:
    """The grade of each term. rounds: Whether an operation rounds, whatever it does."""
    grades: dict[Expr, Grade] = {}

    def apply(node: Expr, values: list[Any]) -> Grade:
        operands = [v for v in values if isinstance(v, Grade)]  # no literals
        grades[node] = Grade.ROUNDED if rounds(node) else _grade(node, operands)
        return grades[node]

    def leaf(node: Expr) -> Grade:
        return grades.setdefault(node, _leaf(node))

    fold([weight], leaf, apply)
    return grades


def _leaf(node: Expr) -> Grade:
    if node.op in ("s", "g"):
        return Grade.SCORED
    if not node.is_const or node.kind != "f":
        return Grade.VALUE if node.op == "aux" and node.kind in ("f", "t") else Grade.WHOLE
    value = float(node.value)
    if value.is_integer() and abs(value) <= 1 << 24:
        return Grade.WHOLE
    same = math.isinf(value) or torch.tensor(value, dtype=torch.float32).item() == value
    return Grade.VALUE if same else Grade.ROUNDED


def _grade(node: Expr, operands: list[Grade]) -> Grade:
    if node.kind != "f":
        return Grade.WHOLE
    if Grade.SCORED in operands:
        return Grade.SCORED
    if node.op == "float" or _is(node, Trait.DECIDES):
        return Grade.WHOLE
    if _is(node, Trait.KEEPS_WHOLES) and set(operands) <= {Grade.WHOLE}:
        return Grade.WHOLE
    if _is(node, Trait.KEEPS_VALUES) or node.op == "where":
        return min(operands)
    if node.op in ("mul", "div") and any(_is_power_of_two(a) for a in node.args[-1:]):
        return min(Grade.VALUE, *operands)
    return Grade.ROUNDED


def _is_power_of_two(x: Expr) -> bool:
    return x.is_const and math.frexp(float(x.value))[0] in (0.5, -0.5)
