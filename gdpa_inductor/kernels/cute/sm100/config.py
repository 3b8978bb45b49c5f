"""Compile-time parameters of the kernels for Blackwell. cutlass is not imported here."""

from dataclasses import dataclass, replace

from .. import config
from ..config import BOX, SHARED_MEMORY
from .costs import one_kernel_pays

ROWS = COLS = BOX  # a score tile: 128 lanes of tensor memory, 128 fp32 columns
TMEM_COLUMNS = 512
PANEL = 64  # channels of a part of K: 128 bytes, the widest swizzle
SHARED_DIM = 192  # the widest Q of which shared memory has two tiles, beside enough of K and V
MOST_ADDED = 64  # columns of dQ that a thread adds
PAIR = 2  # CTAs that compute wide heads together
# The two kernels of a backward, and which gradients each computes: "keys" dK and dV, "rows" dQ.
SIDES = {"keys": "kv", "rows": "q"}
BOTH = "both"  # the one kernel that computes all three, by one CTA or by a pair


@dataclass(frozen=True)
class Sm100Config(config.KernelConfig):
    """`KernelConfig` for Blackwell, with the buffers that fit."""

    folder = "sm100"
    arch = "sm_100a"
    gpu = "Blackwell"
    rows = ROWS
    max_dim = 256
    max_backward_dim = 128
    rivalled = False
    measured = False
    overwrites = False  # both sides read a bias
    pairs = True

    def backward_kernels(
        self, ordered: bool, stored: int | None, most: tuple[int, int]
    ) -> list[config.KernelConfig]:
        """One kernel for both sides, or one for each (`merges`). `ordered` has no effect, since
        each sum has one order.
        """
        return [self.side(side, stored) for side in ([BOTH] if self.merges(*most) else SIDES)]

    def merges(self, rows: int, cols: int) -> bool:
        """Whether one kernel computes all gradients of sequences with at most so many queries and
        keys.
        """
        # With fewer query tiles than key tiles these would wait for their turns to add dQ.
        both = self.side(BOTH, None)
        apart = -(-rows // ROWS) >= -(-cols // both.cols)
        dims = self.padded_head_dim, self.padded_value_dim
        admitted = self.both_fit and apart and (self.pairs or both.ctas == 1)
        return admitted and one_kernel_pays(dims, both.ctas, self.program, self.fast)

    @property
    def both_fit(self) -> bool:
        """There is room for one kernel that computes all gradients."""
        return max(self.padded_head_dim, self.padded_value_dim) <= self.max_backward_dim

    @property
    def ctas(self) -> int:
        """How many CTAs own a tile together: two where a backward of wide heads is one kernel.

        Tensor memory holds S, dP, and the sums of dK and dV. Beside them there is room for dQ of 64
        columns. A pair of CTAs has 64 rows of wider ones each, in the columns that dP leaves free.
        """
        return PAIR if self.kernel == BOTH and self.padded_head_dim > MOST_ADDED else 1

    @property
    def cols(self) -> int:
        """The keys of a tile."""
        return COLS * self.ctas

    @property
    def counters(self) -> int:
        return self.ctas

    def side(self, side: str, stored: int | None) -> "Sm100Config":
        """The kernel of one side, or of both. That of the keys stores no gradient of a bias."""
        return replace(self, kernel=side, stored=None if side == "keys" else stored)

    @property
    def matrices(self) -> list[str]:
        """A backward takes dO, then the gradients of its side and what it stores. Both sides take
        sums of dQ, dK, dV, dQ and counters.
        """
        if self.kernel == BOTH:
            gradients = ["float32", *self.gradient_dtypes("kvq"), "int32"]
        else:
            gradients = self.gradient_dtypes(SIDES.get(self.kernel, ""))
        return [self.dtype, *gradients, *self.stored_dtypes]

    @property
    def tiling(self) -> config.StoredTiling:
        return config.StoredTiling(self.rows, self.cols, by_keys=self.kernel == BOTH)

    @property
    def wide(self) -> bool:
        """The forward loads K and V in parts, as there is no room for whole blocks."""
        return max(self.padded_head_dim, self.padded_value_dim) > BOX

    @property
    def tiles(self) -> int:
        """Query tiles of a CTA in the forward: two, or one where there is no room for two."""
        # Tensor memory has two buffers of scores, and O in what is left. With two query tiles each
        # has its own buffer. With one, its key blocks alternate between them (docs/blackwell.md).
        return 2 if self.padded_head_dim <= SHARED_DIM and self.padded_value_dim <= BOX else 1

    @property
    def output_stages(self) -> int:
        """Accumulators of O in tensor memory, for each query tile: two if they fit."""
        # With two, the next tile does not wait until this one is stored.
        return 2 if 2 * self.padded_value_dim <= self.sums_columns else 1

    @property
    def sums_columns(self) -> int:
        """Columns of tensor memory for O of a query tile."""
        return (TMEM_COLUMNS - 2 * COLS) // self.tiles

    @property
    def key_parts(self) -> int:
        """The parts of a block of K, each of some channels. Each has a buffer of its own."""
        return -(-self.padded_head_dim // PANEL) if self.wide else 1

    @property
    def value_parts(self) -> int:
        """The same of V, each of some keys: a power of two, so that no part is larger than K's."""
        return 1 << ((self.padded_value_dim - 1) // PANEL).bit_length() if self.wide else 1

    @property
    def part_width(self) -> int:
        """Channels of a part of K."""
        return PANEL if self.wide else self.padded_head_dim

    @property
    def query_width(self) -> int:
        """Channels of Q and K in shared memory, with zeros past `head_dim`."""
        return self.key_parts * self.part_width

    @property
    def part_keys(self) -> int:
        """Keys of a part of V."""
        return COLS // self.value_parts

    @property
    def query_stages(self) -> int:
        """Buffers of Q in shared memory: two for each query tile, or one."""
        # With two, the next query tile is loaded while this one is multiplied. But a block of K and
        # one of V come first.
        both = self.key_parts + self.value_parts
        return 2 * self.tiles if self._stages_beside(2 * self.tiles) >= both else self.tiles

    @property
    def key_stages(self) -> int:
        """Buffers of K and V in shared memory: as many as fit beside Q, up to 6 whole blocks."""
        most = 6 * max(self.key_parts, self.value_parts)
        return min(most, self._stages_beside(self.query_stages))

    def _stages_beside(self, queries: int) -> int:
        """How many buffers of K and V fit beside so many of Q."""
        stage = 2 * max(COLS * self.part_width, self.part_keys * self.padded_value_dim)
        return (SHARED_MEMORY - 2048 - 2 * ROWS * self.query_width * queries) // stage


@dataclass(frozen=True)
class Sm103Config(Sm100Config):
    """Blackwell Ultra. Its code is that of the whole family, which CUDA 12.9 and later load.

    Its instructions are those of `sm_100a` one for one, so inspection and emulation of one hold for
    both. Code for `sm_103a` is scheduled differently.
    """

    arch = "sm_100f"
    gpu = "Blackwell Ultra"


@dataclass(frozen=True)
class Sm100OneCta(Sm100Config):
    """Blackwell without pairs of CTAs."""

    pairs = False


@dataclass(frozen=True)
class Sm103OneCta(Sm103Config):
    """Blackwell Ultra without pairs of CTAs."""

    pairs = False
