"""Sums of the weights along a row, by which models normalise: by `sum`, or by a product with ones.

Attention that is divided by its row sums is another operator. But a column of ones beside V gives
these sums with the same product, and that is fused: `ADVICE` says so where it applies.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Node

from ...rejection import Code
from ..result import Refused
from . import facts, functions, places, products
from .functions import NO_WEIGHTS, REASONS

ADVICE = (
    "append a column of ones to V and divide after the product: "
    "`o = w @ torch.cat([v, torch.ones_like(v[..., :1])], -1)`, then `o[..., :-1] / o[..., -1:]`"
)
_QUOTIENTS = frozenset(["truediv", "div", "divide", "true_divide", "mul", "multiply"])
_ONES = frozenset(["ones", "ones_like", "new_ones"])
_CARRIES = (
    functions.VIEWS | functions.CASTS | functions.MAY_ALIAS | functions.POINTWISE | _QUOTIENTS
) | {"repeat", "reciprocal", "getitem"}  # fmt: skip


def within(sum_: Node, second: Node) -> Refused:
    """The refusal of a region that has a function in it after which scores are no weights."""
    code = NO_WEIGHTS[facts.name(sum_)]
    fits = any(_is_normalised(n, sum_) for n in _left(second)) and _sums_keys(sum_, second)
    reason = f"{places.describe(sum_)} {REASONS[code]}"
    return Refused(code, reason, change=ADVICE if fits else None)


def outside(weights: Node, user: Node, second: Node) -> Refused | None:
    """The refusal of weights whose row sums are used beside the region; None if they are not."""
    by_ones = next((n for n in (user, second) if multiplies_ones(n)), None)
    if by_ones is None and not (facts.name(user) in ("sum", "mean") and _dim(user) is not None):
        return None
    sum_ = by_ones or user
    scaled = {weights, *_carriers(second)}
    quotients = (n for n in _carriers(sum_) if facts.name(n) in _QUOTIENTS)
    divides = any(not scaled.isdisjoint(n.all_input_nodes) for n in quotients)
    fits = by_ones is not None or (weights in _left(second) and _sums_keys(user, second))
    if not divides and not fits:
        return None
    how = "by a product with ones" if by_ones is not None else "beside the second product"
    code = Code.NORMALISED if divides else Code.SCORES_ESCAPE
    reason = f"{places.describe(sum_)} sums the weights along a dimension, {how}"
    return Refused(code, reason, change=ADVICE if fits else None)


def multiplies_ones(node: Node) -> bool:
    """Whether a node is a product with a tensor of ones, which sums rows."""
    return products.is_product(node) and any(map(_is_ones, products.operands(node)))


def _is_ones(node: Node) -> bool:
    source = products.origin(node)
    filled = {"full": 1, "full_like": 1, "new_full": 2}.get(facts.name(source))
    if filled is None:
        return facts.name(source) in _ONES
    return bool(facts.argument(source, filled, "fill_value") in (1, 1.0))


def _carriers(node: Node) -> Iterator[Node]:
    """A node, and those that are made from it by views and pointwise functions."""
    return facts.walk([node], lambda n: (u for u in n.users if facts.name(u) in _CARRIES))


def _is_normalised(node: Node, sum_: Node) -> bool:
    """Whether a node is what `sum_` sums, divided by what is made of the sum."""
    operands, summed = node.all_input_nodes, sum_.all_input_nodes[0]
    if facts.name(node) not in _QUOTIENTS or len(operands) != 2 or operands[0] is not summed:
        return False
    return operands[1] in _carriers(sum_)


def _left(second: Node) -> list[Node]:
    """The left-hand operand of a product, and what casts and copies make it from."""
    nodes = products.operands(second)[:1]
    for node in nodes:
        if facts.name(node) in functions.CASTS | {"contiguous"}:
            nodes.append(node.all_input_nodes[0])
    return nodes


def _dim(sum_: Node) -> int | None:
    """The one dim that a sum runs along, counted from the end."""
    argument = facts.argument(sum_, 1, "dim", "axis")
    dims = list(argument) if isinstance(argument, (tuple, list)) else [argument]
    rank = facts.tensors(sum_.all_input_nodes[0])[0].dim()
    return (dims[0] % rank) - rank if len(dims) == 1 and isinstance(dims[0], int) else None


def _sums_keys(sum_: Node, second: Node) -> bool:
    """Whether a sum runs along the dim of the left-hand operand that a product contracts."""
    called = facts.name(second)
    if facts.name(sum_) != "sum":
        return False
    if called != "einsum":
        return called in functions.PRODUCTS and _dim(sum_) == -1
    left, _, rest = str(second.args[0]).replace(" ", "").partition(",")
    dim = _dim(sum_)
    contracted = left[dim] if dim is not None and left.isalpha() else "."
    return contracted.isalpha() and contracted not in rest.partition("->")[2] and "->" in rest
