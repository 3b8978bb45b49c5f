"""Which tiles a kernel visits: the conditions of `program.tile_classes`, evaluated on the device.

A warp classifies 32 tiles at a time, one in each lane. It then visits the hull: all tiles from the
first to the last that is not empty. There is no block mask in memory, and the host reads nothing.
"""

from collections.abc import Sequence
from typing import Any

from cutlass import Boolean, Int32, cute

from ...program.expr import Expr
from ...program.tails import still
from .config import ENDS, KernelConfig, TileSize
from .operands import KernelArguments
from .program import Program, address, element, of_kind
from .values import Fixed, Pair, is_literal, larger, smaller

LANES = 32
Span = tuple[Any, Any]  # the first and the last position of a tile along one side


class TileClass(Fixed):
    """A condition on tiles, such as "this tile is empty". tables: The operands that have tables."""

    def __init__(
        self,
        term: Expr,
        config: KernelConfig,
        x: KernelArguments,
        tables: Sequence[int],
        size: TileSize,
    ) -> None:
        self.program, self.size = Program(config, x, [term]), size
        own = x.aux[len(config.aux) :] if tables else ()
        self.tables = dict(zip(tables, own, strict=True))

    def holds(self, batch, head, q_idx: Span, kv_idx: Span):
        """Whether the condition holds for the tile at these positions.

        The result is a Python bool if it is the same for all tiles.
        """
        places = {"b": batch, "h": head}
        names = ("q_idx_lo", "q_idx_hi", "kv_idx_lo", "kv_idx_hi")
        bounds = dict(zip(names, (*q_idx, *kv_idx), strict=True))
        # Each existing tile has one cell of a table. Other tiles may read any cell.
        cells = {
            "q_idx": larger(q_idx[1], 0) // self.size.rows,
            "kv_idx": larger(kv_idx[1], 0) // self.size.cols,
        }

        def operand(node: Expr) -> Pair:
            if node.op not in ENDS:
                return Pair(self.program.read(node, places))
            number = node.value
            access = self.program.mod.aux[number].access
            place = address(self.tables[number], access, {**places, **cells})
            return Pair(of_kind(node, element(place + ENDS.index(node.op)), self.program.wide))

        (value,) = self.program.evaluate({**places, **bounds}, operand)
        return value if is_literal(value) else value.lanes[0]


def both(inside, full):
    # inside & full, where `full` may be a Python bool.
    if is_literal(full):
        return inside if full else Boolean(False)
    return inside & full


def ends_are_bare(config: KernelConfig, names: Sequence[str], *variants: Sequence[Expr]) -> bool:
    # Whether the kernel may omit the mask past the end of a sequence (`KernelConfig.bare_ends`).
    # names: Those that `still` gives to the terms. variants: The terms that the kernel evaluates on
    # different tiles: P, or P and the term of row sums, or P and dS.
    # Programs with aux operands keep the mask, because operands must not be read past their ends.
    names = names[: len(variants[0])]
    return config.bare_ends and not config.aux and still(names, variants) == set(names)


def span(first, count: int, length) -> Span:
    """The span of `count` positions from `first` on, cut at the end of the sequence."""
    return first, smaller(first + (count - 1), length - 1)


def lowest(bits):
    """The lowest lane whose bit is set in the result of a vote."""
    return cute.arch.popc((bits & -bits) - 1)


def past(bits):
    """The highest lane whose bit is set in the result of a vote, plus one."""
    return LANES - Int32(cute.arch.clz(bits))
