"""`Problem`: the description of a region that `patterns` passes to `lowerings`.

It has shapes, dtypes and the score program, but no tensors and no graph nodes. So it can be judged,
printed and compared. Sizes may be symbolic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ._compat.shapes import size_hint, statically_known_true
from .operands import JaggedRows, Operands, Size, places_of, score_shape
from .program.expr import AXES, POSITIONS, postorder
from .program.score_mod import ScoreMod


@dataclass(frozen=True)
class Problem:
    """The shapes of its operands:

    query  [batch, heads, rows, head_dim], or jagged [total_rows, heads, head_dim]
    key    [·, key_heads, cols, head_dim], or jagged [total_cols, key_heads, head_dim]
    value  [·, value_heads, cols, value_dim], or jagged [total_cols, value_heads, value_dim]

    Keys and values in pages have `page` rows in place of the cols.

    The rows (or cols) of a jagged side are its max_seqlen.
    """

    program: ScoreMod
    device: torch.device
    dtype: torch.dtype  # of query and key
    value_dtype: torch.dtype  # of value and of the output
    aux_dtypes: tuple[torch.dtype, ...]
    batch: Size
    heads: Size
    key_heads: Size
    value_heads: Size
    rows: Size
    cols: Size
    head_dim: Size
    value_dim: Size
    training: bool  # gradients may be wanted
    jagged_query: bool = False
    jagged_key: bool = False
    total_rows: Size = 0
    total_cols: Size = 0
    page: Size | None = None  # the rows of a page, if keys lie in pages
    # Which gradients a backward computes: of query, key, value and each aux operand. Empty in a
    # forward, and before the backward is known.
    needs: tuple[bool, ...] = ()
    places: tuple[Size, ...] = ()  # of each aux operand: the places of a table, 1 of others
    # Elements of biases whose gradients stock Inductor adds to small learned tables, in turn.
    crowded: int = 0

    @property
    def jagged(self) -> bool:
        return self.jagged_query or self.jagged_key

    @property
    def sizes(self) -> dict[str, Size]:
        """The sizes of the scores, by axis."""
        return dict(zip(AXES, (self.batch, self.heads, self.rows, self.cols), strict=True))

    @property
    def sides(self) -> dict[str, JaggedRows]:
        """The jagged sides, as `Operands.sides`, without offsets."""
        query = {"q": JaggedRows(None, self.total_rows, self.rows)} if self.jagged_query else {}
        key = {"k": JaggedRows(None, self.total_cols, self.cols)} if self.jagged_key else {}
        return query | key

    @property
    def unbounded(self) -> bool:
        """A jagged side has no bound but its total rows. Padding to that is out of the question."""
        return any(statically_known_true(x.longest == x.total) for x in self.sides.values())

    @property
    def score_bytes(self) -> int | None:
        """Of all scores in the unfused form, with padding. Symbolic sizes count by hints."""
        return _bytes(list(self.sizes.values()), self.dtype)

    def aux_bytes(self, number: int) -> int | None:
        """The bytes of an aux operand. Symbolic sizes count by hints."""
        sizes = self.sizes | {"q": self.total_rows, "k": self.total_cols, "-": 1}
        entries, places = self.program.aux[number].access, self.places
        extents = [places[number] if entry == "t" else sizes[entry] for entry in entries]
        return _bytes(extents, self.aux_dtypes[number])

    def stored_aux(self) -> list[int]:
        """The aux operands with an element for each query and key: biases, masks."""
        return [i for i, spec in enumerate(self.program.aux) if spec.axes >= POSITIONS]

    def stored_biases(self) -> list[int]:
        """Those of them that are no place in a table."""
        places = {x.value for x in postorder(self.program.places.values()) if x.op == "aux"}
        return [number for number in self.stored_aux() if number not in places]

    @staticmethod
    def of(operands: Operands[Tensor], training: bool, needs: tuple[bool, ...] = ()) -> Problem:
        """From (fake) operands in the op's layout."""
        query, key, value = operands.query, operands.key, operands.value
        batch, heads, rows, cols = score_shape(operands)
        totals = {letter: side.total for letter, side in operands.sides.items()}
        return Problem(
            program=operands.program,
            device=query.device,
            dtype=query.dtype,
            value_dtype=value.dtype,
            aux_dtypes=tuple(t.dtype for t in operands.aux),
            batch=batch,
            heads=heads,
            key_heads=key.shape[1],
            value_heads=value.shape[1],
            rows=rows,
            cols=cols,
            head_dim=query.shape[-1],
            value_dim=value.shape[-1],
            training=training,
            jagged_query="q" in totals,
            jagged_key="k" in totals,
            total_rows=totals.get("q", 0),
            total_cols=totals.get("k", 0),
            page=None if operands.page_table is None else key.shape[2],
            needs=needs,
            places=tuple(map(places_of, operands.aux, operands.program.aux)),
        )


def _bytes(sizes: Sequence[Size], dtype: torch.dtype) -> int | None:
    hints = [size_hint(size) for size in sizes]
    known = [hint for hint in hints if hint is not None]
    return math.prod(known) * dtype.itemsize if known == hints else None
