"""What a kernel for Hopper is a function of. No cutlass here."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ....program.expr import POSITIONS, Expr
from ....program.factors import factored, of_queries
from .. import config
from ..config import SHARED_MEMORY

ROWS, COLS = 64, 128  # a score tile: what a warpgroup multiplies, 64 fp32 registers
HALF = COLS // 2  # columns of a tile of the bias: as wide as a swizzle
LEAST_BIAS = 2  # of these tiles, for each query tile
BARRIERS = 2048  # bytes for mbarriers, records and alignment
NARROW = 128  # the widest head dims at which O has room of its own
REGISTERS = 192  # of a thread, for O, scores and weights


@dataclass(frozen=True)
class Sm90Config(config.KernelConfig):
    """The same, with the buffers that there is room for."""

    folder = "sm90"
    arch = "sm_90a"
    gpu = "Hopper"
    rows = ROWS
    max_dim = 256
    max_backward_dim = 128
    rivalled = True
    clears = True
    bare_ends = True
    cuts_keys = True
    in_rounds = True

    def backward_kernels(
        self, ordered: bool, stored: int | None
    ) -> list[tuple[config.KernelConfig | str, ...]]:
        return [(replace(self, ordered=ordered, stored=stored),)]

    @property
    def tiles(self) -> int:
        """Three at head dims up to 64, where the special functions bound a step as much as the
        products do: two warpgroups would leave both waiting. Each has fewer registers then, too few
        to read operands of the keys one by one. Where a sequence ends within a tile, warpgroups
        without rows take no time from the others. So this holds under jagged queries too."""
        read = (x.access for number, x in enumerate(self.mod.aux) if number != self.tiled)
        one_by_one = any("kv_idx" in access or "k" in access for access in read)
        return 2 if self._widest > 64 or one_by_one else 3

    @property
    def overlaid(self) -> bool:
        """Above 128 keys and values need the room of O. The next query tile is loaded when O is
        stored."""
        return self._widest > NARROW

    @property
    def cols(self) -> int:
        """128, or the most that leave room for two pairs of keys and values where these are wide.
        O then leaves fewer registers for scores and weights too. A bias comes in tiles of 64."""
        if not self.overlaid:
            return COLS
        step = 16 if self.tiled is None else HALF
        return next(cols for cols in range(COLS, 0, -step) if self._fits(cols))

    @property
    def converts(self) -> bool:
        """dQ leaves the backward in 16 bits. Else it is summed on, over the batch or the keys."""
        return self.part in ("", "last") and "q" not in self.shared

    @property
    def continues(self) -> bool:
        """The sums of dQ have been begun, by the launch before."""
        return self.part in ("middle", "last")

    @property
    def query_rows(self) -> int:
        """Of a query tile of the backward. More make a step worth its waits. They have to fit into
        the registers beside dK and dV: 112 would spill."""
        return 96 if max(self.padded_head_dim, self.padded_value_dim) <= 64 else ROWS

    @property
    def lags(self) -> bool:
        """Whether a step of the backward multiplies dQ of the step before: the warpgroups need not
        be equally far then. Where a bias comes or leaves in the buffers of dS, these are needed.
        Operands that are read for each score need the registers."""
        read = any(set(x.access) >= POSITIONS for x in self.mod.aux)
        return self.stored is None and not read

    @property
    def query_stages(self) -> int:
        """Two for each query tile: the next tile's are loaded while this one is multiplied. One
        where keys and values would have fewer than four otherwise. With three, a step would wait
        for its keys: they could be asked for only when the step before has ended. One also where
        three query tiles have a bias, so that it gets three half tiles."""
        crowded = self.tiled is not None and (self._widest > 96 or self.tiles > 2)
        return self.tiles if crowded or self.overlaid else 2 * self.tiles

    @property
    def key_stages(self) -> int:
        """As many as fit beside the query tiles, the output and a bias, up to 6. Keys and values
        that have room of their own get the same number each."""
        stages = min(6, self._room // self._stage(self.cols))
        return stages - stages % 2 if self.overlaid else stages

    @property
    def bias_stages(self) -> int:
        """Half tiles of the bias, for each query tile: what is left, 2 to 4. Halves, for the first
        of the next key block is on its way while the second of this one is read."""
        if self.tiled is None:
            return 0
        room = self._room - self._stage(self.cols) * self.key_stages
        return min(4, LEAST_BIAS + room // self._bias_stage)

    def _fits(self, cols: int) -> bool:
        """Blocks of so many keys: two of K and of V in shared memory; O, scores, weights and the
        next weights in registers."""
        registers = self.padded_value_dim // 2 + cols // 2 + cols // 4
        return registers <= REGISTERS and 4 * self._stage(cols) <= self._room

    def _stage(self, cols: int) -> int:
        """Bytes of a buffer of keys or values, the larger where they share it, else on average."""
        dims = self.padded_head_dim, self.padded_value_dim
        return cols * (sum(dims) if self.overlaid else 2 * max(dims))

    def factored(self, terms: Sequence[Expr]) -> tuple[tuple[Expr, ...], float]:
        """What the forward computes for each score of terms of the program, and the factor of its
        sums. fp16 has too few exponents for weights without their factor."""
        if not (self.fast and self.dtype == "bfloat16"):
            return tuple(terms), 1.0
        return factored(self._of_queries(terms)[0])

    @property
    def query_factor(self) -> float:
        """A power of two that the forward multiplies queries by, so that scores need no product of
        their own."""
        return self._of_queries((self.mod.weight,))[1]

    def _of_queries(self, terms: Sequence[Expr]) -> tuple[tuple[Expr, ...], float]:
        """Where the activation bounds a step. fp16 would lose bits of small queries."""
        if self.fast and self.dtype == "bfloat16" and self._widest <= 64:
            return of_queries(terms, self.mod.weight)
        return tuple(terms), 1.0

    @property
    def _widest(self) -> int:
        return max(self.padded_head_dim, self.padded_value_dim)

    @property
    def _room(self) -> int:
        """Bytes beside the query tiles, the output and the least of a bias."""
        queries = 2 * ROWS * self.padded_head_dim * self.query_stages
        output = 2 * ROWS * self.padded_value_dim * self.tiles
        taken = max(queries, output) if self.overlaid else queries + output
        bias = 0 if self.tiled is None else LEAST_BIAS * self._bias_stage
        return SHARED_MEMORY - BARRIERS - taken - bias

    @property
    def _bias_stage(self) -> int:
        """Bytes of a half tile of the bias for each query tile."""
        return 2 * ROWS * HALF * self.tiles
