"""The tiled products of the backward, the layouts of their operands, the columns of tensor memory.

By operand: "A" of the score product and the gradient it gives, "B" of the gradient product.
"""

from typing import Any

from cutlass import Float32
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05
from cutlass.utils import blackwell_helpers

from ...config import SHARED_MEMORY
from ...program import DTYPES
from ..config import COLS, ROWS, TMEM_COLUMNS, Sm100Config

MOST_STAGES = 3  # of streamed B; A, which is read last by the sum of dS, has one more
BARRIERS = 2048  # bytes, and what aligning the tiles takes
HALF = COLS // 2  # of the columns, for each activation warpgroup
PART = 32  # columns of it that are activated, and handed over, at a time
PARTS = HALF // PART


class Shapes:
    """What follows from a configuration and a side.

    summed: the operands whose gradient the side sums. buffers: of scores; with two, the scores of
    the next step are made while those of this step are activated. gradients, sums: first columns.
    rings: how many slots what has several has.
    """

    def __init__(self, config: Sm100Config, keys: bool) -> None:
        self.dtype = DTYPES[config.dtype]
        self.dims = {"A": config.head_dim, "B": config.value_dim}
        self.widths = {"A": config.padded_head_dim, "B": config.padded_value_dim}
        self.summed = ("A", "B") if keys else ("A",)
        free = TMEM_COLUMNS - sum(self.widths[name] for name in self.summed)
        self.buffers = min(2, free // COLS - 1)
        self.gradients = COLS * self.buffers
        first = self.gradients + COLS
        self.sums = {"A": first, "B": first + self.widths["A"]}
        weights = self.buffers * PARTS if keys else 0
        self.rings = {**self.stages(), "S": self.buffers, "P": weights}

    def stages(self) -> dict[str, int]:
        """Of the streamed operands, as many as fit beside the resident ones."""
        a, b = (2 * ROWS * self.widths[name] for name in "AB")
        stages = min(MOST_STAGES, (SHARED_MEMORY - BARRIERS - 2 * a - b) // (a + b))
        return {"A": stages + 1, "B": stages}

    def score(self, name: str) -> Any:
        """rX tXᵀ: both from shared memory, head dim contiguous."""
        return self._product(OperandMajorMode.K, COLS, tcgen05.OperandSource.SMEM)

    def sum(self, name: str) -> Any:
        """acc += W tX: W from tensor memory; tX is the same tile, read the other way."""
        source = tcgen05.OperandSource.TMEM
        return self._product(OperandMajorMode.MN, self.widths[name], source)

    def _product(self, major: Any, columns: int, source: Any) -> Any:
        k, one = OperandMajorMode.K, tcgen05.CtaGroup.ONE
        return blackwell_helpers.make_trivial_tiled_mma(
            self.dtype, self.dtype, k, major, Float32, one, (ROWS, columns), source
        )

    def tiler(self, name: str) -> tuple[int, int, int]:
        return ROWS, COLS, self.widths[name]

    def layout(self, name: str, stages: int) -> Any:
        """Tiles [128, width] in shared memory, swizzled."""
        make = blackwell_helpers.make_smem_layout_b
        return make(self.score(name), self.tiler(name), self.dtype, stages)

    def transposed(self, name: str, stages: int) -> Any:
        """The same tiles as operand of the product that sums over their rows."""
        tiler = (ROWS, self.widths[name], COLS)
        return blackwell_helpers.make_smem_layout_b(self.sum(name), tiler, self.dtype, stages)
