"""Which tiles a kernel visits: the classes of `program.tile_classes`, evaluated on the device.

A warp decides about 32 tiles at a time, one a lane, and takes the hull of those that count. No
block mask is made, and nothing is read on the host.
"""

from collections.abc import Sequence
from typing import Any

from cutlass import Int32, cute

from ...program.expr import Expr
from ...program.tails import still
from .config import KernelConfig
from .program import Program
from .values import Fixed, is_literal, pair, smaller

LANES = 32
NAMES = ("p", "ds")  # of terms, as `still` has them
Span = tuple[Any, Any]  # the first and the last position of a tile


class TileClass(Fixed):
    """A condition on tiles, as a function of where a tile lies. term: of `classify`."""

    def __init__(self, term: Expr, config: KernelConfig, aux: Any, scalars: Any) -> None:
        self.program = Program(config, aux, scalars, [term])

    def holds(self, batch: Any, head: Any, q_idx: Span, kv_idx: Span) -> Any:
        """Whether it holds for the tile of these positions; a bool if that is constant."""
        places = {"b": batch, "h": head}
        bounds = {
            "q_idx_lo": q_idx[0], "q_idx_hi": q_idx[1],
            "kv_idx_lo": kv_idx[0], "kv_idx_hi": kv_idx[1],
        }  # fmt: skip
        (value,) = self.program.evaluate(
            {**places, **bounds}, lambda node: pair(self.program.read(node, places))
        )
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
