"""The tiled products of the backward, the layouts of their operands, the columns of tensor memory.

"A" are the operands of the score product, "B" those of the gradient product (see `kernel`).
"""

from cutlass import Float32
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05
from cutlass.utils import blackwell_helpers

from ...config import SHARED_MEMORY
from ...values import DTYPES
from ..config import BOTH, COLS, ROWS, TMEM_COLUMNS, Sm100Config

MOST_STAGES = 3  # buffers of streamed B; A is read for longer, by accA, and has one more
BARRIERS = 2048  # bytes for mbarriers, and for aligning the tiles
COPIES = 2  # buffers of dQ, where the kernel adds it to sums
HALF = COLS // 2  # columns of each activation warpgroup
PART = 32  # columns that a warpgroup activates and hands over at a time
PARTS = HALF // PART


class Shapes:
    """The shapes that a configuration and its side decide."""

    def __init__(self, config: Sm100Config) -> None:
        self.dtype = DTYPES[config.dtype]
        keys, self.both = config.kernel != "rows", config.kernel == BOTH
        # the head dims of A and B, and the same padded
        self.dims = {"A": config.head_dim, "B": config.value_dim}
        self.widths = {"A": config.padded_head_dim, "B": config.padded_value_dim}
        self.summed = ("A", "B") if keys else ("A",)  # the operands whose gradients the side sums
        part = self.widths["A"] if self.both else 0  # columns of dQ of a step
        free = TMEM_COLUMNS - sum(self.widths[name] for name in self.summed) - part
        # With two buffers of scores, those of the next step are computed while these are activated.
        self.buffers = min(2, free // COLS - 1)
        self.gradients = COLS * self.buffers  # the first column of dP in tensor memory
        first = self.gradients + COLS
        self.sums = {"A": first, "B": first + self.widths["A"]}  # the first columns of accA, accB
        self.query = TMEM_COLUMNS - part  # the first column of dQ
        weights = self.buffers * PARTS if keys else 0
        # the stages of each ring
        self.rings = {**self.stages(), "S": self.buffers, "P": weights}
        self.rings |= {"Q": int(self.both), "C": COPIES * self.both}

    def stages(self) -> dict[str, int]:
        # as many buffers of the streamed operands as fit beside the resident ones
        a, b = (2 * ROWS * self.widths[name] for name in "AB")
        # dS, and dQ in fp32
        more = 2 * ROWS * COLS + COPIES * 2 * a if self.both else 0
        room = SHARED_MEMORY - BARRIERS - more
        stages = min(MOST_STAGES, (room - 2 * a - b) // (a + b))
        return {"A": stages + 1, "B": stages}

    def score(self, name: str):
        """The product rX tXᵀ: both operands are in shared memory, with a contiguous head dim."""
        return self._product(OperandMajorMode.K, COLS, tcgen05.OperandSource.SMEM)

    def sum(self, name: str):
        """The product acc += W tX: W is in tensor memory. tX is the same tile, read transposed."""
        source = tcgen05.OperandSource.TMEM
        return self._product(OperandMajorMode.MN, self.widths[name], source)

    def query_part(self):
        """The product dQ = dSᵀ K: dS is in shared memory, as is K, read transposed."""
        source, major = tcgen05.OperandSource.SMEM, OperandMajorMode.MN
        return self._product(major, self.widths["A"], source, major)

    def _product(self, major, columns: int, source, left=OperandMajorMode.K):
        one = tcgen05.CtaGroup.ONE
        return blackwell_helpers.make_trivial_tiled_mma(
            self.dtype, self.dtype, left, major, Float32, one, (ROWS, columns), source
        )

    def tiler(self, name: str) -> tuple[int, int, int]:
        return ROWS, COLS, self.widths[name]

    def layout(self, name: str, stages: int):
        make = blackwell_helpers.make_smem_layout_b
        return make(self.score(name), self.tiler(name), self.dtype, stages)

    def transposed(self, name: str, stages: int):
        """The layout of the same tiles, as the operand of `sum`."""
        tiler = (ROWS, self.widths[name], COLS)
        return blackwell_helpers.make_smem_layout_b(self.sum(name), tiler, self.dtype, stages)

    def slopes(self):
        """The layout of dS in shared memory, as the operand of `query_part`: streamed rows are
        contiguous.
        """
        tiler = (COLS, self.widths["A"], ROWS)
        return blackwell_helpers.make_smem_layout_a(self.query_part(), tiler, self.dtype, 1)
