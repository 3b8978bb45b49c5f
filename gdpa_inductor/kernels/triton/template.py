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

PART = 1024  # the keys of a CTA of "weights"
DIAGONAL = 64  # the rows of a sum along diagonals, a multiple of the rows of its tiles
_SOURCES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class AuxRead:
    """An aux operand as a kernel reads it.

    along: The axes along which the place of a table varies, or what is drawn by a seed. inside: The
    place is inside of the table.
    """

    number: int
    spec: Aux
    along: tuple[str, ...] = ()
    inside: bool = False

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
        """The axes along which what is read varies."""
        return self.spec.axes | set(self.along)

    @property
    def draws(self) -> bool:
        """Whether it is the seed of random bits, which a kernel draws."""
        return bool(self.along) and not self.spec.is_table

    @property
    def place(self) -> str:
        """Of a table that is looked up: the name of the place. Else ""."""
        return f"a{self.number}_place" if self.spec.is_table else ""

    def dim(self, *entries: str) -> int:
        """The dim of the operand that one of these entries of its access map indexes."""
        return next(d for d, entry in enumerate(self.spec.access) if entry in entries)


@dataclass(frozen=True)
class Plan:
    """What one kernel reads, computes and stores.

    In the names of terms "p" is the weight, "r" the term whose rows are summed, "ds" the derivative
    by the score, and "g<i>" that by aux operand i. A mask makes a tile empty, whole (nothing is
    masked) or mixed.
    """

    # "forward"      computes O, and row sums.
    # "rows"         computes dQ.
    # "keys"         computes dK and dV.
    # "five_matmul"  computes dQ, dK and dV. A CTA owns a (sequence, head).
    # "one_tile"     computes dQ, dK and dV, for few queries.
    # "tiles"        computes the gradient of one aux operand.
    # "weights"      computes terms of all scores.
    kernel: str
    names: tuple[str, ...]  # the terms to compute, in the order of the outputs
    reads: tuple[AuxRead, ...] = ()  # the aux operands that the terms need
    flat: frozenset[str] = frozenset()  # the terms that do not depend on the score
    shared: frozenset[str] = frozenset()  # the matrices with a batch of 1, which all batches read
    grouped: frozenset[str] = frozenset()  # the matrices with fewer heads than the query
    loops_heads: bool = False  # a CTA of "keys" loops over the query heads of its key head
    summed: frozenset[str] = frozenset()  # the axes over which "tiles" sums
    of_share: bool = False  # "tiles" computes a share, from the (batch, head) in FIRST on
    diagonal: bool = False  # "tiles" also sums along diagonals, to one sum for each DIAGONAL rows
    jagged: frozenset[str] = frozenset()  # the sides ("q", "k") whose lengths are read from offsets
    alike: bool = False  # both sides have the same offsets
    paged: bool = False  # keys and values lie in pages, which the table PAGES lists
    # Each sequence has as many CTAs as the longest one, so there is no table ORDER.
    direct: bool = False
    skips: bool = False  # empty tiles are skipped, and whole tiles are computed without the mask
    whole_reads: tuple[AuxRead, ...] = ()  # as `reads`, for whole tiles
    whole_flat: frozenset[str] = frozenset()  # as `flat`, for whole tiles
    keeps: bool = False  # on a mixed tile a term is that of a whole tile where `keep` holds, else 0
    adds: bool = False  # "keys" also adds dQ, tile by tile, to the fp32 buffer DQ
    # The ends of the inner loop (`loop_bounds`). None: The kernel classifies its tiles.
    bounds: tuple[str, ...] | None = None
    tables: tuple[AuxRead, ...] = ()  # the aux operands with tables of tile bounds (`tile_bounds`)
    # The terms that need no mask past the end of a sequence (`program/tails.py`).
    still: frozenset[str] = frozenset()
    # A CTA of "forward" has one of SPLITS shares of the keys, and stores partial sums.
    split: bool = False
    # The batches of a tile are neighbours, as they read the same operand elements.
    batch_first: bool = False

    @property
    def terms(self) -> Mapping[str, int]:
        """The number of the subgraph that computes each term."""
        return {name: number for number, name in enumerate(self.names)}

    @property
    def subgraphs(self) -> Mapping[str, int]:
        """The number of every subgraph, by the name of what it computes."""
        classes = ("zero", "full") if self.bounds is None else self.bounds
        skipping = (*classes, *(f"whole_{name}" for name in self.names), *["keep"] * self.keeps)
        places = [a.place for a in self.reads if a.place]
        known = (*self.names, *self.longest, *places, *(skipping if self.skips else ()))
        return {name: number for number, name in enumerate(known)}

    @property
    def draws(self) -> bool:
        return any(a.draws for a in self.reads)

    @property
    def branches(self) -> bool:
        """Whether one inner loop serves all tiles, with a branch for tiles that are not whole."""
        # It must not load anything in the branch, since a branch waits for its loads. Nor does
        # Triton 3.6 compile a product that only a branch reads.
        axis = loop_axis(self.kernel)
        alike = all(a in self.whole_reads for a in self.reads if axis in a.axes)
        return alike and not self.whole_flat

    def together(self, axis: str) -> bool:
        """Whether one inner loop serves whole tiles and the tail, with masked loads."""
        jagged = any(JAGGED[side] == axis for side in self.jagged)
        return jagged or self.still >= set(self.names)

    @property
    def operands(self) -> tuple[str, ...]:
        return ("Q", "K", "V") if self.kernel == "forward" else ("Q", "K", "V", "DO")

    @property
    def outputs(self) -> tuple[str, ...]:
        """The first is the output of the template, the others are buffers that it gets."""
        return tuple(f"OUT{i}" for i in range(len(self.names)))

    @property
    def listed(self) -> str:
        """The side whose tiles the CTAs own, if it is jagged; else ""."""
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
        """The names of the greatest lengths of these sides. Their subgraphs follow the terms."""
        return tuple({"q": "max_m", "k": "max_n"}[side] for side in self.measured)

    @property
    def arguments(self) -> tuple[str, ...]:
        offsets = [f"CU_{side.upper()}" for side in self.measured]
        order = ["ORDER"] * self.ordered + ["FIRST"] * self.of_share
        reads = [*(a.name for a in self.reads), *(a.table for a in self.tables)]
        sums = ["SUMS"] if self.kernel == "five_matmul" else []
        sums += ["DQ"] if self.adds or self.kernel in ("five_matmul", "one_tile") else []
        pages = ["PAGES"] * self.paged
        return (*self.operands, *offsets, *pages, *order, *reads, *self.outputs[1:], *sums)

    @property
    def fixed(self) -> Mapping[str, str]:
        """From the names of the inputs of a term to the kernel's variables."""
        leaves = ["s", "b", "h", "q_idx", "kv_idx", *(f"a{a.number}" for a in self.reads)]
        bounds = ["q_idx_lo", "q_idx_hi", "kv_idx_lo", "kv_idx_hi"] if self.skips else []
        bounds += [f"a{a.number}_{end}" for a in self.tables for end in ("lo", "hi")]
        return {**{leaf: leaf for leaf in (*leaves, *bounds)}, "g": "dp"}

    @property
    def name(self) -> str:
        """The name of the kernel. In every process it is the same, for autotuning results."""
        fields = (getattr(self, field.name) for field in dataclasses.fields(self))
        text = repr([sorted(x) if isinstance(x, frozenset) else x for x in fields])
        return f"gdpa_{self.kernel}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    @property
    def source(self) -> str:
        return source("tile") + source(self.kernel)


def loop_axis(kernel: str) -> str:
    """The axis of a kernel's inner loop."""
    return "q_idx" if kernel == "keys" else "kv_idx"


@functools.cache
def source(name: str) -> str:
    return (_SOURCES / f"{name}.py.jinja").read_text("utf-8")
