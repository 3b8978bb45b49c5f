"""Compile-time parameters of the kernels for Hopper. cutlass is not imported here."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from ....program.expr import POSITIONS, Expr, postorder
from ....program.factors import factored, of_queries
from ....program.places import by_distance
from .. import config
from ..backward.roots import roots_of
from ..config import SHARED_MEMORY, TableLayout
from ..places import copy_of

ROWS, COLS = 64, 128  # a score tile of one warpgroup: 64 fp32 registers of a thread
HALF = COLS // 2  # columns of a half tile of a bias: as wide as a swizzle
LEAST_BIAS = 2  # the fewest half tiles in shared memory, for each query tile
BARRIERS = 2048  # bytes for mbarriers, records and alignment
NARROW = 128  # up to this head dim O has shared memory of its own
REGISTERS = 192  # of a thread, for O, scores and weights
TABLES = 24 << 10  # bytes for tables in shared memory, at most
BUFFERS = 2  # of tables of distances in a forward: one is read, while the next one is written
THREADS = 128  # of a warpgroup
MOST_REPLICAS = 16
MOST_STAGES = 8  # of the kernel that stores P and dS
CROWDED = 448  # channels of Q and dO, from which on registers are few
MOST_OF_THREE = 192  # channels, up to which three warpgroups of it have registers
EARLY = 16  # registers for operands that it fetches early
HALVES = ("float16", "bfloat16", "int16", "uint8", "int8", "bool")  # numbers of up to 16 bits
INDICES = {"uint8": 1, "int8": 1, "int16": 2}  # bytes of the integers that TMA may load in tiles


class HeldTable(NamedTuple):
    """A table in shared memory. Its places there may be more than it has elements: NaN."""

    number: int
    size: int
    stride: int
    places: int
    checked: bool  # Some places that a program computes are none of these.


class TableRoom(NamedTuple):
    """Learned tables in shared memory.

    replicas: How often each element lies there.
    """

    tables: tuple[HeldTable, ...]
    replicas: int

    @staticmethod
    def within(size: int, lookups: Sequence[HeldTable]) -> "TableRoom":
        """The first of these tables that fit into `size` bytes, with as many replicas as fit."""
        tables = tuple(lookups)
        while tables and TableRoom(tables, 1).size > size:
            tables = tables[:-1]
        replicas = 1
        while replicas < MOST_REPLICAS and TableRoom(tables, 2 * replicas).size <= size:
            replicas *= 2
        return TableRoom(tables, replicas)

    @property
    def words(self) -> int:
        return self.replicas * sum(x.places for x in self.tables)

    @property
    def size(self) -> int:
        """Bytes"""
        return 4 * self.words


class BandRoom(NamedTuple):
    """Tables of distances in shared memory (`bands.py`): of tiles of 64 rows, `cols` columns."""

    tables: tuple[TableLayout, ...]
    cols: int
    buffers: int

    @property
    def width(self) -> int:
        """Distances, and what makes them as many for each thread of a warpgroup."""
        return -(-(self.cols + ROWS - 1) // THREADS) * THREADS

    @property
    def words(self) -> int:
        """Elements of a buffer: two for each distance."""
        return 2 * self.width

    @property
    def size(self) -> int:
        """Bytes"""
        return 4 * self.words * self.buffers * len(self.tables)


@dataclass(frozen=True)
class Sm90Config(config.KernelConfig):
    """`KernelConfig` for Hopper, with the tile sizes and the buffers that fit."""

    folder = "sm90"
    arch = "sm_90a"
    gpu = "Hopper"
    rows = ROWS
    max_dim = 256
    max_backward_dim = 128
    rivalled = True
    measured = True
    overwrites = True  # each tile of a bias is read before its gradient is stored
    clears = True
    bare_ends = True
    cuts_keys = True
    in_rounds = True
    paged = True
    sums_rows = True
    stores_weights = True

    @property
    def weights_config(self) -> "Sm90Weights":
        known = {x.name: getattr(self, x.name) for x in fields(Sm90Config)}
        # Masks that would need a table of bounds are Triton's.
        known |= {"kernel": "weights", "bounded": frozenset(), "vectors": self.early}
        return Sm90Weights(**known)

    @property
    def early(self) -> frozenset[int]:
        """The aux operands that the kernel of P and dS fetches while it multiplies."""
        # A register holds the numbers of two keys. There are few registers, so operands of scores
        # come before those of keys only.
        needed = {x: 16 if self.mod.aux[x].axes >= POSITIONS else 8 for x in self.vectors}
        early, left = set(), EARLY
        for number in sorted(needed, key=lambda x: (-needed[x], x)):
            if self.aux[number] in HALVES and needed[number] <= left:
                early.add(number)
                left -= needed[number]
        return frozenset(early)

    def backward_kernels(
        self, ordered: bool, stored: int | None, most: tuple[int, int]
    ) -> list[config.KernelConfig]:
        return [replace(self, kernel="backward", ordered=ordered, stored=stored)]

    @property
    def matrices(self) -> list[str]:
        """A forward takes O and row sums. A backward takes dO, sums of dQ, dK, dV, dQ and counters,
        then what it stores.
        """
        if self.kernel == "forward":
            return [self.dtype, *["float32"] * (len(self.terms) - 1)]
        query, key, value = self.gradient_dtypes("qkv")
        return [self.dtype, "float32", key, value, query, "int32", *self.stored_dtypes]

    @property
    def tiling(self) -> config.StoredTiling:
        return config.StoredTiling(self.query_rows, self.cols, by_keys=True)

    @property
    def tile_rows(self) -> int:
        return ROWS if self.kernel == "forward" else self.query_rows

    @property
    def tiled(self) -> int | None:
        """As in `KernelConfig`. But where a program looks up a table, rather the table's places."""
        return next((x for x in self.in_tiles if x in self.places), super().tiled)

    @property
    def places(self) -> frozenset[int]:
        """The narrow integer operands of which places of tables are computed."""
        numbers = {x.value for x in postorder(self.mod.places.values()) if x.op == "aux"}
        return frozenset(x for x in numbers if self.aux[x] in INDICES)

    @property
    def gathered(self) -> list[HeldTable]:
        """The tables whose places are read from operands."""
        # Neighbouring scores look up anywhere in them, and would wait for many lines of the cache.
        # Where places are distances, neighbours read neighbours.
        own = [x for x in self.lookups if self.mod.aux[x.number].axes <= {"b", "h"}]
        return [HeldTable(*x, *copy_of(self, x)) for x in own if self._is_read(x)]

    @property
    def distances(self) -> list[TableLayout]:
        """The tables whose places depend on distances alone."""
        known = [x for x in self.lookups if by_distance(self.mod, x.number)]
        return [x for x in known if not self._is_read(x)]

    def _is_read(self, table: TableLayout) -> bool:
        """Whether places of a table are read from operands."""
        return any(x.op == "aux" for x in postorder([self.mod.places[table.number]]))

    @property
    def bands(self) -> BandRoom:
        """The tables of distances of a warpgroup in shared memory."""
        size, room = (self.cols, BUFFERS), self._table_room
        if self.kernel == "backward":
            # All threads meet between its steps. Above head dim 64 it has no room for bands.
            size, room = (self.query_rows, 1), TABLES // 4 if self._widest <= 64 else 0
        bands = BandRoom(tuple(self.distances), *size)
        return bands if bands.size <= room else BandRoom((), *size)

    @property
    def banded(self) -> frozenset[int]:
        return frozenset(x.number for x in self.bands.tables)

    @property
    def shared_tables(self) -> TableRoom:
        """The other tables of a warpgroup of a forward in shared memory."""
        return TableRoom.within(self._table_room - self.bands.size, self.gathered)

    @property
    def table_size(self) -> int:
        """Bytes of all tables in shared memory."""
        return self.tiles * (self.shared_tables.size + self.bands.size)

    @property
    def _table_room(self) -> int:
        """Bytes for tables of a warpgroup, beside the fewest buffers of keys and values."""
        return min(TABLES, self._room - 4 * self._stage(self.cols)) // self.tiles

    @property
    def tiles(self) -> int:
        """Query tiles of a CTA in the forward, one for each warpgroup: three or two."""
        # Three at head dims up to 64. There special functions and products bound a step alike, and
        # with two warpgroups both kinds of unit would wait. With three, a thread has fewer
        # registers: too few to read operands that vary along the keys one by one, or to look up
        # tables at places of operands. Where places are distances, few elements are read.
        # Jagged queries have three too. Where a sequence ends within a tile, warpgroups without
        # rows take no time from the others.
        near = {self.tiled}
        if 3 * BandRoom(tuple(self.distances), COLS, BUFFERS).size <= TABLES:
            near |= {x.number for x in self.distances}
        read = (x.access for number, x in enumerate(self.mod.aux) if number not in near)
        one_by_one = any({"kv_idx", "k", "t"} & set(access) for access in read)
        return 2 if self._widest > 64 or one_by_one else 3

    @property
    def overlaid(self) -> bool:
        """O has no shared memory of its own, because keys and values need it (above 128)."""
        # The next query tile is loaded when O is stored.
        return self._widest > NARROW

    @property
    def cols(self) -> int:
        """The keys of a block: 128, or fewer at head dims above 128."""
        # Two blocks of K and V have to fit into shared memory. O leaves fewer registers for scores
        # and weights. With a bias the number is a multiple of 64, the width of its tiles.
        if not self.overlaid:
            return COLS
        step = 16 if self.tiled is None else HALF
        return next(cols for cols in range(COLS, 0, -step) if self._fits(cols))

    @property
    def converts(self) -> bool:
        """The backward converts dQ to 16 bits."""
        # Otherwise the sums stay in fp32, because others are added: over the batch, or over the
        # keys of the next launch.
        return self.part in ("", "last") and "q" not in self.shared

    @property
    def sums_are_gradients(self) -> bool:
        return "q" in self.shared

    @property
    def counters(self) -> int:
        return -(-self.head_dim // HALF)

    @property
    def query_rows(self) -> int:
        """The rows of a query tile in the backward."""
        # A step with more rows has more work for its waits. The registers also hold dK and dV: 112
        # rows would spill.
        return 96 if max(self.padded_head_dim, self.padded_value_dim) <= 64 else ROWS

    @property
    def lags(self) -> bool:
        """A step of the backward multiplies dQ of the step before, not its own."""
        # Then the warpgroups need not be equally far. There are two exceptions. A bias that is
        # loaded or stored uses the buffers of dS. Aux operands that are read for each score need
        # the registers.
        read = any(set(x.access) >= POSITIONS or x.is_table for x in self.mod.aux)
        return self.stored is None and not read

    @property
    def query_stages(self) -> int:
        """Buffers of Q in the forward: two for each query tile, or one."""
        # With two, the next query tile is loaded while this one is multiplied. There is one buffer
        # in these cases:
        # - Keys and values would have fewer than four stages otherwise. With three, a step would
        #   wait for its keys: their load could begin only when the step before has ended.
        # - Three query tiles have a bias. One buffer leaves room for three half tiles of the bias.
        more = self.tiled is not None or self.gathered or self.distances
        crowded = more and (self._widest > 96 or self.tiles > 2)
        return self.tiles if crowded or self.overlaid else 2 * self.tiles

    @property
    def key_stages(self) -> int:
        """Buffers of K and V in the forward: as many as fit beside Q, O and a bias, up to 6."""
        # If K and V have separate memory (`overlaid`), each gets half of them.
        room = self._room - self.table_size
        stages = min(6, room // self._stage(self.cols))
        return stages - stages % 2 if self.overlaid else stages

    @property
    def bias_stages(self) -> int:
        """Buffers for half tiles of the bias, for each query tile: 2 to 4, as there is room."""
        # Tiles are halved so that the first half of the next key block is loaded while the second
        # half of this one is read.
        if self.tiled is None:
            return 0
        room = self._room - self._stage(self.cols) * self.key_stages
        room -= self.table_size
        return min(4, LEAST_BIAS + room // self._bias_stage)

    def _fits(self, cols: int) -> bool:
        """Whether blocks of `cols` keys fit."""
        # Shared memory needs two blocks of K and of V. Registers need O, the scores, the weights
        # and the next weights.
        registers = self.padded_value_dim // 2 + cols // 2 + cols // 4
        return registers <= REGISTERS and 4 * self._stage(cols) <= self._room

    def _stage(self, cols: int) -> int:
        """Bytes of a buffer of K or V: the larger if they share a ring, else the mean."""
        dims = self.padded_head_dim, self.padded_value_dim
        return cols * (sum(dims) if self.overlaid else 2 * max(dims))

    def factored(self, terms: Sequence[Expr]) -> tuple[tuple[Expr, ...], float]:
        """(terms for each score, factor of their sum): a constant factor is taken out.

        The epilogue then multiplies O by it, or the row sums. fp16 keeps the factor in the weights,
        since it has too few exponents for weights without it.
        """
        if not (self.fast and self.dtype == "bfloat16"):
            return tuple(terms), 1.0
        return factored(self._of_queries(terms)[0])

    @property
    def query_factor(self) -> float:
        """A power of two by which the forward multiplies the queries, instead of each score."""
        return self._of_queries(())[1]

    def _of_queries(self, terms: Sequence[Expr]) -> tuple[tuple[Expr, ...], float]:
        """(terms, factor of the queries), if the activation bounds a step; else a factor of 1."""
        # fp16 has a factor of 1, because small queries would lose bits.
        if self.fast and self.dtype == "bfloat16" and self._widest <= 64:
            scaled, factor = of_queries((*terms, *self.terms), self.mod.weight)
            return scaled[: len(terms)], factor
        return tuple(terms), 1.0

    @property
    def _widest(self) -> int:
        return max(self.padded_head_dim, self.padded_value_dim)

    @property
    def _room(self) -> int:
        """Bytes of shared memory beside Q, O, and the fewest buffers of a bias."""
        queries = 2 * ROWS * self.padded_head_dim * self.query_stages
        output = 2 * ROWS * self.padded_value_dim * self.tiles
        used = max(queries, output) if self.overlaid else queries + output
        bias = 0 if self.tiled is None else LEAST_BIAS * self._bias_stage
        return SHARED_MEMORY - BARRIERS - used - bias

    @property
    def _bias_stage(self) -> int:
        """Bytes of one half tile of the bias for every query tile."""
        number = 0 if self.tiled is None else self.tiled
        return INDICES.get(self.aux[number], 2) * ROWS * HALF * self.tiles


@dataclass(frozen=True)
class Sm90Weights(Sm90Config):
    """The kernel that stores P and dS (`weights/`). Both sides are dense."""

    kernel: str = "weights"

    @property
    def roots(self) -> tuple[Expr, ...]:
        """The slope ∂P/∂s, and P."""
        return roots_of(self.program)

    @property
    def matrices(self) -> list[str]:
        """dO, P and dS."""
        return [self.dtype] * 3

    @property
    def tiles(self) -> int:
        """Warpgroups with 64 queries each: three or two."""
        # A warpgroup computes longer than the tensor core multiplies for it. Three keep this busy.
        # A thread has 160 registers then: too few for more channels or for operands of keys.
        read = any("kv_idx" in x.axes for x in self.mod.aux)
        return 2 if self._widest > MOST_OF_THREE or read else 3

    @property
    def flows(self) -> int:
        """Buffers for dO: one for each of three warpgroups. Two have it in registers."""
        return 3 if self.tiles == 3 else 0

    @property
    def cols(self) -> int:
        """The keys of a tile."""
        # S and dP leave Q and dO of up to 256 channels their registers.
        return ROWS

    @property
    def tiled(self) -> None:
        """TMA loads no aux operand."""
        return None

    @property
    def registers(self) -> tuple[int, int]:
        """(of a thread that multiplies, of any other thread)."""
        # Q, dO, S and dP take up to 192. With different head dims the loads need more than 24.
        dims = self.padded_head_dim + self.padded_value_dim
        two = (240, 24) if dims > CROWDED else (232, 40)
        return two if self.tiles == 2 else (160, 32)

    @property
    def stage_bytes(self) -> int:
        """Bytes of a buffer for 64 rows of any matrix."""
        return 2 * ROWS * self._widest

    @property
    def stages(self) -> int:
        """Buffers of the ring, beside those of dO, and of P and dS of each warpgroup."""
        used = 2 * self.tiles * 2 * ROWS * self.cols + 2 * ROWS * self.padded_value_dim * self.flows
        return min(MOST_STAGES, (SHARED_MEMORY - BARRIERS - used) // self.stage_bytes)
