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

from dataclasses import dataclass, field, replace
from typing import Any

import cutlass
from cutlass import Int8, Int16, Int32, Int64, Uint8, Uint16, cute
from cutlass.cute.nvgpu import cpasync

from .config import BOX, LETTERS, VECTOR, KernelConfig
from .values import DTYPES, Fixed, select, smaller

# Eviction policies of the L2 cache, as the PTX instruction `createpolicy` encodes them.
EVICT_NORMAL, EVICT_FIRST = 0x1000000000000000, 0x12F0000000000000
UNSIGNED = {Int8: Uint8, Int16: Uint16}


@dataclass(frozen=True)
class KernelArguments:
    """What every attention kernel takes. `compiler.example` has one of the right types."""

    pointers: Any  # query, key, value and `KernelConfig.matrices`
    strides: Any  # (batch, head, row) of each, in elements
    # B, H, Hk, Hv, M, N (the most, if jagged), total rows of Q, of K (or the number of pages), and
    # how many sequences the launch computes.
    sizes: Any
    # `cu_seqlens` of jagged sides, and the order of the sequences, or None
    cu_q: Any
    cu_k: Any
    order: Any
    aux: Any  # (pointer, strides in the order of `LETTERS`) of aux operands, then of their tables
    scalars: Any  # the integers of the program
    pages: Any = None  # the table of the pages of each sequence


class AttentionKernel:
    """One configuration. `launch` is the host's side of a subclass, `kernel` the device's."""

    def __init__(self, config) -> None:
        self.config, self.dtype = config, DTYPES[config.dtype]

    @cute.jit
    def __call__(
        self, pointers, sizes, strides, cu_q, cu_k, order, aux, scalars, ctas: Int32, stream
    ):
        pages = None
        if cutlass.const_expr(self.config.page > 0):
            pages, cu_k = cu_k, None
        x = (pointers, strides, sizes, cu_q, cu_k, order, aux, scalars, pages)
        arguments = KernelArguments(*x)
        self.launch(arguments, ctas, stream)

    def launch(self, arguments: KernelArguments, ctas: Int32, stream) -> None:
        raise NotImplementedError


@dataclass
class Matrix:
    """A matrix in global memory."""

    pointer: Any
    batch: Any
    heads: Any
    rows: Any  # M, or L if jagged
    width: Any  # the head dim
    # (batch, head, row), in elements. A jagged matrix does not use the first.
    strides: tuple[Any, Any, Any]
    jagged: bool

    def tensor(self, transposed: bool = False):
        """The TMA tensor, with modes (row, column, (head, batch)). transposed: The first two are
        swapped.
        """
        divisor = max(VECTOR, unit(self.pointer.dtype))
        sb, sh, sr = (cute.assume(Int64(s), divby=divisor) for s in self.strides)
        pointer, rows, outer, so = self.pointer, self.rows, self.batch, sb
        if self.jagged:
            pointer, rows, outer, so = pointer - sr * BOX, BOX, self.rows + 1, sr
        shape, stride = (rows, self.width), (sr, 1)
        if transposed:
            shape, stride = shape[::-1], stride[::-1]
        layout = cute.make_layout((*shape, (self.heads, outer)), stride=(*stride, (sh, so)))
        return cute.make_tensor(pointer, layout)

    def row(self, start, row, head, batch):
        """A pointer to row `row` of a sequence that begins at row `start` of a jagged matrix."""
        sb, sh, sr = (Int64(s) for s in self.strides)
        place = self.pointer + ((Int64(start) + row) * sr + head * sh)
        return place if self.jagged else place + batch * sb


def matrices(config: KernelConfig, x: KernelArguments) -> list[Matrix]:
    """Q, K, V and O (dO in a backward)."""
    c = config
    batch, heads, key_heads, value_heads, _, _, q_rows, k_rows = x.sizes[:8]
    keys = batch
    if c.page:
        keys, k_rows = k_rows, Int32(c.page)  # pages
    rows = {
        "q": (batch, heads, q_rows, c.head_dim, c.jagged_q),
        "k": (keys, key_heads, k_rows, c.head_dim, c.jagged_k),
        "v": (keys, value_heads, k_rows, c.value_dim, c.jagged_k),
        "o": (batch, heads, q_rows, c.value_dim, c.jagged_q),
    }
    return [
        Matrix(pointer, 1 if name in c.shared else row[0], *row[1:4], stride, row[4])
        for (name, row), pointer, stride in zip(rows.items(), x.pointers, x.strides, strict=False)
    ]


