"""`Region`: the nodes between two products, to be replaced by one call."""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import Node


@dataclass(frozen=True)
class Sink:
    """The way from a second product to the call that removes the padding of its rows.

    tail:    Views and casts of the product's result. The last one is unpadded.
    unpad:   The call, and the nodes that take its results apart.
    result:  The node with the unpadded result, [L, ...].
    again:   Nodes that return the offsets.
    """

    tail: tuple[Node, ...]
    unpad: tuple[Node, ...]
    result: Node
    offsets: Node
    again: tuple[Node, ...] = ()


@dataclass(frozen=True)
class SummedRows:
    """Sums of the weights along their rows, by which models normalise.

    node:     The call that sums.
    between:  The calls from the weights to what is summed. Nothing else uses them.
    derived:  The sums, and what is made of them and of no other scores before the second product.
    dim:      Where the keys are in what is summed, counted from the end.
    """

    node: Node
    between: tuple[Node, ...]
    derived: frozenset[Node]
    dim: int
    keepdim: bool

    @property
    def source(self) -> Node:
        """What is summed."""
        return self.node.all_input_nodes[0]


@dataclass(frozen=True)
class Region:
    """The nodes to replace.

    nodes:      From the first product to the second, in program order. With a `sink`, also views
                and casts of the result.
    makers:     Pure calls between the leaves and these nodes.
    leaves:     The tensors that enter.
    dead:       Users of the region whose results nobody uses.
    sizes:      Users that read a shape only.
    factories:  Calls on the region's tensors that read only a dtype and a device, and whose results
                are used outside.
    shared:     Users that other candidates of the same scores replace, each with what it uses.
    sums:       Row sums of the weights that are a result too.
    """

    nodes: tuple[Node, ...]
    makers: tuple[Node, ...]
    leaves: tuple[Node, ...]
    sink: Sink | None = None
    dead: tuple[Node, ...] = ()
    sizes: tuple[Node, ...] = ()
    factories: tuple[Node, ...] = ()
    shared: tuple[tuple[Node, Node], ...] = ()
    sums: SummedRows | None = None

    @property
    def end(self) -> Node:
        """The node to replace: the result of the second product, or of the unpadding after it."""
        return self.nodes[-1] if self.sink is None else self.sink.result

    @property
    def ends(self) -> tuple[Node, ...]:
        """The nodes to replace: `end`, and row sums."""
        return (self.end,) if self.sums is None else (self.end, self.sums.node)

    @property
    def all_nodes(self) -> tuple[Node, ...]:
        """Every node that the replacement stands for."""
        unpad = () if self.sink is None else self.sink.unpad
        sums = () if self.sums is None else (*self.sums.between, self.sums.node)
        return (*self.nodes, *unpad, *sums)
