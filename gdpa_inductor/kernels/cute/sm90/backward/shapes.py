"""The tiled products of the backward, and the tiles of their operands in shared memory."""

from typing import Any

from cutlass import Float32, cute

from ...values import DTYPES
from ..config import COLS, Sm90Config
from ..wgmma import MN, REGISTERS, K, staged, tile_layout, tiled
from .roles import GROUPS, STAGES

HALF = COLS // GROUPS  # the keys of a warpgroup, and the columns of dQ that it multiplies


class HopperShapes:
    """The shapes that a configuration decides. rows: The rows of a query tile."""

    def __init__(self, config: Sm90Config) -> None:
        self.dtype, self.rows = DTYPES[config.dtype], config.query_rows
        # Whole swizzle atoms. Tiles of 128 columns caused an illegal access at head dims up to 64
        # if both sides were jagged; the cause is not known.
        self.width = HALF if config.head_dim <= HALF else COLS
        self.value_width = config.padded_value_dim
        self.columns = -(-config.head_dim // HALF)  # into how many parts of 64 columns dQ is cut
        heights = {"k": COLS, "v": COLS, "q": self.rows, "o": self.rows}
        widths = {"k": self.width, "q": self.width, "v": self.value_width, "o": self.value_width}
        self.tiles = {name: (heights[name], widths[name]) for name in "kvqo"}
        self.tiles["s"] = (self.rows, COLS)
        self.scores, self.dq = (COLS, self.rows), (COLS, self.rows)
        self.dk, self.dv = (COLS, self.width), (COLS, self.value_width)
        rows, kind = self.rows, self.dtype
        self.products = {
            "scores": tiled(kind, rows, K, groups=GROUPS),
            "dv": tiled(kind, self.value_width, MN, REGISTERS, groups=GROUPS),
            "dk": tiled(kind, self.width, MN, REGISTERS, groups=GROUPS),
            "dq": tiled(kind, rows, K, a_major=MN, groups=GROUPS),
            "dq alone": tiled(kind, rows, K, a_major=MN),
            "dv alone": tiled(kind, self.value_width, MN, REGISTERS),
            "dk alone": tiled(kind, self.width, MN, REGISTERS),
        }

    def layouts(self) -> dict[str, Any]:
        """The layouts of the buffers in shared memory, with their stages."""
        layouts = {name: staged(self.layout(name), STAGES[name]) for name in "kvqo"}
        # K with as many columns as two warpgroups multiply. Columns past the end of K go to columns
        # of dQ that are not stored.
        layouts["kt"] = staged(tile_layout(self.dtype, COLS, COLS), 1)
        layouts["s"] = staged(self.layout("s"), 2)  # dS
        layouts["d"] = staged(tile_layout(Float32, self.rows, HALF), GROUPS)  # dQ, fp32
        layouts["c"] = staged(self.plain, self.columns)  # sums of dQ that are being converted
        for name, width in (("gk", self.width), ("gv", self.value_width)):
            layouts[name] = staged(tile_layout(self.dtype, HALF, width), GROUPS)
        return layouts

    @property
    def plain(self):
        # 64 columns of dQ without a swizzle, as the conversion reads them
        return cute.make_layout((self.rows, HALF), stride=(HALF, 1))

    def layout(self, name: str):
        """The layout of one tile of an operand."""
        return tile_layout(self.dtype, *self.tiles[name])
