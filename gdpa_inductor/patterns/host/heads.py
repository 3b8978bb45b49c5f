"""Recognise heads that a model folds into the batch by hand: `torch.cat(x.split(d, 2), 0)`.

Set Transformer does so. The model copies x [B, N, H·d]. The kernels read x in place, as a view
[H, B, N, d].
"""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from . import facts
from .sizes import same

_SPLITS = frozenset(["split", "split_with_sizes", "chunk"])
_JOINS = frozenset(["cat", "concat", "concatenate"])


def split_of(join: Node) -> Node | None:
    """The split whose pieces a `cat` joins along another dim; None for other nodes.

    All pieces have to be joined, in their order, and have the same size.
    """
    if facts.name(join) not in _JOINS:
        return None
    inputs: Any = join.args[0] if join.args else join.kwargs.get("tensors")
    split = _source_of(inputs) if isinstance(inputs, (list, tuple)) else _as_split(inputs)
    if split is None:
        return None
    pieces = facts.tensors(split)
    alike = all(all(map(same, piece.shape, pieces[0].shape)) for piece in pieces)
    if not alike or len(pieces) < 2:
        return None
    if isinstance(inputs, (list, tuple)) and [n.args[1] for n in inputs] != [*range(len(pieces))]:
        return None
    (source,), (output,) = facts.tensors(split.all_input_nodes[0]), facts.tensors(join)
    along_another_dim = not all(map(same, output.shape, source.shape))
    return split if along_another_dim else None


def leads_to_a_join(node: Node) -> bool:
    """Whether a node is a join with a `split_of`, that split, or one of its pieces."""
    if facts.name(node) in _SPLITS:
        return any(map(leads_to_a_join, node.users))
    if facts.name(node) == "getitem":
        split = _as_split(node.args[0])
        return split is not None and any(split_of(user) is split for user in node.users)
    return split_of(node) is not None


def _as_split(value: Any) -> Node | None:
    return value if isinstance(value, Node) and facts.name(value) in _SPLITS else None


def _source_of(pieces: Any) -> Node | None:
    """The split that all these nodes are pieces of."""
    items = [n for n in pieces if isinstance(n, Node) and facts.name(n) == "getitem"]
    splits = {n.args[0] for n in items}
    if len(items) != len(pieces) or len(splits) != 1:
        return None
    return _as_split(splits.pop())
