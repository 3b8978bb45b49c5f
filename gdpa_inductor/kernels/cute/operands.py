"""Matrices in global memory as TMA sees them, so that loads fill zeros past the end of a sequence.

Dense [B, H, M, D]:
    The TMA tensor has the extents (M, D, (H, B)). TMA fills a tile with zeros past row M.

Jagged [L, H, D]:
    A sequence ends in the middle of the matrix, so the extents cannot end there. Instead the TMA
    tensor is a set of overlapping windows of 128 rows, one for each end:

        extents (128, D, (H, L + 1)),  strides (s_l, 1, (s_h, s_l)),  base 128 rows before row 0

    Window e ends right before row e. To copy the r ≤ 128 rows before row e, TMA takes the box that
    begins at row 128 - r of window e. The rest of the box is outside the first extent: a load fills
    it with zeros, and a store drops it. So TMA never reads or writes a row of the next sequence,
    even if that row holds NaN.

All strides are in elements. Strides of TMA tensors are multiples of 8 elements (16 bytes).
"""

from dataclasses import dataclass
from typing import Any

from cutlass import Int32, Int64, cute
from cutlass.cute.nvgpu import cpasync

from .config import BOX, LETTERS, VECTOR, KernelConfig
from .values import Fixed, smaller

# Eviction policies of the L2 cache, as the PTX instruction `createpolicy` encodes them.
EVICT_NORMAL, EVICT_FIRST = 0x1000000000000000, 0x12F0000000000000


@dataclass
class Matrix:
    """A matrix in global memory.

    rows:     M, or L if jagged.
    width:    The head dim.
    strides:  (batch, head, row), in elements. A jagged matrix does not use the first.
    """

    pointer: Any
    batch: Any
    heads: Any
    rows: Any
    width: Any
    strides: tuple[Any, Any, Any]
    jagged: bool

    def tensor(self, transposed: bool = False):
        """The TMA tensor, with modes (row, column, (head, batch)).

        A jagged matrix has the end of the rows, e, in place of the batch. transposed: The first two
        modes are swapped.
        """
        sb, sh, sr = (cute.assume(Int64(s), divby=8) for s in self.strides)
        pointer, rows, outer, so = self.pointer, self.rows, self.batch, sb
        if self.jagged:
            pointer, rows, outer, so = pointer - sr * BOX, BOX, self.rows + 1, sr
        if transposed:
            layout = cute.make_layout(
                (self.width, rows, (self.heads, outer)), stride=(1, sr, (sh, so))
            )
        else:
            layout = cute.make_layout(
                (rows, self.width, (self.heads, outer)), stride=(sr, 1, (sh, so))
            )
        return cute.make_tensor(pointer, layout)

    def row(self, start: Any, row: Any, head: Any, batch: Any) -> Any:
        """A pointer to row `row` of a sequence.

        start: The first row of the sequence in a jagged matrix.
        """
        sb, sh, sr = (Int64(s) for s in self.strides)
        place = self.pointer + ((Int64(start) + row) * sr + head * sh)
        return place if self.jagged else place + batch * sb


def matrices(config: KernelConfig, pointers: Any, sizes: Any, strides: Any) -> list[Matrix]:
    """Q, K, V and O (dO in a backward). pointers, sizes, strides: As the kernels take them."""
    c = config
    batch, heads, key_heads, value_heads, _, _, q_rows, k_rows = sizes[:8]
    rows = {
        "q": (heads, q_rows, c.head_dim, c.jagged_q),
        "k": (key_heads, k_rows, c.head_dim, c.jagged_k),
        "v": (value_heads, k_rows, c.value_dim, c.jagged_k),
        "o": (heads, q_rows, c.value_dim, c.jagged_q),
    }
    return [
        Matrix(pointer, 1 if name in c.shared else batch, *row[:3], stride, row[3])
        for (name, row), pointer, stride in zip(rows.items(), pointers, strides, strict=False)
    ]


