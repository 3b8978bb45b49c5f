"""What a kernel for Blackwell is a function of. No cutlass here."""

from dataclasses import dataclass, replace

from .. import config
from ..config import BOX, SHARED_MEMORY

ROWS = COLS = BOX  # a score tile: 128 lanes of tensor memory, 128 fp32 columns
TMEM_COLUMNS = 512
SIDES = {"keys": "kv", "rows": "q"}  # the kernels of a backward: which gradients each writes


def stored_by(side: str, stored: int | None) -> int | None:
    """What a side stores of the operand whose gradient is stored."""
    return stored if side == "rows" else None


@dataclass(frozen=True)
class Sm100Config(config.KernelConfig):
    """The same, with the buffers that there is room for."""

    folder = "sm100"
    arch = "sm_100a"
    gpu = "Blackwell"
    rows = ROWS
    max_dim = max_backward_dim = 128
    rivalled = False

    def backward_kernels(
        self, ordered: bool, stored: int | None
    ) -> list[tuple[config.KernelConfig | str, ...]]:
        """A side each. Each sum has one order anyway."""
        return [(replace(self, stored=stored_by(side, stored)), side) for side in SIDES]

    @property
    def output_stages(self) -> int:
        """Two accumulators per query tile where tensor memory has room, so that the next tile does
        not wait for the drain of this one."""
        return 2 if self.padded_value_dim <= 64 else 1

    @property
    def query_stages(self) -> int:
        return 4

    @property
    def key_stages(self) -> int:
        """As many as fit beside the query tiles, up to 6."""
        stage = 2 * COLS * max(self.padded_head_dim, self.padded_value_dim)
        room = SHARED_MEMORY - 2048 - 2 * ROWS * self.padded_head_dim * self.query_stages
        return min(6, room // stage)
