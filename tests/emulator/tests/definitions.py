"""What instructions compute, lane by lane on Python numbers: what tests hold them to.

Written from the PTX ISA and apart from the rules: integers without a width, exact fractions rounded
once, IEEE formats by `struct`.
"""

import math
import struct
from collections.abc import Callable
from fractions import Fraction

import numpy as np

Definition = tuple[str, tuple[str, ...], Callable]


def wrap(value: int, kind: str) -> int:
    bits = int(kind[1:])
    value &= (1 << bits) - 1
    return value - (1 << bits) if kind[0] == "s" and value >> (bits - 1) else value


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def low_five(n: int) -> int:
    return n & 31


def rounded(value: Fraction, precision: int, lowest: int, mode: str = "rn") -> float:
    """To a binary format with this many bits; lowest: the exponent of its last subnormal bit."""
    if value == 0:
        return 0.0
    exponent = math.floor(math.log2(abs(value))) if abs(value) < 2**1000 else 1000
    while Fraction(2) ** (exponent + 1) <= abs(value):
        exponent += 1
    while Fraction(2) ** exponent > abs(value):
        exponent -= 1
    unit = Fraction(2) ** max(exponent - precision + 1, lowest)
    quotient = value / unit
    whole = {
        "rn": round,
        "rm": math.floor,
        "rp": math.ceil,
        "rz": math.trunc,
    }[mode](quotient)
    return float(whole * unit)


def to_f32(value: Fraction, mode: str = "rn") -> float:
    result = rounded(value, 24, -149, mode)
    top = float(np.finfo(np.float32).max)
    if abs(result) <= top:
        return result
    outward = mode == "rn" or mode == ("rp" if result > 0 else "rm")
    return math.copysign(math.inf if outward else top, result)


def exact(function: Callable[..., Fraction], *values: float, mode: str = "rn") -> float:
    """A rational function, rounded once; with NaN and infinities as IEEE has them (in f64)."""
    with np.errstate(all="ignore"):
        plain = float(function(*(np.float64(v) for v in values)))
    if not all(math.isfinite(v) for v in values):
        return plain
    return to_f32(function(*map(Fraction, values)), mode) or math.copysign(0.0, plain)


def bf16_bits(value: float) -> int:
    if math.isnan(value):
        return 0x7FFF
    word = struct.unpack("<I", struct.pack("<f", value))[0]
    low, high = word & 0xFFFF, word >> 16
    up = low > 0x8000 or (low == 0x8000 and high & 1)
    return high + up


