"""Sums of the weights along a row, by which models normalise: by `sum`, or by a product with ones.

One call of `sum` is read beside a region (`beside`), or of `einsum` with one operand. Its result
becomes a result of the op, and what the model makes of it stays in the graph.

Other sums are refused. Where a column of ones beside V gives them, `ADVICE` says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch.fx import Node

from ...rejection import Code
from ..result import Refused
from . import facts, functions, places, products
from .candidates import Candidate, HostGraph
from .functions import NO_WEIGHTS, REASONS
from .region import SummedRows

ADVICE = (
    "append a column of ones to V and divide after the product: "
    "`o = w @ torch.cat([v, torch.ones_like(v[..., :1])], -1)`, then `o[..., :-1] / o[..., -1:]`"
)
_QUOTIENTS = frozenset(["truediv", "div", "divide", "true_divide", "mul", "multiply"])
_CARRIES = (
    functions.VIEWS | functions.CASTS | functions.MAY_ALIAS | functions.POINTWISE | _QUOTIENTS
) | {"repeat", "reciprocal", "getitem"}  # fmt: skip


_SUMMED = functions.POINTWISE | functions.CASTS | {"detach", "square"}


def beside(graph: HostGraph, inside: Collection[Node], candidate: Candidate) -> SummedRows | None:
    """The one call that sums what a region holds, or what is made of it element by element."""
    second, firsts = candidate.second, candidate.firsts
    starts = [n for n in inside if n is not second]
    ways = facts.walk(starts, lambda n: (u for u in n.users if facts.name(u) in _SUMMED))
    behind = {n for n in ways if n in inside or not graph.reach[n].isdisjoint(firsts)}
    calls = {u for n in behind for u in n.users if _is_row_sum(u)}
    if len(calls) != 1:
        return None
    (node,) = calls
    derived = _derived_from(graph, node, inside)
    return (
        None
        if second in derived
        else SummedRows(node, (), derived, _dim(node) or 0, _keepdim(node))
    )


def _is_row_sum(node: Node) -> bool:
    if facts.name(node) not in ("sum", "einsum") or _dim(node) is None or facts.is_opaque(node):
        return False
    if "out" in node.kwargs:  # it writes into a tensor of the model
        return False
    (result,), (summed,) = (facts.tensors(n) for n in (node, node.all_input_nodes[0]))
    if not (result.is_floating_point() and summed.is_floating_point()):
        return False
    # A narrower sum is one of rounded weights.
    return torch.promote_types(summed.dtype, result.dtype) == result.dtype


def _keepdim(sum_: Node) -> bool:
    return bool(facts.argument(sum_, 2, "keepdim", "keepdims"))


def _derived_from(graph: HostGraph, node: Node, inside: Collection[Node]) -> frozenset[Node]:
    derived = {node}
    for other in graph.in_order(inside):
        sources = [n for n in other.all_input_nodes if n in inside or n in derived]
        if sources and derived.issuperset(sources):
            derived.add(other)
    return frozenset(derived)


def between(
    graph: HostGraph, sums: SummedRows, inside: Collection[Node], candidate: Candidate
) -> tuple[Node, ...]:
    """The calls from a region to what is summed.

    Raises Refused if something else uses them, or writes change what is summed. Writes of the
    region count, if they are before the sum.
    """

    def leading(node: Node) -> list[Node]:
        sources = node.all_input_nodes if node not in inside else ()
        return [n for n in sources if not graph.reach[n].isdisjoint(candidate.firsts)]

    way = list(facts.walk([sums.source], leading))
    own = [n for n in way if n not in inside]
    for node in own:
        other = next((u for u in node.users if u not in own and u is not sums.node), None)
        if other is not None or facts.name(node) not in _SUMMED or node in graph.mutators:
            reason = "is made of scores, and more than summed"
            raise Refused(Code.SCORES_ESCAPE, f"{places.describe(node)} {reason}")
    place = graph.order[sums.node]
    before = [m for n in way for m in graph.written(facts.storages(n), graph.order[n], place)]
    after = graph.written(facts.storages(sums.source), place)
    writes = [m for m in before if m not in inside] + [m for m in after if m in inside]
    writes += graph.written(facts.storages(sums.node), place)
    if writes:
        reason = f"{places.describe(writes[0])} changes row sums, or what they sum, in place"
        raise Refused(Code.MUTATED_SCORES, reason)
    return tuple(graph.in_order(own))


def within(sum_: Node, second: Node) -> Refused:
    """The refusal of a region that has a function in it after which scores are no weights."""
    code = NO_WEIGHTS[facts.name(sum_)]
    fits = any(_is_normalised(n, sum_) for n in _left(second)) and _sums_keys(sum_, second)
    reason = f"{places.describe(sum_)} {REASONS[code]}"
    return Refused(code, reason, change=ADVICE if fits else None)


def outside(weights: Node, user: Node, second: Node) -> Refused | None:
    """The refusal of weights whose row sums are used beside the region; None if they are not."""
    by_ones = next((n for n in (user, second) if products.multiplies_ones(n)), None)
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
    if facts.name(sum_) == "einsum":
        return _summed_letter(sum_)
    argument = facts.argument(sum_, 1, "dim", "axis")
    dims = list(argument) if isinstance(argument, (tuple, list)) else [argument]
    rank = facts.tensors(sum_.all_input_nodes[0])[0].dim()
    return (dims[0] % rank) - rank if len(dims) == 1 and isinstance(dims[0], int) else None


def _summed_letter(einsum: Node) -> int | None:
    """The dim that an einsum of one operand sums, as `...ij->...i` does. None if it does more."""
    equation, *rest = einsum.args
    if not isinstance(equation, str) or len(einsum.all_input_nodes) != 1 or len(rest) != 1:
        return None
    letters, _, left = equation.replace(" ", "").replace("...", ".").partition("->")
    sums = [dim for dim in range(len(letters)) if letters[:dim] + letters[dim + 1 :] == left]
    distinct = len({*letters}) == len(letters) and "." not in letters[1:]
    return sums[0] - len(letters) if sums and distinct and letters[sums[0]] != "." else None


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
