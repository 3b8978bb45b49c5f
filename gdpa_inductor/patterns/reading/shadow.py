"""The shadow of a region: a copy that is traced to functional ATen on fakes, for analysis only.

The shadow has one form for everything: it has no in-place calls and no composite functions, and
autocast's casts are nodes. `Shadow.origin` maps its nodes to the user's nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ..._compat import fx, inductor, operators, subclasses
from ...program.ops.random import is_rate
from ...rejection import Code
from ..host import facts, places
from ..host.candidates import HostGraph
from ..host.functions import REASONS
from ..host.region import Region, SummedRows
from ..result import Refused


@dataclass(frozen=True)
class Shadow:
    """`leaves`: user's node of each placeholder. `output`: the ATen node of the region's result.

    `first_result`: name of the ATen node that is the result of the user's first product. `sums`:
    the user's row sums beside the region. `summed`: the ATen node that they sum.
    """

    leaves: dict[Node, Node]
    output: Node
    origin: dict[str, Node]
    first_result: str
    sums: SummedRows | None = None
    summed: Node | None = None

    def source(self, node: Node) -> Node | None:
        """The user's node that an ATen node was traced from."""
        return self.origin.get(node.name)

    def describe(self, node: Node) -> str:
        """How a reason names an ATen node: as the user's call that it was traced from."""
        origin = self.source(node)
        return places.describe(origin) if origin is not None else f"`{facts.name(node)}`"

    def refused(self, code: Code, node: Node, reason: str, at_source: bool = False) -> Refused:
        """A refusal whose reason begins with an ATen node.

        at_source: The result of the user's node may be an operand as it is.
        """
        source = self.source(node) if at_source else None
        return Refused(code, f"{self.describe(node)} {reason}", source)


def trace(graph: HostGraph, region: Region, first: Node) -> Shadow:
    """Trace a region as a function of its leaves. first: Its first product.

    Raises Refused where that fails, and where random numbers are drawn, be they used or not.
    """
    sums, leaves = region.sums, region.leaves
    ends = [region.nodes[-1], *([] if sums is None else [sums.source])]
    summed = () if sums is None else sums.between
    nodes = graph.in_order((*region.makers, *region.nodes, *summed))
    values = [_leaf_value(leaf) for leaf in leaves]
    origin: dict[str, Node] = {}

    def run(*inputs: Any) -> Any:
        environment: dict[Node, Any] = dict(zip(leaves, inputs, strict=True))
        known = fx.traced_so_far()
        for node in nodes:
            if facts.drops_at_times(node):
                more = "unless its rate, which varies from call to call, is 0"
                raise _random(node, more)
            run_node = _dropped if facts.drops(node) else execute
            with graph.ambient[node].entered():
                environment[node] = run_node(node, environment)
            written = fx.traced_so_far()
            new = written.keys() - known.keys()
            if any(operators.is_random(written[name]) for name in new):
                raise _random(node)
            origin.update(dict.fromkeys(new, node))
            known = written
        return [environment[end] for end in ends]

    sample = next(v for v in values if isinstance(v, torch.Tensor))
    try:
        traced = fx.trace_functional(run, values, subclasses.fake_mode_of(sample))
    except Refused:
        raise
    except Exception as error:  # whatever a trace may raise, the model is left as it is
        line, *_ = str(error).strip().splitlines() or [""]
        reason = f"the region could not be traced: {type(error).__name__}: {line}"
        raise Refused(Code.ANALYSIS, reason) from error
    placeholders = traced.graph.find_nodes(op="placeholder")
    (output,) = traced.graph.find_nodes(op="output")
    result, *others = output.args[0]  # type: ignore[misc]
    if not all(isinstance(n, Node) for n in (result, *others)):
        raise Refused(Code.ANALYSIS, "the region's result is not a tensor of its own")
    own = [n.name for n in traced.graph.nodes if origin.get(n.name) is first and facts.is_call(n)]
    first_result = own[-1] if own else ""
    known = dict(zip(placeholders, leaves, strict=True))
    return Shadow(known, result, origin, first_result, sums, *others)


def _dropped(node: Node, environment: dict[Node, Any]) -> Any:
    """A dropout as a product with its mask, a call of `gdpa::dropout_mask`, and its scale."""
    arguments = facts.arguments_of_dropout(node)
    x, p = environment[arguments["input"]], arguments["p"]
    if inductor.draws_as_eager():
        raise _random(node, "as eager does, by an option of Inductor")
    if not is_rate(p):
        raise _random(node, f"with a rate of {p}, which 16 bits do not hold")
    multiply = torch.Tensor.mul_ if arguments["inplace"] else torch.mul
    return multiply(multiply(x, torch.ops.gdpa.dropout_mask.default(x, p)), 1.0 / (1.0 - p))


def _random(node: Node, more: str = "") -> Refused:
    reason = f"{places.describe(node)} {REASONS[Code.DROPOUT]} {more}"
    return Refused(Code.DROPOUT, reason.strip())


def _leaf_value(leaf: Node) -> Any:
    """A fake of its own for every leaf: tracing takes one object for one input. Strides mean
    nothing to the analysis.
    """
    value = facts.value(leaf)
    if isinstance(value, torch.Tensor):
        mode = subclasses.fake_mode_of(value)
        with mode, fx.without_guards(mode):
            return torch.empty(value.shape, dtype=value.dtype, device=value.device)
    if isinstance(value, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value
    raise Refused(Code.ANALYSIS, f"{places.describe(leaf)} has no known value")


def execute(node: Node, environment: dict[Node, Any]) -> Any:
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), environment.__getitem__)
    target: Any = node.target
    if fx.counts(target, args):  # what it holds is known
        target, args, kwargs = fx.arange_of(target, args, kwargs)
    elif node.op == "call_method":
        return getattr(args[0], target)(*args[1:], **kwargs)
    return target(*args, **kwargs)
