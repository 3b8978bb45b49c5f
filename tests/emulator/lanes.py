"""What generated code computes with: functions on vectors of lanes.

A vector holds 32 lanes for each warp of a gang. Functions that depend on the place of a lane take
`lane`, its number in its warp.
"""

import numpy as np

from .faults import EmulatorError

U8, U16, U32, U64 = np.uint8, np.uint16, np.uint32, np.uint64
I8, I16, I32, I64 = np.int8, np.int16, np.int32, np.int64
F16, F32, F64 = np.float16, np.float32, np.float64
Vector = np.ndarray
where, count = np.where, np.count_nonzero


# 64-bit registers: two f32 side by side, two halves, four quarters.
def joined(pair: Vector) -> Vector:
    return pack64(pair[0].view(U32), pair[1].view(U32))


def parted(word: Vector) -> Vector:
    return word.view(U32).reshape(-1, 2).T.view(F32).copy()


def pack64(low: Vector, high: Vector) -> Vector:
    out = np.empty((low.size, 2), U32)
    out[:, 0], out[:, 1] = low, high
    return out.reshape(-1).view(U64)


def pack32(low: Vector, high: Vector) -> Vector:
    out = np.empty((low.size, 2), U16)
    out[:, 0], out[:, 1] = low, high
    return out.reshape(-1).view(U32)


def pair(low: Vector, high: Vector) -> Vector:
    out = np.empty((2, low.size), F32)
    out[0], out[1] = low, high
    return out


def quarters(a: Vector, b: Vector, c: Vector, d: Vector) -> Vector:
    return pack64(pack32(a, b), pack32(c, d))


# Integers.
def wide(x: Vector) -> Vector:
    """Twice as wide, with the sign of the kind."""
    return x.astype({U16: U32, I16: I32, U32: U64, I32: I64}[x.dtype.type])


def high32(a: Vector, b: Vector) -> Vector:
    return (wide(a) * wide(b) >> 32).astype(a.dtype)


def shl(x: Vector, n: Vector) -> Vector:
    bits = 8 * x.itemsize
    moved = x << np.minimum(n, U32(bits - 1)).astype(x.dtype)
    return where(n < bits, moved, x.dtype.type(0)) if count(n >= bits) else moved


def shr(x: Vector, n: Vector) -> Vector:
    bits = 8 * x.itemsize
    moved = x >> np.minimum(n, U32(bits - 1)).astype(x.dtype)
    if x.dtype.kind == "i" or not count(n >= bits):
        return moved
    return where(n < bits, moved, x.dtype.type(0))


def funnel_left(low: Vector, high: Vector, n: Vector) -> Vector:
    return (pack64(low, high) << (n & U32(31)).astype(U64) >> U64(32)).astype(U32)


def funnel_right(low: Vector, high: Vector, n: Vector) -> Vector:
    return (pack64(low, high) >> (n & U32(31)).astype(U64)).astype(U32)


def divide(a: Vector, b: Vector) -> Vector:
    """Rounded towards zero; by zero gives all ones, as the hardware does."""
    safe = where(b == 0, b.dtype.type(1), b)
    quotient = a // safe
    if a.dtype.kind == "i":
        quotient = quotient + ((a % safe != 0) & ((a < 0) != (safe < 0)))
    return where(b == 0, a.dtype.type(0) - a.dtype.type(1), quotient).astype(a.dtype)


def remainder(a: Vector, b: Vector) -> Vector:
    return where(b == 0, a, a - divide(a, b) * b).astype(a.dtype)


def extract(x: Vector, position: Vector, length: Vector, signed: bool) -> Vector:
    """bfe.{u32,s32}: bits past bit 31 are zeros, or the sign of the field."""
    start = np.minimum(position & U32(255), U32(32)).astype(U64)
    width = np.minimum(length & U32(255), U32(32)).astype(U64)
    field = x.astype(U64) >> start & (U64(1) << width) - U64(1)
    if signed:
        top = np.minimum(start + width - (width > 0), U64(31))
        sign = (x.astype(U64) >> top & U64(1)) * (width > 0)
        reach = np.minimum(width, U64(32) - start)
        field = where(sign == 1, field | ~((U64(1) << reach) - U64(1)), field)
    return field.astype(U32)


def permute(a: Vector, b: Vector, selector: Vector) -> Vector:
    """prmt.b32 in its default mode: four selectors of a byte of b:a, bit 3 replicates its sign."""
    data = pack64(a, b).view(U8).reshape(-1, 8)
    out = np.empty((a.size, 4), U8)
    for i in range(4):
        pick = selector >> U32(4 * i) & U32(15)
        byte = np.take_along_axis(data, (pick & U32(7)).astype(I64)[:, None], 1)[:, 0]
        out[:, i] = where(pick & 8, (byte >> 7) * U8(255), byte)
    return out.reshape(-1).view(U32)


def dot4(a: Vector, b: Vector, c: Vector) -> Vector:
    """dp4a.u32.u32: c plus the products of the four bytes of a and b."""
    parts = ((a >> U32(n) & U32(255)) * (b >> U32(n) & U32(255)) for n in (0, 8, 16, 24))
    return sum(parts, c)


def lookup3(a: Vector, b: Vector, c: Vector, table: int) -> Vector:
    """lop3.b32: bit (4a + 2b + c) of the table, for every bit."""
    out = np.zeros_like(a)
    for i in range(8):
        if table >> i & 1:
            out |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
    return out


