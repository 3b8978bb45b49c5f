"""Padding that trains, and jagged operands: what tests of the jagged form are made of.

ATen's padding functions have no derivative, so models wrap them, as `Pad` and `Unpad` of the
benchmarks do. On the CPU ATen unpads only what was not cut off, so lengths stay below the padded
length here.
"""

from collections.abc import Mapping, Sequence

import torch

from benchmarks.jagged import Pad, Unpad
from tests.operands import make_operands

aten = torch.ops.aten


class PadOnes(Pad):
    """Padding with ones past the end."""

    @staticmethod
    def forward(ctx, values, offsets, n):
        ctx.save_for_backward(offsets)
        ctx.total = values.shape[0]
        return aten._jagged_to_padded_dense_forward(values, [offsets], [n], 1.0)


def pad(values: torch.Tensor, offsets: torch.Tensor, n: int) -> torch.Tensor:
    """[L, ...] -> [B, n, ...]."""
    flat = Pad.apply(values.reshape(values.shape[0], -1), offsets, n)
    return flat.reshape(-1, n, *values.shape[1:])


def unpad(padded: torch.Tensor, offsets: torch.Tensor, length: int) -> torch.Tensor:
    """[B, n, ...] -> [L, ...]."""
    flat = Unpad.apply(padded.reshape(*padded.shape[:2], -1), offsets, length)
    return flat.reshape(length, *padded.shape[2:])


def _places(offsets: torch.Tensor, n: int) -> torch.Tensor:
    """[B, n]: the row of the values that lies at each place; -1 past the end of a sequence."""
    starts, ends = offsets[:-1, None].long(), offsets[1:, None].long()
    if bool((starts > ends).any()) or int(starts[0]) != 0:
        raise ValueError("no fp64 form of padding by offsets that are none")
    rows = starts + torch.arange(n)
    return torch.where(rows < ends, rows, -1)


def indexed_pad(
    values: torch.Tensor,
    offsets: list[torch.Tensor],
    max_lengths: list[int],
    padding_value: float = 0.0,
) -> torch.Tensor:
    """fbgemm.jagged_to_padded_dense in any dtype: values [L, E] -> [B, n, E]."""
    rows = _places(offsets[0], max_lengths[0])
    inside = (rows >= 0).view(*rows.shape, *[1] * (values.dim() - 1))
    return torch.where(inside, values[rows.clamp(min=0)], padding_value)


def indexed_unpad(
    padded: torch.Tensor, offsets: list[torch.Tensor], total: int | None = None
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """fbgemm.dense_to_jagged: padded [B, n, E] -> values [L, E], zeros where nothing was padded."""
    rows = _places(offsets[0], padded.shape[1])
    total = int(offsets[0][-1]) if total is None else total
    values = padded.new_zeros(total, *padded.shape[2:])
    return values.index_put([rows[rows >= 0]], padded[rows >= 0]), offsets


def offsets_of(lengths: Sequence[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """[0, l0, l0+l1, ...]."""
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype)


def jagged_operands(
    specs: Mapping[str, str],
    lengths: Sequence[int],
    sizes: Mapping[str, int],
    *,
    dtype: torch.dtype = torch.float64,
    offsets: torch.dtype = torch.int64,
) -> dict[str, object]:
    """Operands of `specs`, in which `l` is the sum of the lengths and `b` their number, and
    `offsets` or `lengths` where they are named, `other` being offsets of the lengths in reverse.
    """
    sizes = {**sizes, "l": sum(lengths), "b": len(lengths)}
    special = {
        "offsets": offsets_of(lengths, offsets),
        "other": offsets_of(lengths[::-1], offsets),
        "lengths": torch.tensor(lengths),
    }
    plain = {name: spec for name, spec in specs.items() if spec not in special}
    operands = make_operands(plain, sizes, dtype=dtype)
    return {
        name: special[spec] if spec in special else operands[name] for name, spec in specs.items()
    }
