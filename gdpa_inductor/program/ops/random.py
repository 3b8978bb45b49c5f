"""Random bits of a score, by a counter: the same in every kernel, tiling and direction.

Philox 4x32 with 7 rounds [Salmon et al., SC 2011] has the seed as its key, and as its counter
(q_idx, kv_idx, h, b) without bit 3 of q_idx and bits 0 and 3 of kv_idx. Those choose 16 of the 128
bits, so eight scores share a call. In the tensor cores' layout one thread has all eight, or four of
them where the tile is transposed. So a kernel writes a call for each score, and compilers merge
equal ones.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..expr import INDEX, Expr, Op, call, const
from ..intervals import Interval

ROUNDS = 7
RANGE = 1 << 16
Q_BITS, KV_BITS = 8, 9  # of the positions, which are in no counter
_LOW = 0xFFFFFFFF
# Less 2³², so that no product of theirs exceeds 63 bits: beyond, compiled C++ may do anything. Such
# a product has the same low word, and its high word lacks the other factor.
_FACTORS = (0xD2511F53 - (1 << 32), 0xCD9E8D57 - (1 << 32))
_STEPS = (0x9E3779B9, 0xBB67AE85)
_DRAWS = 1e8  # a rate that so many draws cannot tell from p, within SIGMAS, is p
_SIGMAS = 5.0


def random16(seed: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    """Integers of 16 bits, int64, for integers that broadcast."""
    words = _philox(seed, q_idx & ~Q_BITS, kv_idx & ~KV_BITS, h, b)
    left, right = (torch.where(q_idx & 8 != 0, words[n + 1], words[n]) for n in (0, 2))
    word = torch.where(kv_idx & 8 != 0, right, left)
    return torch.where(kv_idx & 1 != 0, word >> 16, word & (RANGE - 1))


def _philox(seed: Tensor, *counter: Tensor) -> tuple[Tensor, ...]:
    """Four words of 32 bits, in int64."""
    c0, c1, c2, c3 = counter
    low, high = seed & _LOW, (seed >> 32) & _LOW
    for _ in range(ROUNDS):
        left, right = c0 * _FACTORS[0], c2 * _FACTORS[1]
        upper = ((left >> 32) + c0) & _LOW, ((right >> 32) + c2) & _LOW
        c0, c2 = upper[1] ^ c1 ^ low, upper[0] ^ c3 ^ high
        c1, c3 = right & _LOW, left & _LOW
        low, high = (low + _STEPS[0]) & _LOW, (high + _STEPS[1]) & _LOW
    return c0, c1, c2, c3


def keeps(seed: Expr, p: float) -> Expr:
    """Whether a dropout with this rate keeps a score."""
    return call("ge", call("random16", seed, *INDEX.values()), threshold(p))


def threshold(p: float) -> int:
    """The numbers below it are dropped."""
    return round(p * RANGE)


def is_rate(p: float) -> bool:
    """Whether 16 bits are enough for the rate p, which is between 0 and 1."""
    error = abs(threshold(p) / RANGE - p)
    return 0 < threshold(p) < RANGE and error <= _SIGMAS * math.sqrt(p * (1 - p) / _DRAWS)


ROWS = {
    "random16": Op(
        ("iiiii>i",), random16, "16 random bits of a seed, at b, h, q_idx, kv_idx",
        interval=lambda *_: Interval(const(0), const(RANGE - 1)),
        integers=lambda *_: (0, RANGE - 1),
    ),
}  # fmt: skip
