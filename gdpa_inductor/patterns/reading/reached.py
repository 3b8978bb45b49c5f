"""Which operands of a term autograd reaches.

A reached operand has a gradient, maybe of zeros. Any other operand has the gradient None.
Optimizers treat None and zeros differently, so the op has to as well.

An operand is not reached if it is only compared, converted to an integer or detached. It is reached
if it is rounded, overwritten later, or added zero times. A term that is reached but not used stays
in the program, as `where(True, used, not used)`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.fx import Node

from ...program.expr import SCORE, Expr, call, const
from ..host import facts
from .reading import Operand, Reading
from .shadow import Shadow
from .views import value_of
from .vocabulary import FILLED

# Functions of whose tensors nothing but dtype, shape and device counts, or whose history is cut.
_CUTTING = frozenset(["detach", "empty_like", "new_empty", "new_empty_strided", *FILLED])


def reached(term: Expr) -> set[Expr]:
    """The leaves that the derivative of a term may lead to, be it zero."""
    behind = facts.walk([term], lambda x: x.args if x.kind == "f" and x.op != "detach" else ())
    return {x for x in behind if x.kind in ("f", "t") and not x.args and not x.is_const}


def covering(x: Expr, covered: Expr) -> Expr:
    """`x` in the place of `covered`, which has a gradient of zeros."""
    if x.kind != "f" or reached(covered) <= reached(x):
        return x
    return call("where", const(True), x, covered)


def wants_gradients(node: Node, shadow: Shadow) -> bool:
    """Whether autograd may lead from a node of the shadow to what has a gradient."""

    def has_history(node: Node) -> bool:
        value = value_of(node)
        is_integer = isinstance(value, torch.Tensor) and not value.is_floating_point()
        return not is_integer and facts.name(node) not in _CUTTING

    behind = facts.walk([node], lambda n: n.all_input_nodes if has_history(n) else ())
    leaves = (shadow.leaves[n] for n in behind if n in shadow.leaves and has_history(n))
    return any(map(facts.may_want_gradients, leaves))


def with_gradients(reading: Reading) -> Reading:
    """The reading, detached what has no gradient: one tensor may be several operands."""
    leaves = set[Expr]().union(*map(reached, reading.terms))
    numbers = {leaf.value for leaf in leaves if leaf.op == "aux"}
    aux = tuple(_detached(o, number in numbers) for number, o in enumerate(reading.aux))
    left, right = (_detached(o, SCORE in leaves) for o in (reading.left, reading.right))
    return replace(reading, aux=aux, left=left, right=right)


def _detached(operand: Operand, is_reached: bool) -> Operand:
    if is_reached or not facts.may_want_gradients(operand.leaf):
        return operand
    return replace(operand, detached=True)
