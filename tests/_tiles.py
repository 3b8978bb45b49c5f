"""Tiles by brute force: what `classify` says, and what every element says."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from gdpa_inductor.program.expr import AXES, Expr, fold, torch_apply
from gdpa_inductor.program.tile_classes import TILE, TileClasses


@dataclass
class Grid:
    """Scores [B, H, M, N] cut into tiles of some rows and columns, and what programs read there.

    An aux operand is given on its axes: [B|1, H|1, M|1, N|1].
    """

    sizes: tuple[int, int, int, int]
    tile: tuple[int, int]
    aux: Sequence[torch.Tensor] = ()
    scalars: Sequence[int] = ()
    scores: dict[str, torch.Tensor] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32

    def elements(self, terms: Sequence[Expr]) -> list[torch.Tensor]:
        """The terms at every element, [B|1, H|1, M|1, N|1]."""

        def leaf(node: Expr) -> torch.Tensor:
            if node.op in AXES:
                return self._along(torch.arange(self.sizes[AXES.index(node.op)]), node.op)
            if node.op in self.scores:
                return self.scores[node.op].to(self.dtype)
            return self._aux(node) if node.op == "aux" else self._number(node)

        return fold(terms, leaf, torch_apply(self.dtype))

    def classes(self, terms: Sequence[Expr]) -> list[torch.Tensor]:
        """The terms over tile bounds at every tile, [B, H, row tiles, column tiles]."""

        def leaf(node: Expr) -> torch.Tensor:
            if node in TILE.values():
                axis, _, end = node.op.rpartition("_")
                size, step = self.sizes[AXES.index(axis)], self.tile[AXES.index(axis) - 2]
                first = torch.arange(0, size, step)
                ends = first if end == "lo" else (first + step).clamp(max=size) - 1
                return self._along(ends, axis)
            if node.op in ("b", "h"):
                return self._along(torch.arange(self.sizes[AXES.index(node.op)]), node.op)
            if node.op in ("aux_lo", "aux_hi"):
                return self.tiles(self._aux(node), node.op)
            return self._aux(node) if node.op == "aux" else self._number(node)

        grid = [*self.sizes[:2], *(-(-s // t) for s, t in zip(self.sizes[2:], self.tile))]
        return [v.expand(grid) for v in fold(terms, leaf, torch_apply(self.dtype))]

    def verdicts(self, classes: TileClasses) -> tuple[torch.Tensor, torch.Tensor]:
        zero, full = self.classes([classes.zero, classes.full])
        return zero, full

    def tiles(self, values: torch.Tensor, how: str) -> torch.Tensor:
        """[.., .., M|1, N|1] over the tiles: "all", "any", "aux_lo" (the smallest), "aux_hi"."""
        reduce = {"all": torch.amin, "any": torch.amax, "aux_lo": torch.amin, "aux_hi": torch.amax}
        values = values[(None,) * (len(AXES) - values.dim())]
        for dim, step in zip((2, 3), self.tile):
            if values.shape[dim] > 1:
                parts = values.split(step, dim)
                values = torch.cat([reduce[how](p, dim, keepdim=True) for p in parts], dim)
        return values

    def _along(self, values: torch.Tensor, axis: str) -> torch.Tensor:
        return values.view([-1 if name == axis else 1 for name in AXES])

    def _aux(self, node: Expr) -> torch.Tensor:
        tensor = self.aux[int(node.value)]
        return tensor.to(self.dtype) if node.kind == "f" else tensor

    def _number(self, node: Expr) -> torch.Tensor:
        value = self.scalars[int(node.value)] if node.op == "scalar" else node.value
        return torch.tensor(
            value, dtype={"f": self.dtype, "i": torch.int64, "b": torch.bool}[node.kind]
        )
