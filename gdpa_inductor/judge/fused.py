"""Read a logged call of gdpa::attention: its operands, and which elements belong to a score."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..program.score_mod import ScoreMod
from . import jagged
from .elements import Evaluator
from .pointwise import Index
from .record import Event, Ref
from .samples import Lanes


class Fused:
    """The call. batch, heads, rows, keys, width: B, H, M, N, D. total: All rows of a jagged
    side.
    """

    def __init__(self, event: Event) -> None:
        arguments = event.arguments
        self.event = event
        self.query: Ref = arguments["query"]
        self.key: Ref = arguments["key"]
        self.value: Ref = arguments["value"]
        for operand in (self.query, self.key, self.value):
            operand.require_known()
        self.scalars: list[Any] = list(arguments["scalars"] or [])
        self.program = ScoreMod.parse(arguments["score_mod"])
        self.cu_query: Ref | None = arguments["cu_seqlens_q"]
        self.cu_key: Ref | None = arguments["cu_seqlens_k"]
        self.rows = self.query.sizes[2] if self.cu_query is None else int(arguments["max_seqlen_q"])
        self.keys = self.key.sizes[2] if self.cu_key is None else int(arguments["max_seqlen_k"])
        self.heads, self.width = self.query.sizes[1], self.query.sizes[-1]
        jagged = [(self.query, self.cu_query), (self.key, self.cu_key)]
        self.total = min((p.sizes[0] for p, cu in jagged if cu is not None), default=1)
        self.aux: list[Ref] = [
            place.fitted([self._extents.get(entry, 1) for entry in spec.access])
            for place, spec in zip(arguments["aux"] or [], self.program.aux, strict=True)
        ]

    @property
    def jagged(self) -> bool:
        return self.cu_query is not None or self.cu_key is not None

    @property
    def _extents(self) -> dict[str, int]:
        """The sizes that entries of an access map stand for."""
        named = {"b": self.batch, "h": self.heads, "q_idx": self.rows, "kv_idx": self.keys}
        return {**named, "q": self.query.sizes[0], "k": self.key.sizes[0]}

    @property
    def batch(self) -> int:
        for offsets in (self.cu_query, self.cu_key):
            if offsets is not None:
                return offsets.sizes[0] - 1
        return max(r.sizes[0] for r in (self.query, self.key, self.value))

    def span(self, ev: Evaluator, offsets: Ref) -> tuple[Tensor, Tensor]:
        """Where the sequence of each lane begins, and how long it is."""
        assert ev.lanes.sequence is not None
        start, length = jagged.span(ev, offsets, self.event.number, ev.lanes.sequence)
        ev.require(length >= 0)
        return start, length

    def coordinates(self, lanes: Lanes, index: Index, row: Tensor) -> dict[str, Tensor]:
        """b, h, q_idx of the scores that an element of the output sums, and its channel e."""
        if self.cu_query is not None:
            assert lanes.sequence is not None
            return {"b": lanes.sequence, "h": index[1], "q_idx": row, "q": index[0], "e": index[2]}
        return dict(zip(("b", "h", "q_idx", "e"), index))

    def query_at(self, at: dict[str, Tensor], channel: Tensor) -> Index:
        if self.cu_query is not None:
            return at["q"], at["h"], channel
        return self._shared(self.query, at["b"]), at["h"], at["q_idx"], channel

    def key_at(self, at: dict[str, Tensor], channel: Tensor, which: str = "key") -> Index:
        """The index into the key, or into the value, of the key of a score."""
        place = self.key if which == "key" else self.value
        if self.cu_key is not None:
            return at["k"], self._head(place, 1, at["h"]), channel
        return self._shared(place, at["b"]), self._head(place, 1, at["h"]), at["kv_idx"], channel

    def aux_at(self, number: int, at: dict[str, Tensor]) -> Index:
        """The index into an operand of the program, by its access map."""
        zero = torch.zeros_like(at["kv_idx"])
        access, sizes = self.program.aux[number].access, self.aux[number].sizes
        return tuple(
            zero if entry == "-" or n == 1 else at[entry] for entry, n in zip(access, sizes)
        )

    def _head(self, place: Ref, dim: int, head: Tensor) -> Tensor:
        return head // (self.heads // place.sizes[dim])

    def _shared(self, place: Ref, batch: Tensor) -> Tensor:
        return torch.zeros_like(batch) if place.sizes[0] == 1 else batch
