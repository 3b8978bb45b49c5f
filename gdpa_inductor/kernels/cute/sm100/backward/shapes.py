"""The tiled products of the backward, the layouts of their operands, the columns of tensor memory.

"A" are the operands of the score product, "B" those of the gradient product (see `kernel`).

Two warpgroups share the columns of the scores, each in parts of 32:

    warpgroup w, part p    of S and dP: from column 64 p + 32 w    of P and dS: from 32 w + 16 p

So P and dS lie side by side in the first 64 columns of what they overwrite. A part of P or dS has
the place of a first part of S or dP, which the same warpgroup has read.

A pair of CTAs multiplies together. Each CTA has

    rA, rB    its own 128 resident rows
    tA, tB    64 of the streamed rows, for S and dP of both CTAs
    tC, tD    all streamed rows of B and A, half of their columns, for accB and accA
    rD        the resident rows of A of both CTAs, half of their columns, for dQ
    dS        64 of the streamed rows, and all resident ones, for dQ of the former
"""

from cutlass import Float32
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05
from cutlass.utils import blackwell_helpers

from ...config import SHARED_MEMORY
from ...values import DTYPES
from ..config import BOTH, COLS, ROWS, TMEM_COLUMNS, Sm100Config

MOST_STAGES = 3  # buffers of streamed B; A is read for longer, by accA, and has one more
BARRIERS = 2048  # bytes for mbarriers, and for aligning the tiles
COPIES = 2  # buffers of dQ, where the kernel adds it to sums; a pair of CTAs has room for one
HALF = COLS // 2  # columns of each activation warpgroup, and of dQ in a CTA of a pair
NAMES = ("rA", "tA", "rB", "tB")  # the operands that TMA loads, in this order
NAMES_OF_PAIR = (*NAMES, "rD", "tC", "tD")
PART = 32  # columns that a warpgroup activates and hands over at a time
PARTS = HALF // PART


