"""Plans and sources of the Triton kernels.

A `Plan` says what one kernel reads, computes and stores; the jinja sources read it as `plan`.
Nothing in it depends on tile shapes or sizes, so one template serves every configuration and
length.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...program.score_mod import JAGGED, Aux

_SOURCES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class AuxRead:
    """An operand between the products as a kernel reads it."""

    number: int
    spec: Aux

    @property
    def name(self) -> str:
        return f"A{self.number}"

    @property
    def table(self) -> str:
        return f"T{self.number}"

    @property
    def kind(self) -> str:
        return self.spec.kind

    @property
    def access(self) -> tuple[str, ...]:
        return self.spec.access

    @property
    def axes(self) -> frozenset[str]:
        return self.spec.axes

    def dim(self, *entries: str) -> int:
        """The dimension that one of these entries reads."""
        return next(d for d, entry in enumerate(self.spec.access) if entry in entries)


@dataclass(frozen=True)
class Plan:
    """What one kernel reads, computes and stores.

    kernel       which one:
                   "forward"      O
                   "rows"         dQ
                   "keys"         dK and dV
                   "five_matmul"  dQ, dK and dV; one CTA owns a (sequence, head)
                   "one_tile"     dQ, dK and dV of few rows
                   "tiles"        the gradient of an operand between the products

    Terms, in the order of the outputs: "p" is the weight, "ds" its derivative with respect to the
    score, "g<i>" that with respect to operand i.
    names        those to compute
    flat         those that do not depend on the score
    still        those that may be summed past the ends of the operands, which are zeros there
    summed       the axes that "tiles" sums over

    Operands
    reads        those between the products that the terms need
    shared       those of batch 1, which all batches read
    grouped      those with fewer heads than the query

    Jagged sides
    jagged       "q", "k": the sides whose lengths are read from offsets
    alike        one set of offsets serves both
    direct       each sequence has as many CTAs as the longest has; no table says whose a CTA is

    Tiles that the program's masks tell apart: zero ones, whole ones without the mask, mixed ones
    skips        zero tiles are left out, and whole tiles are computed without the mask
    bounds       the closed ends of the inner loop (`loop_bounds`); None: its tiles are classified
    tables       the operands whose bounds tell tiles apart (`tile_bounds`)
    whole_reads  as `reads`, for whole tiles
    whole_flat   as `flat`, for whole tiles
    keeps        a mixed tile's term is that of a whole tile where `keep` holds, else 0

    CTAs
    loops_heads  one CTA of "keys" runs over the query heads of its key head
    adds         "keys" also adds dQ, tile by tile, to the fp32 buffer DQ
    split        a CTA of "forward" has one of SPLITS shares of the keys, and stores a partial sum
    batch_first  the batches of a tile are neighbours, since they read the same elements of operands
    """

    kernel: str
    names: tuple[str, ...]
    reads: tuple[AuxRead, ...] = ()
    flat: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    grouped: frozenset[str] = frozenset()
    loops_heads: bool = False
    summed: frozenset[str] = frozenset()
    jagged: frozenset[str] = frozenset()
    alike: bool = False
    direct: bool = False
    skips: bool = False
    whole_reads: tuple[AuxRead, ...] = ()
    whole_flat: frozenset[str] = frozenset()
    keeps: bool = False
    adds: bool = False
    bounds: tuple[str, ...] | None = None
    tables: tuple[AuxRead, ...] = ()
    still: frozenset[str] = frozenset()
    split: bool = False
    batch_first: bool = False

    @property
    def terms(self) -> Mapping[str, int]:
        """Which of the subgraphs computes each term."""
        return {name: number for number, name in enumerate(self.names)}

    @property
    def subgraphs(self) -> Mapping[str, int]:
        """The number of every subgraph by what it computes."""
        classes = ("zero", "full") if self.bounds is None else self.bounds
        skipping = (*classes, *(f"whole_{name}" for name in self.names), *["keep"] * self.keeps)
        known = (*self.names, *self.longest, *(skipping if self.skips else ()))
        return {name: number for number, name in enumerate(known)}

    @property
    def branches(self) -> bool:
        """One inner loop serves all tiles, with a branch for those that are not whole.

        Nothing may be loaded for these alone, since a branch waits for its loads. And Triton 3.6
        does not compile a product that only a branch reads.
        """
        axis = loop_axis(self.kernel)
        alike = all(a in self.whole_reads for a in self.reads if axis in a.axes)
        return alike and not self.whole_flat

    def together(self, axis: str) -> bool:
        """One inner loop along `axis` serves whole tiles and the tail: all loads are masked."""
        jagged = any(JAGGED[side] == axis for side in self.jagged)
        return jagged or self.still >= set(self.names)

    @property
    def operands(self) -> tuple[str, ...]:
        return ("Q", "K", "V") if self.kernel == "forward" else ("Q", "K", "V", "DO")

    @property
    def outputs(self) -> tuple[str, ...]:
        """The first is the template's own output, the others are buffers that it is given."""
        return tuple(f"OUT{i}" for i in range(len(self.names)))

    @property
    def listed(self) -> str:
        """The jagged side whose tiles the CTAs own, "" where that side is dense."""
        side = {"forward": "q", "rows": "q", "keys": "k"}.get(self.kernel, "")
        return side if side in self.jagged else ""

    @property
    def ordered(self) -> bool:
        """Whether a table ORDER says which tiles, or which sequences, a CTA owns."""
        return bool(
            (self.listed and not self.direct) or (self.kernel == "five_matmul" and self.jagged)
        )

    @property
    def measured(self) -> tuple[str, ...]:
        """The jagged sides with offsets of their own."""
        return tuple(side for side in "qk" if side in self.jagged)[: 1 if self.alike else 2]

    @property
    def longest(self) -> tuple[str, ...]:
        """The greatest lengths of these sides: subgraphs that follow the terms."""
        return tuple({"q": "max_m", "k": "max_n"}[side] for side in self.measured)

    @property
    def arguments(self) -> tuple[str, ...]:
        offsets = [f"CU_{side.upper()}" for side in self.measured]
        order = ["ORDER"] if self.ordered else []
        reads = [*(a.name for a in self.reads), *(a.table for a in self.tables)]
        sums = ["SUMS"] if self.kernel == "five_matmul" else []
        sums += ["DQ"] if self.adds or self.kernel in ("five_matmul", "one_tile") else []
        return (*self.operands, *offsets, *order, *reads, *self.outputs[1:], *sums)

    @property
    def fixed(self) -> Mapping[str, str]:
        """What a term calls its inputs, and the variable of the kernel that holds each."""
        leaves = ["s", "b", "h", "q_idx", "kv_idx", *(f"a{a.number}" for a in self.reads)]
        bounds = ["q_idx_lo", "q_idx_hi", "kv_idx_lo", "kv_idx_hi"] if self.skips else []
        bounds += [f"a{a.number}_{end}" for a in self.tables for end in ("lo", "hi")]
        return {**{leaf: leaf for leaf in (*leaves, *bounds)}, "g": "dp"}

    @property
    def name(self) -> str:
        """The same in every process, so that what was measured for it is found again."""
        fields = (getattr(self, field.name) for field in dataclasses.fields(self))
        text = repr([sorted(x) if isinstance(x, frozenset) else x for x in fields])
        return f"gdpa_{self.kernel}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    @property
    def source(self) -> str:
        return source("tile") + source(self.kernel)


def loop_axis(kernel: str) -> str:
    """What the inner loop of a kernel runs along."""
    return "q_idx" if kernel == "keys" else "kv_idx"


@functools.cache
def source(name: str) -> str:
    """The text of a template file."""
    return (_SOURCES / f"{name}.py.jinja").read_text()
