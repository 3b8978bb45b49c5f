"""What a kernel for Hopper is a function of. No cutlass here."""

from dataclasses import dataclass

from .. import config
from ..config import SHARED_MEMORY, TILES

ROWS, COLS = 64, 128  # a score tile: what a warpgroup multiplies, 64 fp32 registers
BARRIERS = 2048  # bytes for mbarriers, records and alignment


@dataclass(frozen=True)
class Sm90Config(config.KernelConfig):
    """The same, with the buffers that there is room for."""

    folder = "sm90"
    arch = "sm_90a"
    gpu = "Hopper"
    rows = ROWS
    cols = COLS
    max_dim = 128
    rivalled = True
    clears = True
    bare_ends = True
    stores = True

    @property
    def query_rows(self) -> int:
        """Of a query tile of the backward. More make a step worth its waits. They have to fit into
        the registers beside dK and dV: 112 would spill."""
        return 96 if max(self.padded_head_dim, self.padded_value_dim) <= 64 else ROWS

    @property
    def query_stages(self) -> int:
        """Two for each query tile: the next tile's are loaded while this one is multiplied."""
        return 2 * TILES

    @property
    def key_stages(self) -> int:
        """As many as fit beside the query tiles and the output, up to 6."""
        stage = 2 * COLS * max(self.padded_head_dim, self.padded_value_dim)
        queries = 2 * ROWS * self.padded_head_dim * self.query_stages
        output = 2 * ROWS * self.padded_value_dim * TILES
        return min(6, (SHARED_MEMORY - BARRIERS - queries - output) // stage)
