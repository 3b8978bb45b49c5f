"""The score program of a reading: its weight in terms of batch, head, row and key."""

from __future__ import annotations

from ...program.canonical import canonical
from ...program.expr import INDEX, SCORE, Expr, aux, call, const, fold, postorder
from ...program.score_mod import Aux, ScoreMod
from ...rejection import Code
from ..result import Refused
from .layout import Layout, aux_dims
from .reading import Operand, Reading


def program_of(reading: Reading, layout: Layout) -> tuple[ScoreMod, list[Operand]]:
    """The program in terms of the score's indices, with its operands in the order of first use."""
    used = [node for node in postorder([reading.weight]) if node.op == "aux"]
    numbers = {int(leaf.value or 0): position for position, leaf in enumerate(used)}
    axes = {layout.axes[axis]: index for axis, index in INDEX.items() if layout.axes[axis]}

    def leaf(node: Expr) -> Expr:
        if node.op == "aux":
            return aux(numbers[int(node.value or 0)], node.kind)
        if node.op == "index":
            digits = reading.space.resolve(reading.positions[int(node.value or 0)])
            if digits not in axes:
                raise Refused(Code.LAYOUT, "a triangle is cut from merged dimensions of the scores")
            return axes[digits]
        return node

    def apply(node: Expr, values: list[object]) -> Expr:
        return call(node.op, *(v if isinstance(v, Expr) else const(v) for v in values))  # type: ignore[arg-type]

    (weight,) = fold([reading.weight], leaf, apply)
    operands = [reading.aux[number] for number in numbers]
    declared = tuple(
        Aux(node.kind, aux_dims(layout, operand)[1]) for node, operand in zip(used, operands)
    )
    weight = canonical(weight)
    if SCORE not in set(postorder([weight])):
        raise Refused(Code.CONTRACTION, "the weights do not depend on the first product")
    return ScoreMod(weight, declared), operands
