"""Recognise heads that a model folds into the batch by hand: `torch.cat(x.split(d, 2), 0)`.

Set Transformer does so. The model copies x [B, N, H·d]. The kernels read x in place, as a view
[H, B, N, d].
"""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from . import facts
from .sizes import same_shape

_SPLITS = frozenset(["split", "split_with_sizes", "chunk"])
JOINS = frozenset(["cat", "concat", "concatenate"])


def split_of(join: Node) -> Node | None:
    """The split whose pieces a `cat` joins along another dim; None for other nodes.

    All pieces have to be joined, in their order, and have the same size.
    """
    if facts.name(join) not in JOINS:
        return None
    inputs = facts.argument(join, 0, "tensors")
    if isinstance(inputs, (list, tuple)):
        splits = {n.args[0] if _is_item(n) else None for n in inputs}
        numbers = [n.args[1] for n in inputs if _is_item(n)]
    else:
        splits, numbers = {inputs}, []
    split = _as_split(splits.pop()) if len(splits) == 1 else None
    if split is None:
        return None
    pieces = facts.tensors(split)
    alike = all(same_shape(piece.shape, pieces[0].shape) for piece in pieces)
    if not alike or len(pieces) < 2 or numbers not in ([], [*range(len(pieces))]):
        return None
    (source,), (output,) = facts.tensors(split.all_input_nodes[0]), facts.tensors(join)
    return None if same_shape(output.shape, source.shape) else split


def leads_to_a_join(node: Node) -> bool:
    """Whether a node is a join with a `split_of`, that split, or one of its pieces."""
    if facts.name(node) in _SPLITS:
        return any(map(leads_to_a_join, node.users))
    if _is_item(node):
        split = _as_split(node.args[0])
        return split is not None and any(split_of(user) is split for user in node.users)
    return split_of(node) is not None


def _as_split(value: Any) -> Node | None:
    return value if isinstance(value, Node) and facts.name(value) in _SPLITS else None


def _is_item(value: Any) -> bool:
    return isinstance(value, Node) and facts.name(value) == "getitem"
