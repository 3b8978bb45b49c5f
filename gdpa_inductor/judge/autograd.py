"""Compare autograd on both sides: what the output reaches, and what is saved for the backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .._compat import autograd
from .interpret import Claim, Edge, Saved, SideBySide
from .verdict import Fault, Incomplete


def check_reach(whole: SideBySide, claim: Claim) -> None:
    """Raise Fault unless both sides of a claim reach the same operands, and no other leaf.

    Leaves that the graph makes itself and that nobody uses are excepted (`check_dropped`).
    """
    if not claim.before.requires_grad:
        return
    owners: dict[Edge, str] = {
        edge: name for name in whole.cuts for edge in whole.edges.get(name, ())
    }
    after, gained = _reached(claim.after, owners)
    # Other regions have operands of their own: those are no ends here.
    owners = {edge: name for edge, name in owners.items() if name in after}
    before, lost = _reached(claim.before, owners, whole.derived)
    for number in lost - gained:
        if number not in whole.leaves:
            raise Fault("an operand would get no gradient", claim.after_node)
        place = whole.log.ref(whole.leaves[number])
        whole.dropped.append((place.storage, claim.after_node))
    # Of the two results of a call with row sums, each reaches all of its operands. Those that a
    # result does not depend on get the gradient None from it.
    if after - before and not claim.of_sums:
        names = ", ".join(sorted(after - before))
        raise Fault(f"{names} would get a gradient", claim.after_node)


def check_dropped(whole: SideBySide) -> None:
    """Raise Fault if a leaf of the graph has lost its gradient but is still used."""
    for storage, node in whole.dropped:
        if storage in whole.shown:
            raise Fault("an operand would get no gradient", node)


def check_hooks(whole: SideBySide) -> None:
    """Raise Fault if a hook on a tensor would see a gradient on one side of a claim only."""
    for claim in whole.proved if whole.log.hooked else ():
        before, after = map(_behind, (claim.before, claim.after))
        if not (before ^ after).isdisjoint(whole.log.hooked):
            raise Fault("a hook would see another gradient", claim.after_node)


def _behind(tensor: Tensor) -> set[Edge]:
    """The edges behind a tensor in autograd's graph."""
    edges: set[Edge] = set()
    stack = [autograd.gradient_edge(tensor)]
    while stack:
        node, _ = stack.pop()
        new = set(() if node is None else _following(node)) - edges
        edges |= new
        stack += new
    return edges


def _following(node: Any) -> list[Edge]:
    """The edges that a node of autograd's graph passes gradients to."""
    leaf = autograd.leaf_of(node)
    return [e for e in node.next_functions if e[0] is not None] if leaf is None else [leaf]


def check_tangent(claim: Claim) -> None:
    """Raise Fault if forward-mode differentiation has a tangent on one side only."""
    if autograd.has_tangent(claim.before) != autograd.has_tangent(claim.after):
        raise Fault("a tangent of forward-mode differentiation is lost", claim.after_node)


def note_view(whole: SideBySide, claim: Claim) -> None:
    """Record a result that is a view now and was none before. Some writes into it are an error."""
    if autograd.is_view(claim.after) and not autograd.is_view(claim.before):
        whole.views.append(claim.before)
    if autograd.is_fragile_view(claim.after) and not autograd.is_fragile_view(claim.before):
        place = whole.log.ref(claim.before)
        whole.fragile.append((place.storage, whole.log.now, claim.after_node))


def check_views(whole: SideBySide) -> None:
    """Raise Fault if a view that was made without gradients is written into while they flow."""
    for storage, time, node in whole.fragile:
        for event, _, _ in whole.log.writes[storage]:
            if event.number >= time and event.grad:
                raise Fault(f"`{event.name}` writes into a view made without gradients", node)


def _reached(
    tensor: Tensor, owners: dict[Edge, str], derived: Sequence[Any] | None = None
) -> tuple[set[str], set[int]]:
    """The values that are reached, be it through others, and leaves behind none of them.

    derived: the functions of the user that may stand before a value; None for all of them.
    """
    names: set[str] = set()
    leaves: set[int] = set()
    seen: set[tuple[Edge, bool]] = set()
    stack: list[tuple[Edge, bool]] = [(autograd.gradient_edge(tensor), False)]
    while stack:
        edge, behind = stack.pop()
        if (edge, behind) in seen:
            continue
        seen.add((edge, behind))
        if edge in owners:
            names.add(owners[edge])
            behind = True
        node, number = edge
        if node is None:
            if not behind:
                leaves.add(number)
            continue
        unknown = derived is not None and autograd.is_of_user(node) and node not in derived
        if unknown and not behind:
            raise Incomplete("the gradient of an autograd function of the model is not known")
        stack += [(e, behind) for e in _following(node)]
    return names, leaves


def check_saved(whole: SideBySide) -> None:
    """Raise Fault if a tensor that only the rewritten graph saves for the backward may change.

    It may change by a later write in the graph, even one that autograd does not see. It may also
    change if the caller holds it.
    """
    common = {_version(whole, s) for s in whole.saved if s.side != "after"}
    of_caller = {whole.log.ref(x).storage for x in (*whole.inputs.passed, *whole.results)}
    for saved in (s for s in whole.saved if s.side == "before"):
        storage, version = _version(whole, saved)
        later = whole.log.writes[storage][version:]
        if later and autograd.version_of(saved.tensor) == saved.version:  # autograd saw none
            raise Fault(f"the backward is to see the write of `{later[0][0].name}`")
    for saved in (s for s in whole.saved if s.side == "after"):
        storage, version = _version(whole, saved)
        if (storage, version) in common:
            continue
        for event, _, _ in whole.log.writes[storage][version:]:
            raise Fault(f"`{event.name}` changes what is kept for the backward", saved.node)
        if storage in of_caller:
            raise Fault("what the caller may change is kept for the backward", saved.node)


def _version(whole: SideBySide, saved: Saved) -> tuple[Any, int]:
    """The storage of a saved tensor, and how many writes it has seen."""
    history = whole.log.writes[saved.ref.storage]
    return saved.ref.storage, sum(event.number < saved.time for event, _, _ in history)
