"""Launch the kernels that sum the stored gradients of scores of jagged sequences (`stored`).

Each sum has a fixed order.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..launcher import word_launcher
from ..plan import name
from .stored import StoredScores

MOST = 65535  # heads or slots: the most CTAs along the second or third dim of a grid


def add_tiles(
    stored: StoredScores, total: Tensor, axes: frozenset[str], factor: float, adds: bool, arch: str,
    stream: int,
) -> None:  # fmt: skip
    """total [B or 1, H or 1, C, N'] = factor · the sum of each of C chunks of rows.

    N' is N rounded up to a multiple of 8.

    Args:
        axes: Has "b" if `total` has a batch dim, and "h" if it has a head dim.
        adds: Add to what `total` holds. It is fp32 then.
    """
    arguments = (factor, "b" in axes, "h" in axes, stored.tiling)
    chunks, rows = total.shape[2], stored.scores.shape[2]
    shares = (chunks, -(-rows // chunks), int(adds))
    words = (*_addresses(stored, total), *stored.sizes, *shares, stream)
    form = (name(stored.scores.dtype), name(total.dtype), arch)
    _launch("tiles", arguments, form, words)


def add_rows(stored: StoredScores, total: Tensor, factor: float, arch: str, stream: int) -> None:
    """total [B, H, M] = factor · the sum of each row, in fp32, for the stored sequences."""
    arguments = (factor, stored.tiling)
    words = (*_addresses(stored, total), *stored.sizes, stream)
    form = (name(stored.scores.dtype), "float32", arch)
    _launch("rows", arguments, form, words)


def _launch(kind: str, arguments: Any, form: Any, words: Sequence[int]) -> None:
    word_launcher("backward.jagged_sums", len(words), kind, arguments, *form)(*words)


def _addresses(stored: StoredScores, total: Tensor) -> list[int]:
    return [x.data_ptr() for x in (stored.scores, total, stored.hulls, stored.order)]
