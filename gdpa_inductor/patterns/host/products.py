"""Which nodes are matrix products, and what they multiply."""

from __future__ import annotations

import re
from collections import Counter

import torch
from torch.fx import Node

from ..._compat import dynamo
from . import facts, functions

_SAME_ELEMENTS = functions.VIEWS | functions.CASTS
_ONES = frozenset(["ones", "ones_like", "new_ones"])


def is_product(node: Node) -> bool:
    """Whether a node is a matrix product: it contracts two operands."""
    called = facts.name(node)
    if called not in functions.PRODUCTS or facts.is_opaque(node) or len(operands(node)) < 2:
        return False
    return called != "einsum" or _contracts(node)


def of_activations(node: Node) -> bool:
    """Whether a node is a product, and none with a weight."""
    return is_product(node) and not is_weight_product(node)


def operands(node: Node) -> list[Node]:
    """The tensors that a product multiplies, without an addend."""
    called, args = facts.name(node), node.args
    if called in ("einsum", "chain_matmul"):  # an einsum of lists has no equation
        nodes = facts.flat_nodes(args)
    elif called in ("addmm", "baddbmm"):
        nodes = facts.flat_nodes((args[1:3], node.kwargs))
    elif called == "__rmatmul__":
        nodes = facts.flat_nodes(args[:2])[::-1]
    else:
        nodes = facts.flat_nodes((args[:2], node.kwargs))
    return [n for n in nodes if facts.tensors(n)]


def _contracts(node: Node) -> bool:
    """Whether an einsum sums over a letter that two operands have. Unknown forms count as products.

    A letter that one operand alone has is a sum of that operand.
    """
    equation = node.args[0] if node.args else None
    if not isinstance(equation, str):
        return True
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    if not arrow:
        return True
    counts = Counter(letter for factor in inputs.split(",") for letter in set(factor))
    return any(n > 1 and x.isalpha() and x not in result for x, n in counts.items())


def is_weight_product(node: Node) -> bool:
    """Whether a node is a product with a 2-D weight, as in a layer.

    It is if one operand of `x @ W` is 2-D and the other has more dims, or if a weight enters the
    graph. A call of `linear` is one too, unless its weight is made from a tensor with more dims.
    Of an einsum, a parameter is a weight, and so is a constant, such as `torch.eye(heads)`.
    """
    factors = operands(node)
    if facts.name(node) == "linear":
        return len(factors) < 2 or _is_flat_throughout(factors[1])
    flat = [n for n in factors if facts.tensors(n)[0].dim() <= 2]
    if facts.name(node) == "einsum":
        sources = [origin(n) for n in flat]
        return any(_is_parameter(n) or facts.name(n) in functions.CREATIONS for n in sources)
    if 0 < len(flat) < len(factors):
        return True
    return any(origin(n).op in ("placeholder", "get_attr") for n in flat)


def is_flat_input(node: Node) -> bool:
    """Whether a node is a 2-D input that no module owns. It may be a weight or an activation."""
    source = origin(node)
    if [t.dim() for t in facts.tensors(node)] != [2] or source.op != "placeholder":
        return False
    name = dynamo.source_name(source)
    owned = re.search(r"\._(modules|parameters|buffers)\b", name)
    return bool(name) and not owned and not _is_parameter(source)


def multiplies_ones(node: Node) -> bool:
    """Whether a node is a product with a tensor of ones, which sums rows."""
    return is_product(node) and any(map(_is_ones, operands(node)))


def _is_ones(node: Node) -> bool:
    source = origin(node)
    filled = {"full": 1, "full_like": 1, "new_full": 2}.get(facts.name(source))
    if filled is None:
        return facts.name(source) in _ONES
    return bool(facts.argument(source, filled, "fill_value") in (1, 1.0))


_FAR = 16  # how many nodes before a 2-D tensor are looked at; beyond, it counts as a weight


def _is_flat_throughout(node: Node) -> bool:
    """Whether a 2-D tensor is made from tensors of at most two dims, as weights are."""
    seen, stack = {node}, [node]
    while stack and len(seen) <= _FAR:
        sources = [n for n in stack.pop().all_input_nodes if n not in seen and facts.tensors(n)]
        if any(t.dim() > 2 for n in sources for t in facts.tensors(n)):
            return False
        seen.update(sources)
        stack += sources
    return True


def origin(node: Node) -> Node:
    """The node at the beginning of a chain of views and casts."""
    while facts.name(node) in _SAME_ELEMENTS and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _is_parameter(node: Node) -> bool:
    return any(isinstance(t, torch.nn.Parameter) for t in facts.tensors(node))
