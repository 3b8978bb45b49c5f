"""The descriptors of tcgen05.mma and wgmma, bit for bit, and where the operands that they name lie.

Layouts as in CUTLASS, cute/arch/mma_sm100_desc.hpp (BSD licence), and the PTX ISA.
"""

import functools
from dataclasses import dataclass

import numpy as np

SPANS = {0: 1, 6: 2, 4: 4, 2: 8}  # swizzle code to granules of 16 bytes: none, 32, 64, 128 bytes
VERSION = 1  # of a shared-memory descriptor for sm_100
FORMATS = {0: "f16", 1: "bf16"}


def bits(word: int, low: int, count: int) -> int:
    return (word >> low) & ((1 << count) - 1)


@dataclass(frozen=True)
class Form:
    """The instruction descriptor of kind::f16: shape, formats, majorness (True: MN), signs."""

    m: int
    n: int
    a_format: str
    b_format: str
    a_mn_major: bool
    b_mn_major: bool
    negative: bool

    @classmethod
    @functools.lru_cache(1024)
    def decode(cls, word: int, pair: bool = False) -> "Form":
        """pair: Of a product of two CTAs."""
        if bits(word, 4, 2) != 1:
            raise NotImplementedError("accumulators other than f32")
        if bits(word, 2, 2) or bits(word, 0, 2):
            raise NotImplementedError("sparse or saturating tcgen05.mma")
        formats = bits(word, 7, 3), bits(word, 10, 3)
        if any(code not in FORMATS for code in formats):
            raise NotImplementedError(f"operand formats {formats}")
        m, n = 16 * bits(word, 24, 5), 8 * bits(word, 17, 6)
        height = m // 2 if pair else m
        step = 32 if pair else 8 if m == 64 else 16  # of columns
        if height not in (64, 128) or not 0 < n <= 256 or n % step:
            raise ValueError(f"tcgen05.mma of shape {m} x {n}")
        return cls(
            m=m,
            n=n,
            a_format=FORMATS[formats[0]],
            b_format=FORMATS[formats[1]],
            a_mn_major=bool(bits(word, 15, 1)),
            b_mn_major=bool(bits(word, 16, 1)),
            negative=bool(bits(word, 13, 1) ^ bits(word, 14, 1)),
        )


@functools.lru_cache(16384)
def operand_granules(
    descriptor: int, rows: int, mn_major: bool, version: int = VERSION
) -> np.ndarray:
    """The 16-byte rows of shared memory of an operand with 16 elements of K.

    [rows, 2] for a K-major operand, where each granule holds 8 consecutive k; [rows / 8, 16] for an
    MN-major one, where each holds 8 consecutive rows of one k. With S the granules of the swizzle
    span, in units of granules:
        K-major   (r, k) -> r % 8 * S + r // 8 * SBO + k          (k * LBO without swizzle)
        MN-major  (c, k) -> c % S + c // S * LBO + k % 8 * S + k // 8 * SBO
    and granule ^= (granule >> 3) & (S - 1) on the absolute address.
    """
    start, leading, stride = (bits(descriptor, low, 14) for low in (0, 16, 32))
    code = bits(descriptor, 61, 3)
    if code not in SPANS:
        raise NotImplementedError(f"shared-memory layout {code}")
    if bits(descriptor, 46, 2) != version:
        raise ValueError("a shared-memory descriptor of another version")
    if bits(descriptor, 49, 3) or bits(descriptor, 52, 1):
        raise NotImplementedError("matrix base offset, absolute leading offset")
    span = SPANS[code]
    if mn_major:
        c, k = np.arange(rows // 8)[:, None], np.arange(16)[None, :]
        if code:
            place = c % span + c // span * leading + k % 8 * span + k // 8 * stride
        else:
            place = c * stride + k % 8 + k // 8 * leading
    else:
        r, k = np.arange(rows)[:, None], np.arange(2)[None, :]
        place = r % 8 * span + r // 8 * stride + k * (1 if code else leading)
    place = place + start
    return place ^ ((place >> 3) & (span - 1))


def widened(raw: np.ndarray, name: str) -> np.ndarray:
    """16-bit patterns to f32."""
    if name == "f16":
        return raw.view(np.float16).astype(np.float32)
    return (raw.astype(np.uint32) << 16).view(np.float32)


def operand(granules: np.ndarray, rows: int, mn_major: bool, name: str) -> np.ndarray:
    """[rows, 16] in f32 of an operand's bytes in shared memory, granule by granule."""
    raw = granules.view(np.uint16)  # [.., .., 8]
    raw = raw.transpose(0, 2, 1) if mn_major else raw
    return widened(np.ascontiguousarray(raw).reshape(rows, 16), name)
