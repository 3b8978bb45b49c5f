"""Copies of captured graphs, and going back to one."""

from __future__ import annotations

import copy

from torch.fx import GraphModule


def copy_graph(gm: GraphModule) -> GraphModule:
    """The same parameters and modules under a copy of the graph and of the graphs that it calls."""
    made = GraphModule(gm, copy.deepcopy(gm.graph))
    made.meta = dict(gm.meta)
    for old, new in zip(gm.graph.nodes, made.graph.nodes, strict=True):
        # Dynamo keeps the source of an input as an attribute of its node.
        vars(new).update({k: v for k, v in vars(old).items() if k not in vars(new)})
    for name, child in gm.named_children():
        if isinstance(child, GraphModule):
            setattr(made, name, copy_graph(child))
    return made


def restore(gm: GraphModule, kept: GraphModule) -> None:
    """Make `gm` what it was when `kept` was copied from it; `kept` stays as it is."""
    fresh = copy_graph(kept)
    gm.graph = fresh.graph
    for name, child in fresh.named_children():
        if isinstance(child, GraphModule):
            setattr(gm, name, child)
    gm.recompile()
