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
    graph: HostGraph, region: Region, factors: Sequence[Node], others: Sequence[Node],
    pads: Sequence[Pad],
) -> frozenset[Node]:  # fmt: skip
    """The operands to copy.

    factors: Query, key and value. others: The operands of the score program.

    Raises Refused in two cases. The graph itself changes an operand as large as the scores, or it
    changes an operand in a way that autograd does not notice.
    """
    if not _trains(graph, (*factors, *others)):
        return frozenset()
    offsets = [pad.offsets for pad in pads]
    later, copies = _later(graph, region), set[Node]()
    saved = functools.cache(lambda: _saved_by_autograd(graph, region, later))
    inference = graph.ambient[region.end].inference
    most = max((size for n in factors if (size := _size(n)) is not None), default=0)
    for node in dict.fromkeys((*factors, *others, *offsets)):
        if facts.storages(node) & later or graph.ambient[node].inference > inference:
            _check_later(graph, region, node, most, saved)
            copies.add(node)
    unsaved = [pad.offsets for pad in pads if not facts.requires_grad(pad.values)]
    outside = _caller_storages(graph)
    for node in dict.fromkeys((*factors, *others, *unsaved)):
        own = facts.storages(node)
        if own & outside and not own & saved():
            copies.add(node)
    return frozenset(copies)


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
            raise Refused(
                Code.MUTATED_OPERAND,
                f"{places.describe(mutator)} changes an operand before the backward, unseen by "
                "autograd",
            )


def _is_silent(mutator: Node) -> bool:
    """A write through `.data`."""
    stack, seen = writes.mutated(mutator), set[Node]()
    while stack:
        node = stack.pop()
        if facts.name(node) in functions.SILENT:
            return True
        seen.add(node)
        own = facts.storages(node)
        stack += [n for n in node.all_input_nodes if n not in seen and facts.storages(n) & own]
    return False


def _later(graph: HostGraph, region: Region) -> frozenset[int]:
    """The storages that are changed after the region."""
    end = graph.order[region.end]
    changed = (
        written
        for m, written in graph.mutators.items()
        if graph.order[m] > end and facts.name(m) not in functions.CUTS
    )
    return graph.later.union(*changed)


def _caller_storages(graph: HostGraph) -> set[int]:
    """The storages of inputs, parameters and outputs.

    Parameters count because an optimizer may run before the backward, or `.data` may be clamped.
    """
    ends = (n for n in graph.order if n.op in ("placeholder", "get_attr", "output"))
    nodes = (x for n in ends for x in (n.all_input_nodes if n.op == "output" else [n]))
    return set().union(*map(facts.storages, nodes))


def _trains(graph: HostGraph, operands: Sequence[Node]) -> bool:
    """Whether the region may have a backward. In an exported graph its inputs decide."""
    return any(map(facts.requires_grad, operands)) or (
        bool(graph.learns) and any(map(facts.may_want_gradients, operands))
    )


def _size(node: Node) -> int | None:
    """How many elements a node has, or None if that is not known."""
    sizes = [shapes.size_hint(subclasses.values_of(t).numel()) for t in facts.tensors(node)]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _saved_by_autograd(graph: HostGraph, region: Region, later: frozenset[int]) -> set[int]:
    """The storages of leaves that autograd saves for the region. The region is run on fakes.

    The set is empty if the run fails. later: The storages that are changed after the region.
    """
    addresses: set[int] = set()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        addresses.add(subclasses.storage_address(tensor.untyped_storage()))
        return tensor

    try:
        environment = _rerun(graph, region, later, pack)
    except Exception:  # whatever it may raise, a copy is right
        return set()
    own = {leaf: environment[leaf] for leaf in region.leaves}
    tensors = {leaf: x for leaf, x in own.items() if isinstance(x, torch.Tensor)}
    address = lambda x: subclasses.storage_address(x.untyped_storage())
    leaves = (n for n, x in tensors.items() if address(x) in addresses)
    return set().union(*map(facts.storages, leaves))


def _rerun(
    graph: HostGraph, region: Region, later: frozenset[int],
    pack: Callable[[torch.Tensor], torch.Tensor],
) -> dict[Node, Any]:  # fmt: skip
    """All values of a region, run on fakes of its leaves. pack: Gets each tensor that is saved."""
    nodes = sorted((*region.makers, *region.nodes), key=graph.order.__getitem__)
    mode = subclasses.fake_mode_of(facts.tensors(region.end)[0])
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with mode, fx.without_guards(mode), torch.enable_grad(), hooks:
        environment: dict[Node, Any] = {x: _alike(graph, x, later) for x in region.leaves}
        for node in nodes:
            with graph.ambient[node].entered():
                environment[node] = shadow.execute(node, environment)
    return environment


def _alike(graph: HostGraph, leaf: Node, later: frozenset[int]) -> Any:
    """A new fake with the same strides.

    later: The storages that are changed after the region. After such a change the captured value
    may require grad although it did not before.
    """
    value = facts.value(leaf)
    if not isinstance(value, torch.Tensor):
        return value
    fake = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    wants = graph.wants(leaf) and not graph.ambient[leaf].inference
    return fake.requires_grad_(wants and not facts.storages(leaf) & later)
