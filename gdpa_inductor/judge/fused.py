"""Read a logged call of gdpa::attention: its operands, and which elements belong to a score."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..program.expr import Expr, aux, call, compute_dtype
from ..program.score_mod import ScoreMod
from . import jagged
from .elements import Evaluator
from .pointwise import Index
from .record import Event, Ref
from .samples import Lanes


class Fused:
    """One result of the call: the output, or the row sums of a term.

    sums: The result is the row sums. program: Its weight is the term that this result sums.
    batch, heads, rows, keys, width: B, H, M, N, D.
    jagged: Whether a side is. total: All rows of a jagged side. pages: The page table.
    """

    def __init__(self, event: Event, index: Index) -> None:
        """index: That at which the result is read."""
        self.event, arguments = event, event.arguments
        operands: list[Ref] = [arguments[name] for name in ("query", "key", "value")]
        for operand in operands:
            operand.require_known()
        self.query, self.key, self.value = operands
        self.scalars: list[Any] = list(arguments["scalars"] or [])
        program = ScoreMod.parse(arguments["score_mod"])
        self.cu_query: Ref | None = arguments["cu_seqlens_q"]
        self.cu_key: Ref | None = arguments["cu_seqlens_k"]
        self.sums = len(index) < len(self.query.sizes)
        self.program = ScoreMod(program.roots[self.sums], program.aux)
        self.rows = self.query.sizes[2] if self.cu_query is None else int(arguments["max_seqlen_q"])
        self.keys = self.key.sizes[2] if self.cu_key is None else int(arguments["max_seqlen_k"])
        self.pages: Ref | None = arguments["page_table"]
        dense = operands
        if self.pages is not None:
            self.keys *= self.pages.sizes[1]
            dense = [self.query, self.pages]
        self.heads, self.width = self.query.sizes[1], self.query.sizes[-1]
        sides = ((self.query, self.cu_query), (self.key, self.cu_key))
        jagged = [(place.sizes[0], cu) for place, cu in sides if cu is not None]
        self.jagged = bool(jagged)
        self.total = min((rows for rows, _ in jagged), default=1)
        self.batch = max(operand.sizes[0] for operand in dense)
        if jagged:
            self.batch = jagged[0][1].sizes[0] - 1
        extents = {"b": self.batch, "h": self.heads, "q_idx": self.rows, "kv_idx": self.keys}
        extents |= {"q": self.query.sizes[0], "k": self.key.sizes[0]}
        self.aux: list[Ref] = [
            place.fitted([extents.get(entry, 1) for entry in spec.access])
            for place, spec in zip(arguments["aux"] or [], self.program.aux, strict=True)
        ]

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
        return _shared(self.query, at["b"]), at["h"], at["q_idx"], channel

    def key_at(self, at: dict[str, Tensor], channel: Tensor, which: str = "key") -> Index:
        """The index into the key, or into the value, of the key of a score."""
        place = self.key if which == "key" else self.value
        head = at["h"] // (self.heads // place.sizes[1])
        if self.cu_key is not None:
            return at["k"], head, channel
        if self.pages is not None:
            return at["page"], head, at["kv_idx"] % self.key.sizes[2], channel
        return _shared(place, at["b"]), head, at["kv_idx"], channel

    def page_of(self, ev: Evaluator, at: dict[str, Tensor]) -> Tensor:
        """The page that holds the key of a score."""
        assert self.pages is not None
        place = _shared(self.pages, at["b"]), at["kv_idx"] // self.key.sizes[2]
        return ev.element(self.pages, self.event.number, place).long()

    def aux_at(self, number: int, at: dict[str, Tensor]) -> Index:
        """The index into an operand of the program, by its access map. at: "t" in it is the place
        in a table.
        """
        zero = torch.zeros_like(at["kv_idx"])
        access, sizes = self.program.aux[number].access, self.aux[number].sizes
        return tuple(
            zero if entry == "-" or n == 1 else at[entry] for entry, n in zip(access, sizes)
        )

    def element(self, ev: Evaluator, number: int, at: dict[str, Tensor]) -> Tensor:
        """The elements of an operand that the scores read."""
        operand = ev.element(self.aux[number], self.event.number, self.aux_at(number, at))
        # Real numbers are loaded in the dtype that the kernel computes in.
        return operand.to(self.compute_dtype) if operand.is_floating_point() else operand

    def looked_up(self, ev: Evaluator, number: int, at: dict[str, Tensor], place: Tensor) -> Tensor:
        """The elements of a table at a place; NaN outside of it."""
        size = self.places[number]
        there = {**at, "t": place.clamp(0, size - 1)}
        inside = (place >= 0) & (place < size)
        return torch.where(inside, self.element(ev, number, there), torch.nan)

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype that kernels compute a score program in."""
        return compute_dtype(self.query.dtype)

    @property
    def places(self) -> dict[int, int]:
        """How many places each table has, by the number of the operand."""
        tables = ((n, spec.access) for n, spec in enumerate(self.program.aux) if spec.is_table)
        return {n: self.aux[n].sizes[access.index("t")] for n, access in tables}

    @property
    def reads(self) -> dict[int, Expr]:
        """The term that reads each operand: that of a table looks it up."""
        places = self.program.places
        leaves = [aux(number, spec.leaf_kind) for number, spec in enumerate(self.program.aux)]
        return {
            x.value: call("lookup", x, places[x.value]) if x.value in places else x
            for x in leaves
            if x.kind != "t" or x.value in places
        }


def _shared(place: Ref, batch: Tensor) -> Tensor:
    return torch.zeros_like(batch) if place.sizes[0] == 1 else batch
