"""Compile-time parameters of the kernels for Blackwell. cutlass is not imported here."""

from dataclasses import dataclass, replace

from .. import config
from ..config import BOX, SHARED_MEMORY

ROWS = COLS = BOX  # a score tile: 128 lanes of tensor memory, 128 fp32 columns
TMEM_COLUMNS = 512
# The two kernels of a backward, and which gradients each computes: "keys" dK and dV, "rows" dQ.
SIDES = {"keys": "kv", "rows": "q"}


@dataclass(frozen=True)
class Sm100Config(config.KernelConfig):
    """`KernelConfig` for Blackwell, with the buffers that fit."""

    folder = "sm100"
    arch = "sm_100a"
    gpu = "Blackwell"
    rows = ROWS
    max_dim = max_backward_dim = 128
    rivalled = False
    measured = False
    overwrites = False  # both sides read a bias

    def backward_kernels(self, ordered: bool, stored: int | None) -> list[config.KernelConfig]:
        """One kernel for each side. `ordered` has no effect, since each sum has one order."""
        return [self.side(side, stored) for side in SIDES]

    def side(self, side: str, stored: int | None) -> "Sm100Config":
        """The kernel of one side. Only the rows side stores the gradient of a bias."""
        return replace(self, kernel=side, stored=stored if side == "rows" else None)

    @property
    def matrices(self) -> list[str]:
        """A backward takes dO, then the gradients of its side and what it stores."""
        gradients = self.gradient_dtypes(SIDES.get(self.kernel, ""))
        return [self.dtype, *gradients, *self.stored_dtypes]

    @property
    def tiling(self) -> config.StoredTiling:
        return config.StoredTiling(self.rows, self.cols, by_keys=False)

    @property
    def output_stages(self) -> int:
        """Accumulators of O in tensor memory, for each query tile: two if they fit."""
        # With two, the next tile does not wait until this one is stored.
        return 2 if self.padded_value_dim <= 64 else 1

    @property
    def query_stages(self) -> int:
        return 4

    @property
    def key_stages(self) -> int:
        """Buffers of K and V in shared memory: as many as fit beside Q, up to 6."""
        stage = 2 * COLS * max(self.padded_head_dim, self.padded_value_dim)
        room = SHARED_MEMORY - 2048 - 2 * ROWS * self.padded_head_dim * self.query_stages
        return min(6, room // stage)


@dataclass(frozen=True)
class Sm103Config(Sm100Config):
    """Blackwell Ultra. Its code is that of the whole family, which CUDA 12.9 and later load.

    Its instructions are those of `sm_100a` one for one, so inspection and emulation of one hold for
    both. Code for `sm_103a` is scheduled differently.
    """

    arch = "sm_100f"
    gpu = "Blackwell Ultra"
