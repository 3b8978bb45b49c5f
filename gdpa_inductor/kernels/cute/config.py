"""Compile-time parameters of the CuTe kernels, and which operands the kernels take.

A `KernelConfig` is the key of the cache of compiled kernels. All else is read at run time: lengths,
batch, heads and strides. Each architecture has a subclass (`sm90/config.py`, `sm100/config.py`).
cutlass is not imported here.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch

from ...program.expr import AXES, POSITIONS, Expr
from ...program.score_mod import ScoreMod
from ...program.tile_classes import TileClasses, classify, classify_by_tables

BOX = 128  # rows of a matrix that one TMA copy brings
TILES = 2  # query tiles of a CTA in the forward; a subclass may change it (`KernelConfig.tiles`)
SHARED_MEMORY = 227 << 10  # bytes for a CTA, on sm_90 and sm_100
AUX_DTYPES = (
    "float16", "bfloat16", "float32", "float64", "bool", "uint8", "int8", "int16", "int32", "int64",
)  # fmt: skip
PACKAGE = "nvidia-cutlass-dsl"
VERSIONS = ((4, 8), (4, 9))  # of the package: the first that is tested, and the first that is not
# What an access map indexes an aux operand by: the indices of a score, and rows of a jagged side.
LETTERS = (*AXES, "q", "k")
VECTOR = 8  # 16-bit numbers that a thread moves at a time; every head dim is a multiple of it
LEAST_SLICE = 128  # the fewest channels of V that a launch takes, if it does not take them all


@dataclass(frozen=True)
class StoredTiling:
    """The tiles of scores. rows, cols: Queries and keys of a tile.

    by_keys: Each key tile has a hull. Otherwise each query tile has one.
    """

    rows: int
    cols: int
    by_keys: bool

    def units(self, key_heads: int, heads: int, rows: int, cols: int) -> tuple[int, int]:
        """(how many heads have hulls, how many hulls each of them has)."""
        if self.by_keys:
            return key_heads, -(-cols // self.cols)
        return heads, -(-rows // self.rows)


class TableLayout(NamedTuple):
    """An aux operand that is a table."""

    number: int
    size: int  # how many elements the program chooses among
    stride: int  # from one to the next


@dataclass(frozen=True)
class KernelConfig:
    """All that a compiled kernel depends on.

    The subclass of an architecture sets the class variables. A call sets the fields. Aux operands
    are named by their numbers, from 0.
    """

    folder: ClassVar[str]  # the folder of its kernels
    arch: ClassVar[str]  # its name for ptxas
    gpu: ClassVar[str]  # its name for people
    rows: ClassVar[int]  # the queries of a score tile
    max_dim: ClassVar[int]  # the largest head dim that a launch of a forward takes
    max_backward_dim: ClassVar[int]  # the largest head dim that a backward takes
    rivalled: ClassVar[bool]  # Triton is faster on some problems, so the lowering compares the two
    measured: ClassVar[bool]  # the project has run the kernels on such hardware
    overwrites: ClassVar[bool]  # a backward may store the gradient of a bias in place of the bias
    # Kernels store zeros in rows of a jagged result that no sequence owns. If False, the host
    # clears these rows before the launch.
    clears: ClassVar[bool] = False
    # Kernels may omit the mask past the end of a sequence, where zeros there give the same result
    # (program/tails.py).
    bare_ends: ClassVar[bool] = False
    cuts_keys: ClassVar[bool] = False  # a launch of a backward may take some keys: see `part`
    # The forward deals tiles of equal cost so that all CTAs have work in the last round
    # (forward/work.py).
    in_rounds: ClassVar[bool] = False
    sums_rows: ClassVar[bool] = False  # kernels take programs with row sums
    paged: ClassVar[bool] = False  # the forward reads keys and values in pages
    stores_weights: ClassVar[bool] = False  # there is a kernel of P and dS (`weights`)
    pairs: ClassVar[bool] = False  # a backward may take pairs of CTAs

    dtype: str  # "bfloat16" or "float16", for query, key and value
    head_dim: int  # D, the head dim of query and key; tiles are padded with zeros
    value_dim: int  # Dv, the head dim of the value, or the width of a slice (`slice_of`)
    program: str  # the text of the score program
    aux: tuple[str, ...] = ()  # the dtype names of the aux operands
    jagged_q: bool = False  # the query is jagged; then `q_idx` counts within the sequence
    jagged_k: bool = False  # key and value are jagged; then `kv_idx` counts within the sequence
    # Which of "q", "k", "v" have a batch of 1 that all sequences read.
    # In pages "t" says that they read the same table.
    shared: frozenset[str] = frozenset()
    page: int = 0  # the rows of a page of key and value; 0 if their rows lie in order
    page_dtype: str = "int32"  # of the page table, or "int64"
    fast: bool = True  # the kernel uses approximate functions (emit.py)
    skip: bool = True  # the kernel skips tiles where the program is zero
    sums: bool = True  # the forward stores the row sums of the program, if it has any
    offsets: str = "int32"  # the dtype name of `cu_seqlens`
    # The aux operands whose keys are contiguous, at multiples of 16 bytes.
    vectors: frozenset[int] = frozenset()
    lookups: tuple[TableLayout, ...] = ()  # the aux operands that are tables
    expanded: frozenset[int] = frozenset()  # those with a stride of 0, which TMA does not read
    # In a backward: the aux operand whose gradient is stored, one number for each score.
    stored: int | None = None
    ordered: bool = True  # dQ is summed in a fixed order; only sm_90 allows False
    # "first", "middle" or "last" if each launch of a backward takes some of the keys, else "". Each
    # launch adds to the sums of dQ. The last one converts them to `dtype`.
    part: str = ""
    bounded: frozenset[int] = frozenset()  # those that may get a table of tile bounds (`classes`)
    kernel: str = "forward"  # which kernel: "forward", or one of `backward_kernels`

    def backward_kernels(
        self, ordered: bool, stored: int | None, most: tuple[int, int]
    ) -> list["KernelConfig"]:
        """The configurations of the kernels of a backward.

        ordered, stored: As the fields. most: The most queries and keys of a sequence.
        """
        raise NotImplementedError

    @property
    def weights_config(self) -> "KernelConfig | None":
        """The configuration of the kernel of P and dS, or None."""
        return None

    @property
    def matrices(self) -> list[str]:
        """The dtypes of the matrices that the kernel takes beside query, key and value."""
        return [self.dtype]

    @property
    def box(self) -> int:
        """The keys that one TMA copy brings: those of a page, or of a block if it is shorter."""
        return min(self.page, self.cols) if self.page else self.cols

    def gradient_dtypes(self, letters: str) -> list[str]:
        return ["float32" if letter in self.shared else self.dtype for letter in letters]

    @property
    def stored_dtypes(self) -> list[str]:
        scores = [] if self.stored is None else [self.dtype]
        return scores + ["int32"] * self.notes

    @property
    def continues(self) -> bool:
        """An earlier launch of a backward has begun the sums of dQ."""
        return self.part in ("middle", "last")

    @property
    def sums_are_gradients(self) -> bool:
        """The sums of dQ in fp32 are what the backward returns, so the kernel converts nothing."""
        return False

    @property
    def counters(self) -> int:
        """How many counters each query tile has, where dQ is summed in global memory."""
        return 1

    @property
    def tile_rows(self) -> int:
        return self.rows

    @property
    def tiling(self) -> StoredTiling:
        """The tiles of scores whose gradients a backward stores."""
        raise NotImplementedError

    @property
    def mod(self) -> ScoreMod:
        return ScoreMod.parse(self.program)

    @property
    def terms(self) -> tuple[Expr, ...]:
        """What the forward sums over the keys: the weight, and the term of the row sums."""
        return self.mod.roots if self.sums else (self.mod.weight,)

    @property
    def without_sums(self) -> "KernelConfig":
        """The kernel that stores no row sums."""
        return self if len(self.terms) == 1 else replace(self, sums=False)

    @property
    def jagged(self) -> bool:
        return self.jagged_q or self.jagged_k

    @property
    def batch_first(self) -> bool:
        """CTAs take all batches of a head before the next head."""
        # These batches read the same elements of an aux operand that has no batch dim. For all
        # heads together the operand may be larger than the L2 cache.
        shared = [x.axes for x in self.mod.aux if "b" not in x.axes]
        return not self.jagged and any(axes >= {"h", *POSITIONS} for axes in shared)

    @property
    def notes(self) -> bool:
        """A backward records which tiles of scores it has stored."""
        return self.jagged and self.stored is not None

    @property
    def tiled(self) -> int | None:
        """The aux operand that TMA loads tile by tile, such as a bias of shape [B, H, M, N]."""
        # It has one number for each score, in `dtype`. If there are several, this is the first.
        return next((x for x in self.in_tiles if self.aux[x] == self.dtype), None)

    @property
    def banded(self) -> frozenset[int]:
        """The tables whose places a kernel checks for each distance, not for each score."""
        return frozenset()

    @property
    def in_tiles(self) -> list[int]:
        """The aux operands that TMA can load tile by tile."""
        aux = self.mod.aux
        return [x for x in sorted(self.vectors - self.expanded) if {*aux[x].access} >= POSITIONS]

    @property
    def tiles(self) -> int:
        """The query tiles that a CTA computes at once in the forward."""
        return TILES

    @property
    def cols(self) -> int:
        return BOX

    @property
    def overlaid(self) -> bool:
        """O uses the shared memory of the query tiles, because there is no room for both."""
        return False

    @property
    def padded_head_dim(self) -> int:
        return _padded(self.head_dim)

    @property
    def padded_value_dim(self) -> int:
        return _padded(self.value_dim)


def unsupported(
    kind: type[KernelConfig],
    dtypes: tuple[torch.dtype, torch.dtype],
    dims: tuple[int, int],
    aux: Sequence[str],
) -> str:
    """Why the kernels of an architecture do not take these operands, or "".

    dtypes: Those of query and value. dims: The head dim of query and key, and the width of a slice
    of the value (`slice_of`). aux: The dtype names of the aux operands.
    """
    if any(dtype not in (torch.bfloat16, torch.float16) for dtype in dtypes):
        return f"the CuTe kernel takes fp16 and bf16 operands, not {dtypes[0]} and {dtypes[1]}"
    if dtypes[0] != dtypes[1]:
        return f"query is {dtypes[0]}, value {dtypes[1]}; the CuTe kernel takes one"
    most = kind.max_dim
    takes = f"the CuTe kernel takes multiples of {VECTOR} up to {most}"
    fits = [VECTOR <= size <= most and size % VECTOR == 0 for size in dims]
    if not fits[0]:
        return f"a head dim of {dims[0]} for query and key; {takes}"
    if not fits[1]:
        # It is above `max_dim` only if no equal slices fit (`slice_of`).
        sliced = "; wider values run in equal slices of such a size" if dims[1] > most else ""
        return f"a head dim of {dims[1]} for the value; {takes}{sliced}"
    strange = [dtype for dtype in aux if dtype not in AUX_DTYPES]
    return f"an operand between the products is {strange[0]}" if strange else ""


def strange_page(kind: type[KernelConfig], page: int, block: int) -> str:
    """Why a forward with key blocks of so many rows does not read pages of `page` rows, or ""."""
    if not kind.paged:
        return f"the kernel for {kind.gpu} loads keys and values that lie in order"
    if page % VECTOR == 0 and (page % block == 0 or block % page == 0):
        return ""
    return (
        f"pages of {page} rows; the CuTe kernel takes multiples of {VECTOR} that divide its key "
        f"blocks of {block}, or are multiples of these"
    )


def no_sums(kind: type[KernelConfig], program: ScoreMod) -> str:
    """Why the kernels of an architecture do not run a program with row sums, or ""."""
    if program.summed is None or kind.sums_rows:
        return ""
    return f"the CuTe kernel for {kind.gpu} does not sum rows of the weights"


def slices_of(kind: type[KernelConfig], value_dim: int) -> int:
    """How many launches of the forward share the channels of V.

    A launch takes all channels if the kernel has room for them (`max_dim`). Otherwise V is cut into
    the fewest equal slices that fit. A slice is a multiple of 8, and at least `LEAST_SLICE` wide.
    Where no such slices exist, the result is 1, and `unsupported` refuses the width.
    """
    if value_dim <= kind.max_dim:
        return 1
    fewest, most = -(-value_dim // kind.max_dim), value_dim // LEAST_SLICE
    counts = (count for count in range(fewest, most + 1) if value_dim % (count * VECTOR) == 0)
    return next(counts, 1)


def slice_of(kind: type[KernelConfig], value_dim: int) -> int:
    """How many channels of V a launch of the forward takes."""
    return value_dim // slices_of(kind, value_dim)


def _padded(size: int) -> int:
    return -(-size // 32) * 32  # whole swizzle atoms


def whole_vectors(count: Any) -> Any:
    """A count of numbers, rounded up to whole vectors of 8."""
    return (count + (VECTOR - 1)) // VECTOR * VECTOR


@dataclass(frozen=True)
class TileSize:
    """The queries and keys of a tile of scores."""

    rows: int
    cols: int


ENDS = ("aux_lo", "aux_hi")  # the smallest and the largest element, in the order of a table
TableKey = tuple[int, TileSize]  # the number of the aux operand, and the tile size of the kernel


@functools.lru_cache(512)
def classes(config: KernelConfig, roots: tuple[Expr, ...] = ()) -> TileClasses:
    """The tile classes of a kernel that evaluates `roots`, by default those of a forward."""
    # With tables, if tables let the kernel skip tiles.
    mod = config.mod
    roots = roots or config.terms
    by_tables = classify_by_tables(roots, mod.aux, sorted(config.bounded))
    return by_tables if by_tables.skips else classify(roots, mod.aux)


def table_dtype(kind: str, dtype: str) -> str:
    """The dtype of a table: the one in which the program computes with an operand of this kind."""
    if kind == "i":
        return "int64" if dtype == "int64" else "int32"
    return "bool" if kind == "b" else "float32"
