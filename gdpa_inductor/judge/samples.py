"""The samples of an evaluation: coordinates of scores, and values of roots, for each lane.

The value of a root depends only on its address and the lane. So it is the same wherever it is read,
and deterministic. Each lane is a case. In most lanes floats are ordinary; in others they are
special (0, -0, infinities, NaN, subnormal, huge). Integers and some floats are chosen near numbers
at which a mask may change.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

CASES = 512
VARIANTS = 3  # each case stands in the lanes three times: `compare` moves the score by a rounding
COUNT = VARIANTS * CASES
_ORDINARY = 352  # cases without special values
_SPECIAL_OPERANDS = 440  # from here on operands are special too, not only scores


def cases() -> Tensor:
    """The number of the case in each lane."""
    return torch.arange(CASES).repeat(VARIANTS)


def mixed(first: Tensor, *parts: Tensor | int) -> Tensor:
    """A hash of integers, lane by lane; not negative."""
    bits = first * 0x2127599BF4325C37
    for part in parts:
        bits = (bits ^ (bits >> 29) ^ part) * 0x2127599BF4325C37
    return (bits ^ (bits >> 31)) & 0x7FFFFFFFFFFFFFFF


@functools.cache
def _specials(dtype: torch.dtype) -> Tensor:
    about = torch.finfo(dtype)
    return torch.tensor(
        [0.0, -0.0, float("inf"), float("-inf"), float("nan"), about.smallest_normal / 4,
         about.max / 1024, -about.max / 1024, 1.0, -1.0], dtype=torch.float64
    )  # fmt: skip


@dataclass
class Lanes:
    """The cases of one evaluation.

    whole:     Lanes in which floats are whole numbers.
    based:     Lanes in which whole numbers are close together, near `base`. There a narrower dtype
               would tie or wrap.
    around:    For each lane, integers near which something may change: sizes, positions, literals.
    sequence:  For each lane, the sequence that jagged rows belong to. None if nothing is jagged.
    total:     About how many jagged rows there are.
    step:      About how many rows a sequence has; in some lanes, the most that it may have.
    """

    seed: int
    around: Tensor | None = None
    sequence: Tensor | None = None
    total: int = 1
    step: tuple[int, int] = (1, 1)
    offsets: set[Any] = field(default_factory=set)
    _naming: bool = False

    def __post_init__(self) -> None:
        self.lane = cases()
        drawn = self.hash("base")
        self.base = torch.tensor(_BASES)[drawn % len(_BASES)]
        # Other bits of one hash make independent choices.
        self.based, self.whole = (drawn >> 8) % 4 == 0, (drawn >> 16) % 2 == 0
        self._drawn: dict[Any, Tensor] = {}
        self._alive: list[Tensor] = []  # so that an `id` is that of one address
        self._settled: set[Any] = set()
        self._shift: Tensor | None = None
        self.special_scores = self.lane >= _ORDINARY
        self.special_operands = self.lane >= _SPECIAL_OPERANDS

    @contextlib.contextmanager
    def offsets_named(self, named: bool = True) -> Iterator[None]:
        """Roots that are drawn meanwhile are offsets, which rise, or are none."""
        outer, self._naming = self._naming, named
        yield
        self._naming = outer

    def hash(self, key: Any, *parts: Tensor | int) -> Tensor:
        return mixed(self.lane + zlib.crc32(repr(key).encode()), self.seed, *parts)

    def draw(self, key: Any, address: Tensor, dtype: torch.dtype) -> Tensor:
        """The elements of a root."""
        # By identity: comparing addresses would cost more than drawing. `_alive` keeps each of
        # them, so that no other tensor gets its `id`.
        known = (key, id(address), dtype)
        if known not in self._drawn:
            self._alive.append(address)
            self._drawn[known] = self._shifted(key, address, self._draw(key, address, dtype))
        return self._drawn[known]

    @property
    def drawn(self) -> set[Any]:
        """The roots that were drawn so far."""
        return {key for key, _, _ in self._drawn}

    def shifted(self, shift: Tensor, settled: set[Any]) -> Lanes:
        """The same lanes, where about half of the numbers of other roots than `settled` are shifted
        by so much, lane by lane.
        """
        lanes = copy.copy(self)
        lanes._shift, lanes._settled = shift, settled
        lanes._drawn = {k: v for k, v in self._drawn.items() if k[0] in settled}
        return lanes

    def _shifted(self, key: Any, address: Tensor, drawn: Tensor) -> Tensor:
        fixed = key in self._settled or key in self.offsets
        if self._shift is None or fixed or drawn.dtype == torch.bool or drawn.dtype.is_complex:
            return drawn
        chosen = (self._shift != 0) & (self.hash(("move", key), address) % 2 == 0)
        wide = torch.float64 if drawn.is_floating_point() else torch.int64
        shifted = (drawn.to(wide) + self._shift.to(wide)).to(drawn.dtype)
        return torch.where(chosen, shifted, drawn)

    def _draw(self, key: Any, address: Tensor, dtype: torch.dtype) -> Tensor:
        drawn = self.hash(key, address)
        if dtype == torch.bool:
            return (drawn >> 7) % 2 == 0
        if dtype.is_floating_point:
            return self._whole(drawn, self.reals(drawn, dtype, self.special_operands))
        if dtype.is_complex:
            return torch.complex(
                *(self.reals(drawn >> k, torch.float64, self.special_operands) for k in (0, 9))
            ).to(dtype)
        if self._naming:
            self.offsets.add(key)
        if key in self.offsets:  # rising, and 0 at first; the same in all lanes but for jitter
            step = torch.where(self.hash("step") % 4 == 0, *self.step[::-1])
            jitter = self.hash(("jitter", key), address) % (step + 1)
            return torch.where(address > 0, address * step + jitter, 0).to(dtype)
        return self._integers(drawn).to(dtype)

    def reals(self, drawn: Tensor, dtype: torch.dtype, special: Tensor) -> Tensor:
        """Real numbers: of different sizes in ordinary lanes."""
        unit = ((drawn >> 11) % (1 << 20)).double() / (1 << 19) - 1.0
        size = torch.tensor([0.5, 3.0, 3.0, 30.0], dtype=torch.float64)[(drawn >> 5) % 4]
        table = _specials(dtype)
        chosen = table[(drawn >> 9) % len(table)]
        odd = special & ((drawn >> 3) % 3 != 0)
        return torch.where(odd, chosen, unit * size).to(dtype)

    def _whole(self, drawn: Tensor, reals: Tensor) -> Tensor:
        """Some of the ordinary ones as integers: reals may hold lengths and positions."""
        if self.around is None:
            return reals
        near = self._near(self.around, drawn)
        near = torch.where(self.based, self._based(drawn), near)
        fits = near.abs() < 1 << 15 if reals.dtype.itemsize < 4 else near.abs() < 1 << 54
        chosen = self.whole & ~self.special_operands & ((drawn >> 33) % 8 != 0) & fits
        return torch.where(chosen, near.to(reals.dtype), reals)

    def _near(self, around: Tensor, drawn: Tensor) -> Tensor:
        """One of the integers of a lane, or its neighbour."""
        jitter = torch.where((drawn >> 50) % 4 == 0, (drawn >> 42) % 3 - 1, 0)
        return around[torch.arange(COUNT), (drawn >> 4) % around.shape[1]] + jitter

    def _based(self, drawn: Tensor) -> Tensor:
        return self.base + (drawn >> 45) % 5 - 2

    def _integers(self, drawn: Tensor) -> Tensor:
        small = drawn % 7
        if self.around is None:
            return small
        near = self._near(self.around, drawn)
        far = torch.tensor(_FAR)[(drawn >> 9) % len(_FAR)]
        kind = (drawn >> 21) % 16
        integers = torch.where(kind < 10, near, torch.where(kind < 14, small, far))
        return torch.where(self.based & (kind < 13), self._based(drawn), integers)


# Where the widths of types end: 8 bits, bf16, fp16, fp32, seconds of today, milliseconds, fp64.
_BASES = [127, 256, 512, 2048, 2**24, 2**25, 1_700_000_000, 2**31, 1_700_000_000_000, 2**53]
_FAR = [
    -1, -2, 127, 128, 255, 256, 257, 2**15, 2**16, 2**24 + 1, 2**31 - 1, 2**31, -(2**31), 2**32 + 5,
    2**40 + 3, 2**53 + 1, 2**63 - 1, -(2**63),
]  # fmt: skip


def positions(
    sizes: Sequence[int], seed: int, key: str, interesting: Iterable[int]
) -> list[Tensor]:
    """An index into a tensor of these sizes for each lane: anywhere, at the ends, and beside
    integers that the graph names.
    """
    index = []
    beside = {0, -1, *(x + d for x in interesting for d in (-1, 0, 1))}
    for dim, size in enumerate(sizes):
        drawn = mixed(cases() + zlib.crc32(key.encode()), seed, dim)
        known = sorted({x % max(size, 1) for x in beside if abs(x) <= size + 1})
        named = torch.tensor(known)[(drawn >> 8) % len(known)]
        spread = torch.maximum((drawn >> 5) % size, (drawn >> 33) % size)  # widths end far out
        index.append(torch.where((drawn >> 3) % 4 == 0, named, spread))
    return index


def near(row: Tensor, size: int, seed: int, interesting: Iterable[int]) -> Tensor:
    """Another position for each lane: anywhere, near the row, or at a distance that the graph
    names, or beside it.
    """
    drawn = mixed(cases() + 77, seed, 5)
    distances = sorted({abs(x + d) for x in (0, *interesting) for d in (-1, 0, 1)})
    apart = torch.tensor([x for x in distances if x < max(size, 3)])
    apart = apart[(drawn >> 9) % len(apart)] * ((drawn >> 17) % 2 * 2 - 1)
    close = inside(row + apart, size, inside(row - apart, size, (drawn >> 6) % size))
    ends = torch.where((drawn >> 4) % 2 == 0, 0, size - 1)
    kind = (drawn >> 21) % 8
    return torch.where(kind < 5, close, torch.where(kind < 6, ends, (drawn >> 6) % size))


def inside(position: Tensor, size: int, otherwise: Tensor) -> Tensor:
    """Positions where they are in a dimension of this size, else others."""
    return torch.where((position >= 0) & (position < size), position, otherwise)


def bytes_of(tensor: Tensor) -> bytes:
    """The elements of a real tensor on the CPU. NumPy would do, but torch needs none."""
    dense = tensor.contiguous()
    return ctypes.string_at(dense.data_ptr(), dense.nbytes)