def score_operand(config: KernelConfig, aux: Any, sizes: Any) -> Matrix:
    """The aux operand that TMA loads in tiles (`KernelConfig.tiled`), as a matrix [.., M, N].

    Its batch and heads are 1 where it lacks these dims. aux: As the kernels take it.
    """
    number = config.tiled
    assert number is not None
    access, (pointer, strides) = config.mod.aux[number].access, aux[number]
    known = dict(zip(LETTERS, strides, strict=True))
    batch, heads = (size if x in access else 1 for x, size in zip("bh", sizes[:2]))
    address = cute.make_ptr(pointer.dtype, pointer.toint(), pointer.memspace, assumed_align=16)
    # A dim of size 1 may have any stride but 0, as in `fits` of plan.py.
    steps = tuple(known[x] if x in access else Int64(VECTOR) for x in ("b", "h", "q_idx"))
    return Matrix(address, batch, heads, sizes[4], sizes[5], steps, False)


@dataclass
class Tiles(Fixed):
    """The tiles of one matrix, and their copies between global and shared memory.

    atom:        The TMA copy.
    mX:          The TMA tensor in global memory.
    sX:          The buffers in shared memory. The last mode is the stage.
    partition:   A function from tiles of mX to the modes of sX, which a product may define.
    tiler:       (rows, columns) of a tile.
    size:        The bytes of a tile.
    jagged:      The matrix is jagged.
    shared:      All sequences read the same matrix: its batch is 1.
    transposed:  mX has its first two modes swapped.
    single:      All heads read the same matrix: it has 1 head.
    """

    atom: Any
    mX: Any
    sX: Any
    partition: Any
    tiler: tuple[int, int]
    size: int
    jagged: bool
    shared: bool
    transposed: bool = False
    single: bool = False

    def copy(self, start, row, rows, head, batch, stage, barrier, column=0, policy=None) -> None:
        """Load a tile, from row `row` of a sequence on, with zeros past the end of the sequence.

        One warp calls this.

        Args:
            start: The first row of the sequence in a jagged matrix.
            rows: How many rows the sequence has.
            stage: The buffer in shared memory.
            barrier: The mbarrier that counts the bytes.
            column: The number of the tile along the columns.
            policy: A policy of the L2 cache.
        """
        source, shared = self._ends(start, row, rows, head, batch, stage, column)
        cute.copy(self.atom, source, shared, tma_bar_ptr=barrier, **_hint(policy))

    def store(self, start, row, rows, head, batch, stage, column=0, policy=None) -> None:
        """Store a buffer to global memory. Rows past the end of the sequence are dropped."""
        target, shared = self._ends(start, row, rows, head, batch, stage, column)
        cute.copy(self.atom, shared, target, **_hint(policy))

    def _ends(self, start, row, rows, head, batch, stage, column) -> tuple[Any, Any]:
        """A tile in global memory, and its buffer."""
        if self.jagged:
            height = smaller(rows - row, Int32(BOX))
            first, outer = BOX - height, start + row + height
        else:
            first, outer = row, Int32(0) if self.shared else batch
        offset = (0, first, (0, 0)) if self.transposed else (first, 0, (0, 0))
        parts = self.partition(cute.flat_divide(cute.domain_offset(offset, self.mX), self.tiler))
        modes = cute.rank(self.sX) - 1
        shared, matrix = cpasync.tma_partition(
            self.atom, 0, cute.make_layout(1),
            cute.group_modes(self.sX, 0, modes), cute.group_modes(parts, 0, modes),
        )  # fmt: skip
        head = Int32(0) if self.single else head
        return matrix[None, 0, column, (head, outer)], shared[None, stage]


def _hint(policy: Any) -> dict[str, Any]:
    return {} if policy is None else {"cache_policy": Int64(policy)}


def score_tiles(config: KernelConfig, copy: Any, sX: Any, tiler: Any, size: int) -> Tiles:
    """The `Tiles` of `score_operand`. copy: (atom, mX)."""
    number, (atom, mX) = config.tiled, copy
    assert number is not None
    axes = config.mod.aux[number].axes
    return Tiles(
        atom, mX, sX, lambda tiles: tiles, tiler, size, jagged=False,
        shared="b" not in axes, single="h" not in axes,
    )  # fmt: skip


def vector(pointer: Any) -> Any:
    """The 8 numbers from a pointer on, which is aligned so that 16 bytes move at once."""
    aligned = cute.make_ptr(pointer.dtype, pointer.toint(), pointer.memspace, assumed_align=16)
    return cute.make_tensor(aligned, cute.make_layout(VECTOR))