class Shapes:
    """The shapes that a configuration and its side decide."""

    def __init__(self, config: Sm100Config) -> None:
        self.dtype, self.ctas = DTYPES[config.dtype], config.ctas
        self.pair = self.ctas > 1
        keys, self.both = config.kernel != "rows", config.kernel == BOTH
        # the head dims of A and B, and the same padded
        self.dims = {"A": config.head_dim, "B": config.value_dim}
        self.widths = {"A": config.padded_head_dim, "B": config.padded_value_dim}
        if self.pair:
            self.widths["A"] = COLS  # half of them are columns of dQ
        self.names = NAMES_OF_PAIR if self.pair else NAMES
        self.summed = ("A", "B") if keys else ("A",)  # the operands whose gradients the side sums
        # the streamed operand of each of these sums
        self.sources = {"A": "D", "B": "C"} if self.pair else {x: x for x in self.summed}
        self.height = ROWS // self.ctas  # rows of dQ of a step that this CTA adds
        part = self.widths["A"] if self.both and not self.pair else 0  # columns of dQ of a step
        free = TMEM_COLUMNS - sum(self.widths[name] for name in self.summed) - part
        # With two buffers of scores, those of the next step are computed while these are activated.
        self.buffers = min(2, free // COLS - 1)
        self.gradients = COLS * self.buffers  # the first column of dP in tensor memory
        first = self.gradients + COLS
        self.sums = {"A": first, "B": first + self.widths["A"]}  # the first columns of accA, accB
        # The first column of dQ. That of a pair has the columns that dS leaves free.
        self.query = self.gradients + HALF if self.pair else TMEM_COLUMNS - part
        weights = self.buffers * PARTS if keys else 0
        # the stages of each ring
        self.rings = {**self.stages(), "S": self.buffers, "P": weights}
        self.rings |= {"Q": int(self.both), "copies": (1 if self.pair else COPIES) * self.both}

    def stages(self) -> dict[str, int]:
        if self.pair:
            return dict.fromkeys("ABCD", 1)
        # as many buffers of the streamed operands as fit beside the resident ones
        a, b = (2 * ROWS * self.widths[name] for name in "AB")
        # dS, and dQ in fp32
        more = 2 * ROWS * COLS + COPIES * 2 * a if self.both else 0
        room = SHARED_MEMORY - BARRIERS - more
        stages = min(MOST_STAGES, (room - 2 * a - b) // (a + b))
        return {"A": stages + 1, "B": stages, "C": 0, "D": 0}

    def score(self, name: str):
        """The product rX tXᵀ: both operands are in shared memory, with a contiguous head dim."""
        return self._product(OperandMajorMode.K, COLS, tcgen05.OperandSource.SMEM)

    def load(self, part: str):
        """A product whose operand B lies in shared memory as TMA is to load a part of an operand.

        No product of a pair: each CTA loads its own tiles.
        """
        major, one = OperandMajorMode.K, tcgen05.CtaGroup.ONE
        shape = (ROWS, self.tile(part)[0])
        return blackwell_helpers.make_trivial_tiled_mma(
            self.dtype, self.dtype, major, major, Float32, one, shape, tcgen05.OperandSource.SMEM
        )

    def tile(self, part: str) -> tuple[int, int]:
        """(rows, columns) that TMA loads at once."""
        kind, name = part[0], part[1]
        width = self.widths["A" if name in "AD" else "B"]
        if name in "CD":
            return ROWS, width // self.ctas
        return ROWS if kind == "r" else COLS // self.ctas, width

    def sum(self, name: str):
        """The product acc += W tX: W is in tensor memory. tX is the same tile, read transposed."""
        source = tcgen05.OperandSource.TMEM
        return self._product(OperandMajorMode.MN, self.widths[name], source)

    def query_part(self):
        """The product dQ = dSᵀ K: dS is in shared memory, as is K, read transposed."""
        source, major = tcgen05.OperandSource.SMEM, OperandMajorMode.MN
        return self._product(major, self.widths["A"], source, major, COLS)

    def _product(self, major, columns: int, source, left=OperandMajorMode.K, rows: int = 0):
        group = tcgen05.CtaGroup.TWO if self.pair else tcgen05.CtaGroup.ONE
        shape = (rows or self.resident, columns)
        return blackwell_helpers.make_trivial_tiled_mma(
            self.dtype, self.dtype, left, major, Float32, group, shape, source
        )

    @property
    def resident(self) -> int:
        """Resident rows of a tile."""
        return ROWS * self.ctas

    def tiler(self, part: str) -> tuple[int, int, int]:
        """Of the product `load`."""
        return ROWS, *self.tile(part)

    def layout(self, part: str, stages: int):
        make = blackwell_helpers.make_smem_layout_b
        return make(self.load(part), self.tiler(part), self.dtype, stages)

    def buffers_of(self, part: str) -> int:
        """How many tiles of an operand shared memory has."""
        if part[0] == "t":
            return self.rings[part[1]]
        return self.ctas if part == "rD" else 1

    def transposed(self, name: str, stages: int):
        """The layout of the streamed tiles, as the operand of `sum`."""
        tiler = (self.resident, self.widths[name], COLS)
        return blackwell_helpers.make_smem_layout_b(self.sum(name), tiler, self.dtype, stages)

    def turned_keys(self):
        """The layout of the keys, as the operand of `query_part`, as if there were two buffers."""
        tiler = (COLS, self.widths["A"], self.resident)
        return blackwell_helpers.make_smem_layout_b(self.query_part(), tiler, self.dtype, 2)

    def slopes(self):
        """The layout of dS in shared memory, as the operand of `query_part`: streamed rows are
        contiguous.
        """
        tiler = (COLS, self.widths["A"], self.resident)
        return blackwell_helpers.make_smem_layout_a(self.query_part(), tiler, self.dtype, 1)
