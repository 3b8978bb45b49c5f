"""Keys and values that the operator reads in pages: `paging_of` a layout.

K and V are copies of pages, whose keys are (page of the sequence, row of the page) in this order.
One table says for both which page of the pools that is. Then the operator gets pools and table, and
nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch.fx import Node

from ..host.pages import kept
from ..host.sizes import same
from .frame import Digits, Index, atoms
from .layout import Layout, shared_dims
from .reading import Operand


@dataclass(frozen=True)
class Paging:
    """The operands of a call in pages, each with the dims that the operator wants."""

    key: tuple[Operand, Index]
    value: tuple[Operand, Index]
    table: tuple[Operand, Index]


def paging_of(layout: Layout, one: Callable[[Node, Node], bool]) -> Paging | None:
    """The pages of the keys, or None if there are none.

    one: Whether two tables are equal. Raises Refused with a gather whose copy has to stay.
    """
    query, key, value = layout.query, layout.key, layout.value
    if query.pages is not None:
        raise kept(query.leaf, "queries are read in order")
    if key.pages is None and value.pages is None:
        return None
    if key.pages is None or value.pages is None:
        copy = key.leaf if value.pages is None else value.leaf
        raise kept(copy, "the other one of K and V is no such copy")
    table, other = key.pages.table, value.pages.table
    alike = (table.index, table.wraps) == (other.index, other.wraps)
    if not alike or not one(table.leaf, other.leaf):
        raise kept(key.leaf, "K and V have different tables")
    assert table.places is not None and other.places is not None
    if not same(table.places, other.places):
        raise kept(key.leaf, "K and V are not known to have as many pages")
    listed = tuple(atom for atom in layout.keys if atom in atoms(table.index))
    rows = layout.keys[len(listed) :]
    batch = layout.batch if atoms(table.index) & set(layout.batch) else ()
    if (*listed, *rows) != layout.keys or atoms(table.index) != {*batch, *listed}:
        raise kept(key.leaf, "the table does not list the pages of a sequence in their order")
    return Paging(
        _in_pool(layout, key, layout.inner, rows),
        _in_pool(layout, value, layout.channels, rows),
        (table, (batch, listed)),
    )


def _in_pool(layout: Layout, operand: Operand, last: Digits, rows: Digits) -> tuple[Operand, Index]:
    assert operand.pages is not None
    pool, number = operand.pages.pool, operand.pages.number
    _, heads, _, last = shared_dims(layout, operand, last)
    if {a for a in atoms(pool.index) if not a.is_fixed} != {*number, *heads, *rows, *last}:
        raise kept(operand.leaf, "the pools have other dims than heads, rows and channels")
    return pool, (number, heads, rows, last)
