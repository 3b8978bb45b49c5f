"""Matrices in global memory as TMA sees them: zero fill past every end, whatever lies there.

dense [B, H, M, D]: extents (M, D, (H, B)); a tile that sticks out is filled with zeros.

jagged [L, H, D]: a window that overlaps itself, extents (128, D, (H, L + 1)), strides (s_l, 1,
(s_h, s_l)), 128 rows before the base. The r ≤ 128 rows that end before row e are the box at row 128
- r of window e: what follows them falls off the first extent, so a load fills it with zeros and a
store drops it. No row of a neighbouring sequence is ever read or written, NaN or not.

All strides are in elements; those of TMA tensors are multiples of 8 (16 bytes).
"""

from dataclasses import dataclass
from typing import Any

from cutlass import Int32, Int64, cute
from cutlass.cute.nvgpu import cpasync

from .config import BOX, LETTERS, VECTOR, KernelConfig
from .values import Fixed, smaller

# Policies of the L2 cache, as `createpolicy` encodes them.
EVICT_NORMAL, EVICT_FIRST = 0x1000000000000000, 0x12F0000000000000


@dataclass
class Matrix:
    """A pointer and what varies at run time. rows: M, or L of a jagged one. strides: (batch, head,
    row); the batch stride of a jagged one is not used."""

    pointer: Any
    batch: Any
    heads: Any
    rows: Any
    width: Any
    strides: tuple[Any, Any, Any]
    jagged: bool

    def tensor(self, transposed: bool = False):
        """(row, column, (head, batch | end)), or (column, row, ...)."""
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
        """Where a row of a sequence begins. start: the first row of the sequence in a jagged
        matrix."""
        sb, sh, sr = (Int64(s) for s in self.strides)
        place = self.pointer + ((Int64(start) + row) * sr + head * sh)
        return place if self.jagged else place + batch * sb


def matrices(config: KernelConfig, pointers: Any, sizes: Any, strides: Any) -> list[Matrix]:
    """Q, K, V and O, or dO, in global memory; sizes, strides: as the kernels take them."""
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
    """The operand of the program that comes in tiles: [M, N] for each batch and head that it has.
    aux: as the kernels take it."""
    number = config.tiled
    assert number is not None
    access, (pointer, strides) = config.mod.aux[number].access, aux[number]
    known = dict(zip(LETTERS, strides, strict=True))
    batch, heads = (size if x in access else 1 for x, size in zip("bh", sizes[:2]))
    address = cute.make_ptr(pointer.dtype, pointer.toint(), pointer.memspace, assumed_align=16)
    # An extent of one may have any stride. 0 is avoided, as in `fits` of plan.py.
    steps = tuple(known[x] if x in access else Int64(VECTOR) for x in ("b", "h", "q_idx"))
    return Matrix(address, batch, heads, sizes[4], sizes[5], steps, False)


@dataclass
class Tiles(Fixed):
    """The tiles of one matrix, and how they get into shared memory.

    mX: its TMA tensor. sX: its buffers, the last mode of which is the stage. tiler: the tile.
    partition: to the modes of sX, where a product gives them its own. jagged, shared, single: is it
    jagged, has it a batch of one, a head of one."""

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
        """Load rows [row, row + 128) of a sequence of `rows` rows, zeros past its end, by one warp.
        A tile may have fewer rows.

        start: the first row of the sequence in a jagged matrix. column: of the tiles side by side,
        the number of the one that is meant. policy: of the L2 cache."""
        source, shared = self._ends(start, row, rows, head, batch, stage, column)
        cute.copy(self.atom, source, shared, tma_bar_ptr=barrier, **_hint(policy))

    def store(self, start, row, rows, head, batch, stage, column=0, policy=None) -> None:
        """The way back: rows past the end of the sequence are dropped."""
        target, shared = self._ends(start, row, rows, head, batch, stage, column)
        cute.copy(self.atom, shared, target, **_hint(policy))

    def _ends(self, start, row, rows, head, batch, stage, column) -> tuple[Any, Any]:
        """A tile in global memory, and its buffer."""
        if self.jagged:
            taken = smaller(rows - row, Int32(BOX))
            first, outer = BOX - taken, start + row + taken
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
    """The tiles of `score_operand`, which may lack the batch or heads. copy: (atom, mX)."""
    number, (atom, mX) = config.tiled, copy
    assert number is not None
    axes = config.mod.aux[number].axes
    return Tiles(
        atom, mX, sX, lambda tiles: tiles, tiler, size, jagged=False,
        shared="b" not in axes, single="h" not in axes,
    )  # fmt: skip


def vector(pointer: Any) -> Any:
    """8 numbers from there on; 16 bytes at a time can be moved."""
    aligned = cute.make_ptr(pointer.dtype, pointer.toint(), pointer.memspace, assumed_align=16)
    return cute.make_tensor(aligned, cute.make_layout(VECTOR))