def bf16_value(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def f16_bits(value: float) -> int:
    if math.isnan(value):
        return 0x7FFF
    try:
        return struct.unpack("<H", struct.pack("<e", value))[0]
    except OverflowError:
        return 0x7C00 | (value < 0) << 15


def f16_value(bits: int) -> float:
    return struct.unpack("<e", struct.pack("<H", bits))[0]


def both(half: Callable[..., int]) -> Callable[..., int]:
    """On each half of packed words."""
    return lambda *words: half(*(w & 0xFFFF for w in words)) | half(*(w >> 16 for w in words)) << 16


def both_f32(function: Callable[..., float]) -> Callable[..., tuple[float, float]]:
    return lambda *pairs: tuple(function(*(p[i] for p in pairs)) for i in range(2))


def minimum(*values: float, nan: bool = False, pick: Callable = min) -> float:
    known = [v for v in values if not math.isnan(v)]
    if not known or (nan and len(known) < len(values)):
        return math.nan
    return pick(known)


def saturate(value: float) -> float:
    return 0.0 if math.isnan(value) else min(max(value, 0.0), 1.0)


def field(x: int, start: int, length: int, signed: bool) -> int:
    """bfe: bits past the top are the sign of the field (bit 31 if it reaches past), or zeros."""
    start, length = start & 255, length & 255
    if not length:
        return 0
    sign = x >> min(start + length - 1, 31) & 1 if signed else 0
    picked = [x >> (start + i) & 1 if start + i < 32 and i < length else sign for i in range(32)]
    return sum(bit << i for i, bit in enumerate(picked))


def permuted(a: int, b: int, selector: int) -> int:
    source = (a | b << 32).to_bytes(8, "little")
    out = 0
    for i in range(4):
        pick = selector >> 4 * i & 15
        byte = source[pick & 7]
        out |= (255 * (byte >> 7) if pick & 8 else byte) << 8 * i
    return out


def dotted(a: int, b: int, c: int) -> int:
    return c + sum(x * y for x, y in zip(a.to_bytes(4), b.to_bytes(4)))


def integers(bits: int) -> dict[str, Definition]:
    table: dict[str, Definition] = {}
    for sign in "us":
        t = f"{sign}{bits}"
        table |= {
            f"add.{t}": (t, (t, t), lambda a, b: a + b),
            f"sub.{t}": (t, (t, t), lambda a, b: a - b),
            f"mul.lo.{t}": (t, (t, t), lambda a, b: a * b),
            f"mad.lo.{t}": (t, (t, t, t), lambda a, b, c: a * b + c),
            f"div.{t}": (t, (t, t), lambda a, b: truncated(a, b) if b else -1),
            f"rem.{t}": (t, (t, t), lambda a, b: a - truncated(a, b) * b if b else a),
            f"min.{t}": (t, (t, t), min),
            f"max.{t}": (t, (t, t), max),
            f"min.relu.{t}": (t, (t, t), lambda a, b: max(min(a, b), 0)),
            f"max.relu.{t}": (t, (t, t), lambda a, b: max(a, b, 0)),
            f"shr.{t}": (t, (t, "u32"), lambda a, n: a >> n),
        }
    s, u = f"s{bits}", f"u{bits}"
    return table | {
        f"neg.s{bits}": (s, (s,), lambda a: -a),
        f"abs.s{bits}": (s, (s,), abs),
        f"and.b{bits}": (u, (u, u), lambda a, b: a & b),
        f"or.b{bits}": (u, (u, u), lambda a, b: a | b),
        f"xor.b{bits}": (u, (u, u), lambda a, b: a ^ b),
        f"not.b{bits}": (u, (u,), lambda a: ~a),
        f"shl.b{bits}": (u, (u, "u32"), lambda a, n: a << n if n < bits else 0),
        f"shr.b{bits}": (u, (u, "u32"), lambda a, n: a >> n),
    }


def wide(bits: int) -> dict[str, Definition]:
    table: dict[str, Definition] = {}
    for sign in "us":
        t, out = f"{sign}{bits}", f"{sign}{2 * bits}"
        table[f"mul.wide.{t}"] = (out, (t, t), lambda a, b: a * b)
        table[f"mad.wide.{t}"] = (out, (t, t, out), lambda a, b, c: a * b + c)
    return table


U, F = "u32", "f32"
BITWISE: dict[str, Definition] = {
    "bfe.u32": (U, (U, U, U), lambda x, s, n: field(x, s, n, False)),
    "bfe.s32": (U, (U, U, U), lambda x, s, n: field(x, s, n, True)),
    "prmt.b32": (U, (U, U, U), permuted),
    "dp4a.u32.u32": (U, (U, U, U), dotted),
    "popc.b32": (U, (U,), lambda x: bin(x).count("1")),
    "brev.b32": (U, (U,), lambda x: int(f"{x:032b}"[::-1], 2)),
    "clz.b32": (U, (U,), lambda x: 32 - x.bit_length()),
    "bfind.u32": (U, (U,), lambda x: x.bit_length() - 1),
    "shf.l.wrap.b32": (U, (U, U, U), lambda a, b, n: (a | b << 32) << low_five(n) >> 32),
    "shf.r.wrap.b32": (U, (U, U, U), lambda a, b, n: (a | b << 32) >> low_five(n)),
    "mul.hi.u32": (U, (U, U), lambda a, b: a * b >> 32),
    "mul.hi.s32": ("s32", ("s32", "s32"), lambda a, b: a * b >> 32),
    "and.pred": ("pred", ("pred", "pred"), lambda a, b: a and b),
    "or.pred": ("pred", ("pred", "pred"), lambda a, b: a or b),
    "xor.pred": ("pred", ("pred", "pred"), lambda a, b: a != b),
    "not.pred": ("pred", ("pred",), lambda a: not a),
}
BITWISE |= {
    f"cvta.{name}.u64": ("u64", ("u64",), lambda a: a)
    for name in ("param", "to.global", "global", "shared", "to.shared", "to.shared::cluster")
}

SUM: Callable = lambda a, b: a + b
DIFFERENCE: Callable = lambda a, b: a - b
PRODUCT: Callable = lambda a, b: a * b
FUSED: Callable = lambda a, b, c: a * b + c
RATIONAL = {"add": SUM, "sub": DIFFERENCE, "mul": PRODUCT, "fma": FUSED}


def rational(function: Callable, mode: str = "rn") -> Callable:
    return lambda *values: exact(function, *values, mode=mode)


def arity(name: str) -> int:
    return 3 if name == "fma" else 2


FLOATS: dict[str, Definition] = {}
for name, function in RATIONAL.items():
    FLOATS[f"{name}.f32"] = (F, (F,) * arity(name), rational(function))
    FLOATS[f"{name}.f32x2"] = (
        "f32x2",
        ("f32x2",) * arity(name),
        both_f32(rational(function)),
    )
    for mode in ("rm", "rp", "rz"):
        FLOATS[f"{name}.{mode}.f32"] = (F, (F,) * arity(name), rational(function, mode))
    if name != "fma":
        FLOATS[f"{name}.f64"] = ("f64", ("f64", "f64"), function)
    if name != "sub":
        saturating = lambda *v, f=function: saturate(exact(f, *v))
        FLOATS[f"{name}.sat.f32"] = (F, (F,) * arity(name), saturating)


def divided(a: float, b: float) -> float:
    if b == 0 or not (math.isfinite(a) and math.isfinite(b)):
        with np.errstate(all="ignore"):
            return float(np.float64(a) / np.float64(b))
    return math.copysign(to_f32(Fraction(a) / Fraction(b)), a) * math.copysign(1, b)


def real(function: Callable[[float], float]) -> Callable[[float], float]:
    """A real function: NaN outside its domain. Compared within 2 ulp."""

    def call(x: float) -> float:
        with np.errstate(all="ignore"):
            return float(np.float32(function(np.float64(x))))

    return call


FLOATS |= {
    "div.f32": (F, (F, F), divided),
    "rcp.f32": (F, (F,), lambda x: divided(1.0, x)),
    "neg.f32": (F, (F,), lambda x: -x),
    "abs.f32": (F, (F,), abs),
    "copysign.f32": (F, (F, F), lambda a, b: math.copysign(b, a)),
    "ex2.f32": (F, (F,), real(np.exp2)),
    "lg2.f32": (F, (F,), real(np.log2)),
    "sqrt.f32": (F, (F,), real(np.sqrt)),
    "rsqrt.f32": (F, (F,), real(lambda x: 1 / np.sqrt(x))),
    "tanh.f32": (F, (F,), real(np.tanh)),
    "sin.f32": (F, (F,), real(np.sin)),
    "cos.f32": (F, (F,), real(np.cos)),
}
for name, pick in (("min", min), ("max", max)):
    for nan in (False, True):
        extreme = lambda *v, p=pick, n=nan: minimum(*v, nan=n, pick=p)
        FLOATS[f"{name}.NaN.f32" if nan else f"{name}.f32"] = (F, (F, F), extreme)
THREE = {key: (F, (F,) * 3, FLOATS[key][2]) for key in FLOATS if key.startswith(("min", "max"))}


def half(value: Callable, bits: Callable, function: Callable) -> Callable:
    """On half-precision bits: widened, computed in f32 and rounded."""
    return lambda *words: bits(function(*map(value, words)))


def positive(x: float) -> float:
    return x if math.isnan(x) or x > 0 else 0.0


HALVES: dict[str, Definition] = {
    "cvt.f32.f16": (F, ("u16",), f16_value),
    "cvt.f32.bf16": (F, ("u16",), bf16_value),
    "cvt.f16.f32": ("u16", (F,), f16_bits),
    "cvt.bf16.f32": ("u16", (F,), bf16_bits),
}
for kind, value, bits in (("bf16", bf16_value, bf16_bits), ("f16", f16_value, f16_bits)):
    packed = lambda high, low, b=bits: b(high) << 16 | b(low)
    clipped = lambda high, low, b=bits: b(positive(high)) << 16 | b(positive(low))
    HALVES[f"cvt.{kind}x2.f32"] = (U, (F, F), packed)
    HALVES[f"cvt.relu.{kind}x2.f32"] = (U, (F, F), clipped)
    for name, function in RATIONAL.items():
        word = both(half(value, bits, rational(function)))
        HALVES[f"{name}.{kind}x2"] = (U, (U,) * arity(name), word)
        if name != "fma":
            mixed = lambda a, b, f=function, v=value: exact(f, v(a), b)
            HALVES[f"{name}.f32.{kind}"] = (F, ("u16", F), mixed)
    HALVES[f"tanh.{kind}x2"] = (U, (U,), both(half(value, bits, real(np.tanh))))
HALVES["ex2.bf16x2"] = (U, (U,), both(half(bf16_value, bf16_bits, real(np.exp2))))

DEFINITIONS: dict[str, Definition] = {
    **integers(16),
    **integers(32),
    **integers(64),
    **wide(16),
    **wide(32),
    **BITWISE,
    **FLOATS,
    **HALVES,
}
