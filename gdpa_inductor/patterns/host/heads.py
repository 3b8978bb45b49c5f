"""Heads that are folded into the batch by hand: `torch.cat(x.split(d, 2), 0)`, as Set Transformer
writes them. It copies x; what is read is a view of it, [H, B, N, d].
"""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from . import facts
from .sizes import same

_SPLITS = frozenset(["split", "split_with_sizes", "chunk"])


def split_of(node: Node) -> Node | None:
    """The split all of whose pieces, of one size and in their order, `node` joins along another
    dim; None where it does not.
    """
    if facts.name(node) not in ("cat", "concat", "concatenate"):
        return None
    given: Any = node.args[0] if node.args else node.kwargs.get("tensors")
    split = _common(given) if isinstance(given, (list, tuple)) else node_of_pieces(given)
    if split is None:
        return None
    pieces = facts.tensors(split)
    (source,) = facts.tensors(split.all_input_nodes[0])
    (made,) = facts.tensors(node)
    if isinstance(given, (list, tuple)) and [n.args[1] for n in given] != [*range(len(pieces))]:
        return None
    shape = pieces[0].shape
    alike = all(all(map(same, piece.shape, shape)) for piece in pieces)
    unlike = [not same(a, b) for a, b in zip(made.shape, source.shape, strict=True)]
    return split if alike and len(pieces) > 1 and any(unlike) else None


def node_of_pieces(node: Any) -> Node | None:
    """A split that is used as the tuple that it is."""
    return node if isinstance(node, Node) and facts.name(node) in _SPLITS else None


def _common(pieces: Any) -> Node | None:
    """The split that all of them are pieces of."""
    taken = [n for n in pieces if isinstance(n, Node) and facts.name(n) == "getitem"]
    splits = {n.args[0] for n in taken}
    if len(taken) != len(pieces) or len(splits) != 1:
        return None
    return node_of_pieces(splits.pop())


def leads_to_a_join(node: Node) -> bool:
    """A join by `split_of`, or what it joins."""
    if facts.name(node) in _SPLITS:
        return any(map(leads_to_a_join, node.users))
    if facts.name(node) == "getitem":
        given = node.args[0]
        split = node_of_pieces(given)
        return split is not None and any(split_of(user) is split for user in node.users)
    return split_of(node) is not None
