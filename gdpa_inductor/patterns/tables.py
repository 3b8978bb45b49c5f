"""Learned tables that a bias is looked up in: what the gradient adds up there, it adds in fp32.

A bias `table[index]` has an element for each score and its table a few hundred or thousand, so the
gradient of each element of a table sums thousands of those of the bias. For a table in 16 bits
Inductor adds them in 16 bits, one after the other: of a few hundred like terms the next one rounds
away, and on a GPU each addition is a loop of compare and swap. Looked up through fp32 the bias
keeps every bit, and its gradient is added in fp32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch.fx import Node

from .. import _compat
from . import host
from .candidates import HostGraph
from .recipe import describe

_LOOKUPS = frozenset(
    ["getitem", "index", "index_select", "embedding", "gather", "take", "take_along_dim"]
)
# What a bias may have gone through since: nothing here depends on what these compute.
_PASSED = host.POINTWISE | host.CASTS | {
    "contiguous", "clone", "reshape", "flatten", "repeat", "iadd", "isub", "imul", "itruediv",
}  # fmt: skip


def widen(graph: HostGraph, biases: Iterable[Node]) -> None:
    """Let tables in 16 bits that `biases` come from, and that learn, be looked up through fp32."""
    for lookup in list(_lookups(graph, biases)):
        table, narrow = _table(graph, lookup), host.tensors(lookup)[0]
        if table is None:  # it looks up in what was looked up, and is widened with that
            continue
        fakes = _compat.fake_mode_of(narrow)
        with fakes, _compat.without_guards(fakes), torch.enable_grad():
            wide_table = host.tensors(table)[0].to(torch.float32)
            wide = narrow.to(torch.float32)
        with graph.graph.inserting_before(lookup):
            source = _cast(graph, table, torch.float32)
        describe(source, lookup, wide_table)
        lookup.replace_input_with(table, source)
        users = list(lookup.users)
        with graph.graph.inserting_after(lookup):
            result = _cast(graph, lookup, narrow.dtype)
        for user in users:
            user.replace_input_with(lookup, result)
        describe(result, lookup, narrow)
        describe(lookup, lookup, wide)


def _cast(graph: HostGraph, node: Node, dtype: torch.dtype) -> Node:
    made: Node = graph.graph.call_function(
        torch.ops.aten._to_copy.default, (node,), {"dtype": dtype}
    )
    return made


def _lookups(graph: HostGraph, biases: Iterable[Node]) -> Iterator[Node]:
    """The lookups that biases come from by views, casts and point-wise functions."""
    stack, seen = list(biases), set()
    while stack:
        node = stack.pop()
        if node in seen or not node.op.startswith("call") or host.is_opaque(node):
            continue
        seen.add(node)
        if _table(graph, node) is not None:
            yield node
        elif host.is_view(node) or host.name(node) in _PASSED:
            stack.extend(node.all_input_nodes)


def _table(graph: HostGraph, node: Node) -> Node | None:
    """The table that a node looks elements up in, if that can be widened."""
    if host.name(node) not in _LOOKUPS or len(host.tensors(node)) != 1 or node in graph.mutators:
        return None
    if host.name(node) == "embedding" and _is_sparse(node):
        return None
    given = [n for n in node.all_input_nodes if host.tensors(n)]
    tables = [n for n in given if host.tensors(n)[0].is_floating_point()]
    state = graph.ambient[node]
    if len(tables) != 1 or len(given) < 2 or not state.grad or state.transforms:
        return None
    held = host.tensors(tables[0])[0]
    learns = held.requires_grad and held.dtype in (torch.float16, torch.bfloat16)
    copied = not host.storages(node) & host.storages(tables[0])
    # A copy of the whole table in fp32 is for those that are much looked at.
    size, looked_up = (_compat.size_hint(t.numel()) for t in (held, host.tensors(node)[0]))
    small = size is not None and looked_up is not None and size <= looked_up
    return tables[0] if learns and copied and small and host.is_plain(tables[0]) else None


def _is_sparse(node: Node) -> bool:
    """`F.embedding(..., sparse=True)`, by name or as its last argument."""
    return bool(node.args[6] if len(node.args) > 6 else node.kwargs.get("sparse"))
