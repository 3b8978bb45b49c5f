"""Which tiles a kernel visits: the classes of `program.tile_classes`, evaluated on the device.

A warp decides about 32 tiles at a time, one a lane, and takes the hull of those that count. No
block mask is made, and nothing is read on the host.
"""

from collections.abc import Sequence
from typing import Any

from cutlass import Int32, cute

from ...program.expr import Expr
from ...program.tails import still
from .classes import ENDS, TileSize
from .config import KernelConfig
from .program import Program, address, element, of_kind
from .values import Fixed, Pair, is_literal, larger, smaller

LANES = 32
NAMES = ("p", "ds")  # of terms, as `still` has them
Span = tuple[Any, Any]  # the first and the last position of a tile


class TileClass(Fixed):
    """A condition on tiles, as a function of where a tile lies. term: of `classify`. tables: the
    numbers of the operands whose tables follow the operands in aux. size: of a tile."""

    def __init__(
        self, term: Expr, config: KernelConfig, aux: Any, scalars: Any, tables: Sequence[int],
        size: TileSize,
    ) -> None:  # fmt: skip
        self.program, self.size = Program(config, aux, scalars, [term]), size
        own = aux[len(config.aux) :] if tables else ()
        self.tables = dict(zip(tables, own, strict=True))

    def holds(self, batch: Any, head: Any, q_idx: Span, kv_idx: Span) -> Any:
        """Whether it holds for the tile of these positions; a bool if that is constant."""
        places = {"b": batch, "h": head}
        bounds = {
            "q_idx_lo": q_idx[0], "q_idx_hi": q_idx[1],
            "kv_idx_lo": kv_idx[0], "kv_idx_hi": kv_idx[1],
        }  # fmt: skip
        # A tile that there is lies in one cell of a table; any will do for others.
        cells = {
            "q_idx": larger(q_idx[1], 0) // self.size.rows,
            "kv_idx": larger(kv_idx[1], 0) // self.size.cols,
        }

        def operand(node: Expr) -> Pair:
            if node.op not in ENDS:
                return Pair(self.program.read(node, places))
            number = int(node.value or 0)
            access = self.program.mod.aux[number].access
            place = address(self.tables[number], access, {**places, **cells})
            return Pair(of_kind(node, element(place + ENDS.index(node.op)), self.program.wide))

        (value,) = self.program.evaluate({**places, **bounds}, operand)
        return value if is_literal(value) else value.lanes[0]


def ends_are_bare(config: KernelConfig, *variants: Sequence[Expr]) -> bool:
    """Whether no variant of the terms needs a mask past the ends. Each is P, or P and dS.

    Programs with operands keep it: these must not be read past their ends.
    """
    names = NAMES[: len(variants[0])]
    return config.bare_ends and not config.aux and still(names, variants) == set(names)


def span(first: Any, count: int, length: Any) -> Span:
    """`count` positions from `first` on, as far as they exist."""
    return first, smaller(first + (count - 1), length - 1)


def lowest(bits: Any) -> Any:
    """The number of the lowest bit of a vote."""
    return cute.arch.popc((bits & -bits) - 1)


def past(bits: Any) -> Any:
    """The number of the highest bit of a vote, plus one."""
    return LANES - Int32(cute.arch.clz(bits))
