"""An element of a table."""

from __future__ import annotations

import torch
from torch import Tensor

from ..expr import Op
from .arithmetic import VALUES


def looked_up(table: Tensor, index: Tensor) -> Tensor:
    """The elements of a table [..., T] at an index [...]; the other dims broadcast. A place outside
    of the table has NaN.
    """
    shape = torch.broadcast_shapes(table.shape[:-1], index.shape)
    size = table.shape[-1]
    there = index.clamp(0, size - 1).expand(shape).unsqueeze(-1)
    found = table.expand(*shape, size).gather(-1, there).squeeze(-1)
    return torch.where((index >= 0) & (index < size), found, torch.nan)


ROWS = {
    "lookup": Op(
        ("ti>f",), looked_up, "the element of a table at a place; NaN outside of it",
        vjp=lambda g, y, table, index: (g, None), traits=VALUES,
    ),
}  # fmt: skip
