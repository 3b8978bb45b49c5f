"""What the judge says of graphs that were rewritten rightly, and then tampered with."""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F

from gdpa_inductor.graphs import copy_graph
from gdpa_inductor.judge import Verdict, judged
from gdpa_inductor.options import Options
from gdpa_inductor.patterns import rewrite_graph
from gdpa_inductor.patterns.validation import claims

ALONE = Options(profit=False, judge=False)
ATTENTION = torch.ops.gdpa.attention.default

B, H, N, M, D = 2, 3, 7, 5, 4


def heads(*, grad: bool = True) -> list[torch.Tensor]:
    return [torch.randn(B, H, n, D, requires_grad=grad) for n in (N, M, M)]


def by_matcher(gm: torch.fx.GraphModule) -> Mapping:
    """Rewrite a graph as the matcher does, and return its claims."""
    matches = rewrite_graph(gm, options=ALONE).matches
    assert matches
    return claims(gm, matches)


def by_hand(program: str, query: str, key: str, value: str, *alive: str) -> Callable:
    """A rewrite that returns a fused call of these nodes, and drops what then has no user.

    alive: Names of nodes that stay.
    """

    def rewrite(gm: torch.fx.GraphModule) -> None:
        nodes = {node.name: node for node in gm.graph.nodes}
        operands = (nodes[name] for name in (query, key, value))
        end = nodes["output"]
        end.args = ((called(gm.graph, end, ATTENTION, *operands, [], [], program, ""),),)
        for name, node in reversed(nodes.items()):
            if name not in alive and not node.users and node.op.startswith("call"):
                gm.graph.erase_node(node)

    return rewrite


def verdicts(
    function: Callable,
    inputs: list,
    tamper: Callable | None = None,
    rewrite: Callable[[torch.fx.GraphModule], Mapping | None] = by_matcher,
) -> list:
    """What the judge says of every graph of a function, the rewritten one tampered with."""
    results = []

    def backend(gm, _):
        before = copy_graph(gm)
        claimed = rewrite(gm)
        if tamper is not None:
            tamper(gm.graph)
        gm.recompile()
        results.append(judged(before, gm, claimed))
        return before.forward

    torch.compile(function, backend=backend)(*inputs)
    return results


def stopped(function: Callable, inputs: list, *tampers: Callable, reason: str = "") -> Verdict:
    """The verdict on the last tampered rewrite: each is invalid, the one as it came is right."""
    assert verdicts(function, inputs) == [None]
    for tamper in tampers:
        (verdict,) = verdicts(function, inputs, tamper)
        assert verdict is not None and verdict.invalid and reason in verdict.reason, verdict
    return verdict


def call_of(graph: torch.fx.Graph, target: object) -> torch.fx.Node:
    """The one call of a function, or of a method by its name."""
    (node,) = (n for n in graph.nodes if n.op.startswith("call") and n.target == target)
    return node


def fused(graph: torch.fx.Graph) -> torch.fx.Node:
    return call_of(graph, ATTENTION)


def operand(graph: torch.fx.Graph, name: str) -> torch.fx.Node:
    """The placeholder of an argument of the function."""
    return next(n for n in graph.nodes if n.name == f"l_{name}_")


def with_argument(position: int, value: object) -> Callable:
    """Give the fused call another argument; a function makes it from the old one and the graph."""

    def tamper(graph: torch.fx.Graph) -> None:
        node = fused(graph)
        args = list(node.args)
        args[position] = value(args[position], graph) if callable(value) else value
        node.args = tuple(args)

    return tamper


def called(graph: torch.fx.Graph, at: torch.fx.Node, target: object, *args: object):
    with graph.inserting_before(at):
        return graph.call_function(target, args)


def plain(q, k, v):
    return F.silu(q @ k.mT * 0.5) @ v


def program(text: str) -> Callable:
    return with_argument(5, text)


def on_operand(target: object, *args: object) -> Callable:
    return lambda old, graph: called(graph, fused(graph), target, old, *args)
