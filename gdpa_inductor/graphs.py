"""Copy captured graphs, and restore a graph from its copy."""

from __future__ import annotations

import copy

from torch.fx import GraphModule


def copy_graph(gm: GraphModule) -> GraphModule:
    """A copy of a graph and of the graphs that it calls. Parameters and modules are shared."""
    duplicate = GraphModule(gm, copy.deepcopy(gm.graph))
    duplicate.meta = dict(gm.meta)
    for old, new in zip(gm.graph.nodes, duplicate.graph.nodes, strict=True):
        # Dynamo keeps the source of an input as an attribute of its node.
        vars(new).update({k: v for k, v in vars(old).items() if k not in vars(new)})
    for name, child in gm.named_children():
        if isinstance(child, GraphModule):
            setattr(duplicate, name, copy_graph(child))
    return duplicate


def restore(gm: GraphModule, backup: GraphModule) -> None:
    """Restore `gm` to the state in which `backup` was copied from it. `backup` is unchanged."""
    fresh = copy_graph(backup)
    gm.graph = fresh.graph
    for name, child in fresh.named_children():
        if isinstance(child, GraphModule):
            setattr(gm, name, child)
    gm.recompile()
