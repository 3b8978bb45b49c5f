"""Sums of the stored gradients of scores where a side is jagged (`stored`), in one order."""

import functools
from typing import Any

from torch import Tensor

from .. import disk
from ..launcher import WordLauncher
from ..plan import name
from ..runtime import Kernel
from .stored import StoredScores

MOST = 65535  # heads or slots: CTAs along a dimension of a grid other than the first


def add_tiles(
    stored: StoredScores, total: Tensor, axes: frozenset[str], factor: float, adds: bool, arch: str,
    stream: int,
) -> None:  # fmt: skip
    """total [B|1, H|1, C, N'] = factor · the sums of chunks of rows, C of them; with `adds`, plus
    what is there, in fp32. axes: "b" if each sequence has its own, "h" if each head has."""
    given = (factor, "b" in axes, "h" in axes, stored.tiling)
    chunks, rows = total.shape[2], stored.scores.shape[2]
    shares = (chunks, -(-rows // chunks), int(adds))
    words = (*_addresses(stored, total), *stored.sizes, *shares, stream)
    form = (name(stored.scores.dtype), name(total.dtype), arch)
    _launcher("tiles", given, form, len(words))(*words)


def add_rows(stored: StoredScores, total: Tensor, factor: float, arch: str, stream: int) -> None:
    """total [B, H, M] = factor · the sum of each row, in fp32, of the stored sequences."""
    given = (factor, stored.tiling)
    words = (*_addresses(stored, total), *stored.sizes, stream)
    form = (name(stored.scores.dtype), "float32", arch)
    _launcher("rows", given, form, len(words))(*words)


def _addresses(stored: StoredScores, total: Tensor) -> list[int]:
    return [x.data_ptr() for x in (stored.scores, total, stored.hulls, stored.order)]


@functools.cache
def _launcher(
    kind: str, given: tuple[Any, ...], form: tuple[str, str, str], words: int
) -> WordLauncher:
    """Of a kind of sums, made of what is given. form: dtypes and architecture. words: that it
    takes."""

    def compiled() -> Any:
        from . import jagged_sums

        return jagged_sums.compiled(kind, given, *form)

    return WordLauncher(Kernel(disk.kept(compiled, kind, *given, *form)), words)
