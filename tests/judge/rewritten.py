"""What the judge says of graphs that were rewritten rightly, and then tampered with."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from gdpa_inductor.graphs import copy_graph
from gdpa_inductor.judge import judged
from gdpa_inductor.options import Options
from gdpa_inductor.patterns import rewrite_graph
from gdpa_inductor.patterns.validation import claims

ALONE = Options(profit=False, judge=False)


B, H, N, M, D = 2, 3, 7, 5, 4


def heads(*, grad: bool = True) -> list[torch.Tensor]:
    return [torch.randn(B, H, n, D, requires_grad=grad) for n in (N, M, M)]


def verdicts(function: Callable, inputs: list, tamper: Callable | None = None) -> list:
    """What the judge says of every graph of a function, the rewritten one tampered with."""
    results = []

    def backend(gm, _):
        before = copy_graph(gm)
        matches = rewrite_graph(gm, options=ALONE).matches
        assert matches
        if tamper is not None:
            tamper(gm.graph)
            gm.recompile()
        results.append(judged(before, gm, claims(gm, matches)))
        return before.forward

    torch.compile(function, backend=backend)(*inputs)
    return results


def fused(graph: torch.fx.Graph) -> torch.fx.Node:
    (node,) = (n for n in graph.nodes if n.target is torch.ops.gdpa.attention.default)
    return node


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