def row_sums(config: KernelConfig, x: KernelArguments) -> Matrix | None:
    """The row sums of a forward, as a matrix [.., M, 1], or None."""
    if len(config.terms) == 1:
        return None
    query = matrices(config, x)[0]
    return replace(query, pointer=x.pointers[4], width=1, strides=x.strides[4])


def score_operand(config: KernelConfig, x: KernelArguments) -> Matrix:
    """The aux operand that TMA loads in tiles (`KernelConfig.tiled`), as a matrix [.., M, N].

    Its batch and heads are 1 where it lacks these dims.
    """
    number = config.tiled
    assert number is not None
    access, (pointer, strides) = config.mod.aux[number].access, x.aux[number]
    known = dict(zip(LETTERS, strides, strict=True))
    batch, heads = (n if letter in access else 1 for letter, n in zip("bh", x.sizes))
    # TMA has no signed integers of 8 and 16 bits.
    dtype = UNSIGNED.get(pointer.dtype, pointer.dtype)
    address = cute.make_ptr(dtype, pointer.toint(), pointer.memspace, assumed_align=16)
    # A dim of size 1 may have any stride but 0, as in `fits` of plan.py.
    step = Int64(unit(dtype))
    steps = tuple(known[a] if a in access else step for a in ("b", "h", "q_idx"))
    return Matrix(address, batch, heads, x.sizes[4], x.sizes[5], steps, False)


def unit(dtype) -> int:
    """How many numbers have 16 bytes."""
    return 128 // dtype.width


