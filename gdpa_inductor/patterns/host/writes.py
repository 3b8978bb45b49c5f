"""Which arguments a call changes in place, and whether its result may be an alias of one."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

from torch.fx import Node

from ..._compat import fx, operators
from . import facts, functions

# fmt: off
_INPLACE_OPERATORS = frozenset([
    "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor",
    "ilshift", "irshift", "iconcat", "setitem", "delitem",
])
# Functions that write into arguments after the first one, even if no schema says so.
_WRITES_BUFFERS = frozenset([
    "batch_norm", "instance_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm",
    "batch_norm_update_stats", "rrelu_with_noise",
])
_RENORMALISES = frozenset(["embedding", "embedding_bag"])
# fmt: on


def mutated(node: Node) -> list[Node]:
    """The arguments that a call changes in place, or all of them if that is not known."""
    target: Any = node.target
    if not node.op.startswith("call_") or fx.state_change(target):
        return []
    if isinstance(target, operators.OpOverload):
        return _written(node, operators.schema_of(target)) + _silently_written(node)
    if isinstance(target, operators.OpOverloadPacket) and facts.is_opaque(node):
        schemas = [operators.schema_of(getattr(target, name)) for name in target.overloads()]
        return list(dict.fromkeys(n for schema in schemas for n in _written(node, schema)))
    if facts.is_opaque(node):
        bodies = facts.bodies_of(node) if isinstance(target, fx.HigherOrderOperator) else []
        pure = bodies and not any(mutated(inner) for body in bodies for inner in body.graph.nodes)
        return [] if pure else node.all_input_nodes
    called = facts.name(node)
    changed = facts.flat_nodes(node.kwargs.get("out")) + _declared(node)
    trailing = (
        called.endswith("_")
        and not called.endswith("__")
        and getattr(target, "__module__", "") != "_operator"
    )
    special = called in _INPLACE_OPERATORS or re.fullmatch(r"__(i\w+|setitem|delitem)__", called)
    if trailing or (special and called != "__invert__") or _asks_inplace(node):
        changed += facts.flat_nodes(node.args[:1] if node.args else list(node.kwargs.values())[:1])
    return changed + _silently_written(node)


def _declared(node: Node) -> list[Node]:
    """The arguments that ATen's function of that name writes. Optimizers have several."""
    called = facts.name(node)
    if called in functions.WATCHERS or getattr(node.target, "__module__", "") == "_operator":
        return []
    schemas = (operators.schema_of(overload) for overload in operators.aten_overloads(called))
    own = (s for s in schemas if not any(argument.is_out for argument in s.arguments))
    return list(dict.fromkeys(n for schema in own for n in _written(node, schema)))


def _silently_written(node: Node) -> list[Node]:
    """Buffers that a function changes, although neither its name nor a schema says so."""
    called, others = facts.name(node), (node.args[1:], node.kwargs)
    if called in _WRITES_BUFFERS:
        return facts.flat_nodes(others)
    if called not in _RENORMALISES or isinstance(node.target, operators.OpOverload):
        return []
    unbounded = facts.argument(node, 3, "max_norm") is None
    return [] if unbounded else facts.flat_nodes(others)


def may_alias(node: Node) -> bool:
    """Whether a call returns its argument itself or a copy, depending on strides."""
    known = facts.name(node) in functions.MAY_ALIAS and not facts.is_opaque(node)
    if not known or not node.all_input_nodes:
        return False
    source, result = facts.tensors(node.all_input_nodes[0]), facts.tensors(node)
    return len(source) == len(result) == 1 and source[0].dtype == result[0].dtype


def cuts_history(node: Node) -> bool:
    """Whether a call returns its argument itself, without its autograd history."""
    source = node.all_input_nodes[0] if node.all_input_nodes else None
    if source is None or not facts.storages(node) & facts.storages(source):
        return False
    lost = facts.requires_grad(source) and not facts.requires_grad(node)
    return facts.name(node) in functions.DETACHING or lost


def _written(node: Node, schema: Any) -> list[Node]:
    nodes: list[Node] = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            nodes += facts.flat_nodes(facts.argument(node, position, argument.name))
    return nodes


def _asks_inplace(node: Node) -> bool:
    """`F.relu(x, inplace=True)`, by name or by position."""
    if node.kwargs.get("inplace"):
        return True
    position = _inplace_position(node.target) if node.op == "call_function" else None
    return position is not None and position < len(node.args) and bool(node.args[position])


@functools.lru_cache(maxsize=4096)
def _inplace_position(target: Callable[..., Any]) -> int | None:
    if not inspect.isfunction(target):
        return None
    parameters = list(inspect.signature(target).parameters)
    return parameters.index("inplace") if "inplace" in parameters else None
