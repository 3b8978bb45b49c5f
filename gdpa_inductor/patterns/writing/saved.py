"""Which operands have to be copied, because they may change between forward and backward.

The op saves its operands for the backward. The user's own operations may not have saved all of
these. If such an operand is changed in place before the backward, the user's model trains, but with
the op autograd raises an error. If the change is invisible to autograd (`.data`), gradients would
be wrong. So the op gets a copy.

Changes come from later calls in the graph, or from the caller. The caller can change operands that
are inputs, parameters or outputs of the graph. These are copied whatever their size. Autograd does
not save tensors that were made in inference mode either.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from ..._compat import fx, shapes, subclasses
from ...rejection import Code
from ..host import facts, functions, places, writes
from ..host.candidates import HostGraph
from ..host.region import Region
from ..jagged.pads import Pad
from ..reading import shadow
from ..result import Refused


def to_copy(
    graph: HostGraph,
    region: Region,
    factors: Sequence[Node],
    others: Sequence[Node],
    pads: Sequence[Pad],
) -> frozenset[Node]:
    """The operands to copy.

    factors: Query, key and value. others: The operands of the score program.

    Raises Refused in two cases. The graph itself changes an operand as large as the scores, or it
    changes an operand in a way that autograd does not notice.
    """
    if not trains(graph, (*factors, *others)):
        return frozenset()
    offsets = [pad.offsets for pad in pads]
    saved, copies = functools.cache(lambda: _saved_by_autograd(graph, region)), set[Node]()
    inference = graph.ambient[region.end].inference
    most = max((size for n in factors if (size := _size(n)) is not None), default=0)
    for node in dict.fromkeys((*factors, *others, *offsets)):
        if _changes_later(graph, region, node) or graph.ambient[node].inference > inference:
            _check_later(graph, region, node, most, saved)
            copies.add(node)
    # In eager, padding saves its offsets only if the values have a gradient. The fused call always
    # keeps them.
    unsaved = [pad.offsets for pad in pads if not facts.requires_grad(pad.values)]
    outside = _caller_storages(graph)
    for node in dict.fromkeys((*factors, *others, *unsaved)):
        own = facts.storages(node)
        if own & outside and not own & saved():
            copies.add(node)
    return frozenset(copies)


def _changes_later(graph: HostGraph, region: Region, node: Node) -> bool:
    return graph.changes_after(facts.storages(node), graph.order[region.end])


def _check_later(
    graph: HostGraph, region: Region, node: Node, most: int, saved: Callable[[], set[int]]
) -> None:
    size, own = _size(node), facts.storages(node)
    if size is None or size > most:
        raise Refused(
            Code.MUTATED_OPERAND,
            "an operand as large as the scores is changed in place between the output and its "
            "backward, or made in inference mode",
        )
    for mutator in graph.written(own, graph.order[region.end]):
        if _is_silent(mutator) and own & saved():
            reason = "changes an operand before the backward, unseen by autograd"
            raise Refused(Code.MUTATED_OPERAND, f"{places.describe(mutator)} {reason}")


def _is_silent(mutator: Node) -> bool:
    """A write through `.data`, or one without a new version."""

    def bases(node: Node) -> list[Node]:
        own = facts.storages(node)
        return [n for n in node.all_input_nodes if facts.storages(n) & own]

    return facts.name(mutator) in functions.UNVERSIONED or any(
        facts.name(n) in functions.SILENT for n in facts.walk(writes.mutated(mutator), bases)
    )


def _caller_storages(graph: HostGraph) -> set[int]:
    """The storages of inputs, parameters and outputs.

    Parameters count because an optimizer may run before the backward, or `.data` may be clamped.
    """
    ends = (n for n in graph.order if n.op in ("placeholder", "get_attr", "output"))
    nodes = (x for n in ends for x in (n.all_input_nodes if n.op == "output" else [n]))
    return set().union(*map(facts.storages, nodes))


def trains(graph: HostGraph, operands: Sequence[Node]) -> bool:
    """Whether the region may have a backward. In an exported graph its inputs decide."""
    return any(map(facts.requires_grad, operands)) or (
        bool(graph.learns) and any(map(facts.may_want_gradients, operands))
    )


def _size(node: Node) -> int | None:
    """How many elements a node has, or None if that is not known."""
    sizes = [shapes.size_hint(subclasses.values_of(t).numel()) for t in facts.tensors(node)]
    return None if None in sizes else sum(filter(None, sizes))


def _saved_by_autograd(graph: HostGraph, region: Region) -> set[int]:
    """The storages of leaves that autograd saves for the region, which is run on fakes.

    The set is empty if the run fails: a copy is always right.
    """
    addresses, environment = set[int](), dict[Node, Any]()
    address = lambda tensor: subclasses.storage_address(tensor.untyped_storage())

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        addresses.add(address(tensor))
        return tensor

    try:
        mode = subclasses.fake_mode_of(facts.tensors(region.end)[0])
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
        with mode, fx.without_guards(mode), torch.enable_grad(), hooks:
            environment.update((leaf, _alike(graph, leaf, region)) for leaf in region.leaves)
            for node in graph.in_order((*region.makers, *region.nodes)):
                with graph.ambient[node].entered():
                    environment[node] = shadow.execute(node, environment)
    except Exception:
        return set()
    tensors = [n for n in region.leaves if isinstance(environment[n], torch.Tensor)]
    leaves = (n for n in tensors if address(environment[n]) in addresses)
    return set().union(*map(facts.storages, leaves))


def _alike(graph: HostGraph, leaf: Node, region: Region) -> Any:
    """A new fake with the same strides.

    If a leaf is changed after the region, its captured value may require grad although it did not
    before.
    """
    value = facts.value(leaf)
    if not isinstance(value, torch.Tensor):
        return value
    fake = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    wants = graph.wants(leaf) and not graph.ambient[leaf].inference
    return fake.requires_grad_(wants and not _changes_later(graph, region, leaf))