def reverse_bits(x: Vector) -> Vector:
    bits = np.unpackbits(x.view(U8).reshape(-1, 4), axis=1, bitorder="little")
    return np.packbits(bits, axis=1).view(">u4").reshape(-1).astype(U32)


def leading_zeros(x: Vector) -> Vector:
    return U32(32) - np.ceil(np.log2(x.astype(F64) + 1)).astype(U32)


# Floats. What the hardware approximates is exact here, rounded to f32.
def fma(a: Vector, b: Vector, c: Vector) -> Vector:
    """Product and sum in f64: one rounding to f32 (two where f64 itself rounds, 2⁻²⁹ as likely)."""
    return (a.astype(F64) * b.astype(F64) + c.astype(F64)).astype(F32)


def quick_fma(a: Vector, b: Vector, c: Vector) -> Vector:
    """A sixth of the time; the product is rounded to f32 too."""
    return a * b + c


def to_bf16(x: Vector) -> Vector:
    bits = x.view(U32)
    rounded = (bits + (U32(0x7FFF) + (bits >> U32(16) & U32(1)))) >> U32(16)
    nan = np.isnan(x)
    if count(nan):
        rounded = where(nan, U32(0x7FFF), rounded)
    return rounded.astype(U16)


def from_bf16(x: Vector) -> Vector:
    return (x.astype(U32) << U32(16)).view(F32)


def to_f16(x: Vector) -> Vector:
    bits = x.astype(F16).view(U16)
    nan = np.isnan(x)
    return where(nan, U16(0x7FFF), bits) if count(nan) else bits


def bf16x2(high: Vector, low: Vector) -> Vector:
    return pack32(to_bf16(low), to_bf16(high))


def f16x2(high: Vector, low: Vector) -> Vector:
    return pack32(to_f16(low), to_f16(high))


def relu(x: Vector) -> Vector:
    return np.maximum(x, F32(0))


def two_sum(a: Vector, b: Vector) -> tuple[Vector, Vector]:
    """The sum of f64 values, and what its rounding left."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def directed(parts: tuple[Vector, Vector], mode: str) -> Vector:
    """A sum of two f64 to f32, rounded down (rm), up (rp) or towards zero (rz)."""
    value, rest = parts
    near = value.astype(F32)
    over = near.astype(F64) - value
    over = where(over == 0, -rest, over)  # beyond the exact value?
    up = {"rm": np.zeros(near.shape, bool), "rp": np.ones(near.shape, bool), "rz": value < 0}[mode]
    wrong = where(up, over < 0, over > 0)
    return where(wrong, np.nextafter(near, where(up, F32(np.inf), F32(-np.inf))), near)


def saturated(x: Vector) -> Vector:
    """To [0, 1]; NaN gives 0."""
    return np.nan_to_num(np.clip(x, F32(0), F32(1)), nan=0.0)


def bf16_lanes(word: Vector) -> Vector:
    return from_bf16(word.view(U16))


def bf16_word(values: Vector) -> Vector:
    return to_bf16(values).view(U32)


ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def to_integer(x: Vector, mode: str, kind: np.dtype) -> Vector:
    """Saturates; NaN gives 0."""
    info = np.iinfo(kind)
    value = np.nan_to_num(ROUND[mode](x.astype(F64)), nan=0.0, posinf=np.inf, neginf=-np.inf)
    inside = np.clip(value, float(info.min), float(info.max))
    top = value >= float(info.max)
    return where(top, kind.type(info.max), where(top, 0, inside).astype(kind))


# Warps.
def shuffle(lane: Vector, mode: str, a: Vector, b: Vector, c: Vector) -> tuple[Vector, Vector]:
    """shfl.sync: (value, whether the source lane is in range)."""
    clamp, segment = c & U32(31), c >> U32(8) & U32(31)
    low, step = lane & segment, b & U32(31)
    top = (low | clamp & ~segment).astype(I32)
    here = lane.astype(I32)
    source = {
        "idx": (low | step & ~segment).astype(I32),
        "bfly": (lane ^ step).astype(I32),
        "down": here + step.astype(I32),
        "up": here - step.astype(I32),
    }[mode]
    inside = source >= top if mode == "up" else source <= top
    warp = np.arange(lane.size) // 32 * 32
    return a[warp + where(inside, source, here)], inside


def of_the_cluster(elsewhere: Vector, m: Vector) -> None:
    if (elsewhere & m).any():
        raise EmulatorError("a CTA that the cluster lacks")


def by_warp(bits: Vector) -> Vector:
    return bits.reshape(-1, 32)


def spread(per_warp: Vector) -> Vector:
    return np.repeat(per_warp, 32)


def ballot(p: Vector, m: Vector) -> Vector:
    words = np.packbits(by_warp(p & m), axis=1, bitorder="little").reshape(-1).view(U32)
    return spread(words)


def vote(mode: str, p: Vector, m: Vector) -> Vector:
    some, every = by_warp(p & m).any(1), by_warp(p | ~m).all(1)
    return spread({"any": some, "all": every, "uni": every | ~some}[mode])


def elect(lane: Vector, m: Vector) -> tuple[Vector, Vector]:
    """elect.sync: (the elected lane, whether a lane is it)."""
    leader = spread(by_warp(m).argmax(1).astype(U32))
    return leader, (lane == leader) & m


REDUCE = {
    "add": np.add, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def reduce_warp(mode: str, x: Vector, m: Vector) -> Vector:
    """redux.sync over the active lanes."""
    rows = [REDUCE[mode].reduce(row[on]) for row, on in zip(by_warp(x), by_warp(m), strict=True)]
    return spread(np.array(rows, x.dtype))
