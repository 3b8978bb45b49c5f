"""Whether a mask decides the same in every precision.

A mask that is computed from positions in fp32, `(i - j) * 0.1 <= 3`, depends on how its numbers
round. In fp64, with a fused multiply-add or a fast division, another score may count. Such a mask
is not taken into a program; it stays a tensor that the model computes. Decisions on integers, on
whole numbers held as reals, and on operands as they are do not depend on rounding.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection
from typing import Any

import torch

from .expr import OPS, Expr, Trait, fold, postorder


class Grade(enum.IntEnum):
    """How a term that no score enters is known. Known with rounding; or as the value that it is in
    every precision from fp32 on; or as an integer of at most 24 bits. Or it has a score in it.
    """

    ROUNDED = 0
    VALUE = 1
    WHOLE = 2
    SCORED = 3


def _is(node: Expr, trait: Trait) -> bool:
    """Whether an operation has one of these traits."""
    return node.op in OPS and bool(OPS[node.op].traits & trait)


def fragile_condition(weight: Expr, rounded: Collection[Expr] = ()) -> Expr | None:
    """A term of the program that decides by a rounded number without a score; None if there is
    none. rounded: terms that the model has in 16 bits, where whole numbers round too.
    """
    grades: dict[Expr, Grade] = {}

    def note(node: Expr, values: list[Any]) -> Grade:
        given = [v for v in values if isinstance(v, Grade)]
        changes = node in rounded and not (_is(node, Trait.KEEPS_VALUES) or node.op == "where")
        grades[node] = Grade.ROUNDED if changes else _grade(node, given)
        return grades[node]

    fold([weight], _leaf, note)
    for node in postorder([weight]):
        if _is(node, Trait.DECIDES):
            given = {grades.get(a, _leaf(a)) for a in node.args if a.kind == "f"}
            if Grade.ROUNDED in given and Grade.SCORED not in given:
                return node
    return None


def reworded_decision(
    weight: Expr, reworded: Collection[Expr], turns: Trait = Trait.NONE
) -> Expr | None:
    """A term that decides by one of `reworded`, whose last bit is not torch's; None if there is
    none. Where scores are whole numbers, as those of one-hot keys are, the last bit decides.
    turns: traits that count as deciding too.
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
    """The outermost of `terms` whose value depends on the precision. large: integers past 2^24."""
    grades: dict[Expr, Grade] = {}

    def note(node: Expr, values: list[Any]) -> Grade:
        past = node.op == "float" and node.args[0] in large
        given = [v for v in values if isinstance(v, Grade)]
        grades[node] = Grade.ROUNDED if past else _grade(node, given)
        return grades[node]

    fold([weight], _leaf, note)
    order = [node for node in postorder([weight]) if node in terms]
    return next((n for n in reversed(order) if grades.get(n, _leaf(n)) is Grade.ROUNDED), None)


def _leaf(node: Expr) -> Grade:
    if node.op in ("s", "g"):
        return Grade.SCORED
    if not node.is_const or node.kind != "f":
        return Grade.VALUE if node.op == "aux" and node.kind == "f" else Grade.WHOLE
    value = float(node.value or 0)
    if value.is_integer() and abs(value) <= 1 << 24:
        return Grade.WHOLE
    same = math.isinf(value) or torch.tensor(value, dtype=torch.float32).item() == value
    return Grade.VALUE if same else Grade.ROUNDED


def _grade(node: Expr, given: list[Grade]) -> Grade:
    if node.kind != "f":
        return Grade.WHOLE
    if Grade.SCORED in given:
        return Grade.SCORED
    if _is(node, Trait.DECIDES) or (_is(node, Trait.KEEPS_WHOLES) and set(given) <= {Grade.WHOLE}):
        return Grade.WHOLE
    if node.op == "float":
        return Grade.WHOLE
    if _is(node, Trait.KEEPS_VALUES) or node.op == "where":
        return min(given)
    if node.op in ("mul", "div") and any(_is_power_of_two(a) for a in node.args[-1:]):
        return min(Grade.VALUE, *given)
    return Grade.ROUNDED


def _is_power_of_two(x: Expr) -> bool:
    return x.is_const and math.frexp(float(x.value or 0))[0] in (0.5, -0.5)
