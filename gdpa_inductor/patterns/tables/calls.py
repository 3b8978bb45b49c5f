"""Read look-ups in learned tables, however they are written, in one form: `Places`.

`LOOKUPS` has a function for each kind of call. It says which indices the call reads, and whether it
does nothing but look up along one dim. All other arguments (whole dims, slices, numbers) do not
matter: the same call on a table of places tells which elements it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ..._compat import operators
from ...rejection import Code
from ..host import facts
from ..host.sizes import Size
from ..result import Refused

_CHOICES = (torch.bool, torch.uint8)  # such an index reads no element twice, so nothing is summed


@dataclass(frozen=True)
class Places:
    """Which elements of a table a call reads.

    indices: Its indices.
    dim:     If all that the call does is to read the elements at one index along one dim: this dim.
             Else None.
    flat:    The dim is that of the flattened table.
    pads:    The place of the row without a gradient, or None.
    """

    indices: tuple[Node, ...]
    dim: int | None = None
    flat: bool = False
    pads: Size | None = None


def of(node: Node, table: Node) -> Places | None:
    """The places that a call reads, or None if it is not a look-up.

    Raises Refused if `gdpa::look_up` would not have the gradient of the table.
    """
    found = LOOKUPS[facts.name(node)](node, facts.tensors(table)[0])
    if found is None or not all(
        _counts(index) and facts.is_plain(index) for index in found.indices
    ):
        return None
    return found


def _counts(index: Any) -> bool:
    """True if the elements of an index are places. Bools would choose elements instead."""
    return isinstance(index, Node) and any(
        t.dtype in (torch.int32, torch.int64) for t in facts.tensors(index)
    )


def refused(reason: str, node: Node) -> Refused:
    return Refused(Code.TABLE_GRADIENT, reason, node)


def _subscripted(node: Node, table: torch.Tensor) -> Places | None:
    """`table[i]`, `table[:, i, None, 2]`, `table[..., i, j]`.

    In ATen's index, None is a whole dim.
    """
    whole = facts.name(node) == "index"
    given: Any = node.args[1]
    entries = list(given) if whole or isinstance(given, tuple) else [given]
    widths = [_width(entry, whole) for entry in entries]
    indices = [
        i for i, entry in enumerate(entries) if isinstance(entry, Node) and facts.tensors(entry)
    ]
    if not indices or None in widths:
        return None
    read = tuple(entries[i] for i in indices)
    others = [entry for entry in entries if entry not in read]
    if len(read) > 1 or not all(_is_whole(entry, whole) for entry in others):
        return Places(read)
    rest = table.dim() - sum(w for w in widths if w and w > 0)
    return Places(read, _taken(widths[: indices[0]], rest))


_REST = -1  # the width of an ellipsis


def _width(entry: Any, whole: bool) -> int | None:
    """How many dims of the table an entry of a subscript reads, or None for an entry of bools."""
    if entry is None:
        return int(whole)
    if entry is Ellipsis:
        return _REST
    if isinstance(entry, Node):
        return None if any(t.dtype in _CHOICES for t in facts.tensors(entry)) else 1
    return 1 if isinstance(entry, (slice, int)) and not isinstance(entry, bool) else None


def _is_whole(entry: Any, none: bool) -> bool:
    """True if an entry of a subscript keeps a dim as it is. none: `None` does."""
    return entry is Ellipsis or entry == slice(None) or (none and entry is None)


def _taken(widths: Sequence[int | None], rest: int) -> int:
    return sum(rest if width == _REST else width or 0 for width in widths)


def _selected(node: Node, table: torch.Tensor) -> Places | None:
    dim = facts.argument(node, 1, "dim")
    index = facts.argument(node, 2, "index")
    return Places((index,), dim % table.dim()) if table.dim() else None


def _gathered(node: Node, table: torch.Tensor) -> Places | None:
    if facts.argument(node, 3, "sparse_grad"):
        raise refused("its gradient is sparse", node)
    index = facts.argument(node, 2, "index")
    return Places((index,), 0 if table.dim() == 1 else None) if table.dim() else None


def _taken_flat(node: Node, table: torch.Tensor) -> Places:
    return Places((facts.argument(node, 1, "index"),), 0, flat=True)


def _taken_along(node: Node, table: torch.Tensor) -> Places | None:
    return Places((facts.argument(node, 1, "indices"),)) if table.dim() else None


def _embedded(node: Node, table: torch.Tensor) -> Places:
    """`F.embedding`, or ATen's, which has the table first and no negative padding index."""
    first = _is_table_first(node)
    pads = facts.argument(node, 2, "padding_idx")
    if not isinstance(node.target, operators.OpOverload) and not first:
        if facts.argument(node, 3, "max_norm") is not None:
            raise refused("`max_norm` changes the rows that are looked up", node)
        pads = pads + table.shape[0] if pads is not None and pads < 0 else pads
    if facts.argument(node, 3 if first else 5, "scale_grad_by_freq"):
        raise refused("`scale_grad_by_freq` divides by how often a row is looked up", node)
    if facts.argument(node, 4 if first else 6, "sparse"):
        raise refused("its gradient is sparse", node)
    index = facts.argument(node, *((1, "indices") if first else (0, "input")))
    return Places((index,), 0, pads=None if pads is None or pads < 0 else pads)


def _is_table_first(node: Node) -> bool:
    given = node.args[0] if node.args else None
    return isinstance(given, Node) and facts.tensors(given)[0].is_floating_point()


# The reader of each call, by its short name.
LOOKUPS: Mapping[str, Callable[[Node, torch.Tensor], Places | None]] = {
    "getitem": _subscripted,
    "index": _subscripted,
    "index_select": _selected,
    "gather": _gathered,
    "embedding": _embedded,
    "take": _taken_flat,
    "take_along_dim": _taken_along,
}