@dataclass
class PageTable(Fixed):
    """The pages of keys and values of each sequence, in global memory."""

    config: KernelConfig
    x: KernelArguments

    def __post_init__(self) -> None:
        self.page, self.box = self.config.page, self.config.box
        self.listed = self.x.sizes[5] // self.page  # for a sequence
        self.count = self.x.sizes[7]  # of all pages

    def at(self, place, batch):
        """The page at a place of a sequence. `count` if there is none."""
        row = Int32(0) if "t" in self.config.shared else batch
        page = self.x.pages[Int64(row) * self.listed + place]
        inside = (page >= 0) & (page < self.count)
        return select(inside, Int32(page), self.count)

    def of_tile(self, first, end, batch) -> tuple[Any, ...]:
        """The pages that a tile of keys takes, one for each copy. Past the end there are none, and
        TMA fills zeros.
        """
        rows = [first + part * self.box for part in range(self.config.cols // self.box)]
        pages = [self.at(smaller(row, end - 1) // self.page, batch) for row in rows]
        known = zip(rows, pages, strict=True)
        return tuple(select(row < end, page, self.count) for row, page in known)

    @cute.jit
    def lacks(self, first, end, batch):
        """Whether some of the keys [first, end) of a sequence are in no page. A warp calls it."""
        begin, behind = first // self.page, (end + (self.page - 1)) // self.page
        missing = Int32(0)
        for place in cutlass.range(begin + cute.arch.lane_idx(), behind, 32, unroll=1):
            missing = missing | Int32(self.at(place, batch) == self.count)
        return cute.arch.vote_any_sync(missing != 0)


@dataclass
class Tiles(Fixed):
    """The tiles of one matrix, and their copies between global and shared memory."""

    tma: Any  # (the TMA copy, the TMA tensor in global memory)
    sX: Any  # The buffers in shared memory. The last mode is the stage.
    partition: Any  # A function from tiles of mX to the modes of sX, which a product may define
    tiler: tuple[int, int]  # (rows, columns) of a tile
    size: int  # the bytes of a tile
    jagged: bool  # the matrix is jagged
    shared: bool  # All sequences read the same matrix: its batch is 1.
    transposed: bool = False  # mX has its first two modes swapped
    single: bool = False  # All heads read the same matrix: it has 1 head.

    def origin(self, rows, batch) -> Any:
        """What `load` takes for the batch. To be asked for before `load` has to wait for room."""
        return batch

    def load(self, rows, head, batch, stage, full, at, column=0, policy=None) -> None:
        """Load a tile, with zeros past the end of the sequence. One warp calls this.

        rows: (first row of the sequence in a jagged matrix, row of the tile in it, rows of the
        sequence). full, at: The barriers that say that the tile has landed, and the place in them.
        column: The number of the tile along the columns. policy: Of the L2 cache.
        """
        full.expect(at, self.size)
        self.copy(rows, head, batch, stage, full.at(at), column, policy)

    def copy(self, rows, head, batch, stage, barrier, column=0, policy=None, part=0) -> None:
        source, shared = self._ends(rows, head, batch, stage, column, part)
        cute.copy(self.tma[0], source, shared, tma_bar_ptr=barrier, **_hint(policy))

    def store(self, rows, head, batch, stage, column=0, policy=None) -> None:
        """Store a buffer to global memory. Rows past the end of the sequence are dropped."""
        target, shared = self._ends(rows, head, batch, stage, column)
        cute.copy(self.tma[0], shared, target, **_hint(policy))

    def _ends(self, rows, head, batch, stage, column, part=0) -> tuple[Any, Any]:
        start, row, end = rows
        if self.jagged:
            height = smaller(end - row, Int32(BOX))
            first, outer = BOX - height, start + row + height
        else:
            first, outer = row, Int32(0) if self.shared else batch
        atom, mX = self.tma
        offset = (0, first, (0, 0)) if self.transposed else (first, 0, (0, 0))
        parts = self.partition(cute.flat_divide(cute.domain_offset(offset, mX), self.tiler))
        sX = self.buffers(part)
        modes = cute.rank(sX) - 1
        groups = [cute.group_modes(x, 0, modes) for x in (sX, parts)]
        shared, matrix = cpasync.tma_partition(atom, 0, cute.make_layout(1), *groups)
        head = Int32(0) if self.single else head
        return matrix[None, 0, column, (head, outer)], shared[None, stage]

    def buffers(self, part: int):
        """What one copy writes of each buffer."""
        return self.sX


def _hint(policy) -> dict[str, Any]:
    return {} if policy is None else {"cache_policy": Int64(policy)}


@dataclass
class PagedTiles(Tiles):
    """Tiles of keys whose rows lie in pages. A tile has whole pages, or a page has whole tiles."""

    pages: PageTable = field(kw_only=True)

    def buffers(self, part: int):
        return cute.flat_divide(self.sX, self.tiler)[None, None, part, 0, None]

    def origin(self, rows, batch) -> tuple[Any, ...]:
        """The pages of a tile, which those of K and V share."""
        _, first, end = rows
        return self.pages.of_tile(first, end, batch)

    def load(self, rows, head, batch, stage, full, at, column=0, policy=None) -> None:
        _, first, _ = rows
        full.expect(at, self.size)
        for part, page in enumerate(batch):
            row = (first + part * self.pages.box) % self.pages.page
            place = (Int32(0), row, Int32(self.pages.page))
            self.copy(place, head, page, stage, full.at(at), column, policy, part)


def score_tiles(config: KernelConfig, copy, sX, tiler, size: int) -> Tiles:
    """The `Tiles` of `score_operand`. copy: (atom, mX)."""
    assert config.tiled is not None
    axes = config.mod.aux[config.tiled].axes
    shared, single = "b" not in axes, "h" not in axes
    return Tiles(copy, sX, whole_tiles, tiler, size, False, shared, single=single)


def whole_tiles(tiles):
    """The partition of a matrix whose tiles are taken as they are."""
    return tiles


def numbers(pointer, count: int):
    """The numbers from a pointer on. 8 numbers are a `vector`."""
    return (
        vector(pointer) if count == VECTOR else cute.make_tensor(pointer, cute.make_layout(count))
    )


def vector(pointer):
    """The 8 numbers from a pointer on, which is aligned so that 16 bytes move at once."""
    aligned = cute.make_ptr(pointer.dtype, pointer.toint(), pointer.memspace, assumed_align=16)
    return cute.make_tensor(aligned, cute.make_layout(VECTOR))
