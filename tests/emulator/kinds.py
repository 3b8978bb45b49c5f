"""Kinds: how a register of each PTX type is held, and how one kind is seen as another.

A register holds one value for every lane of a gang: an array [lanes], or [2, lanes] for a pair of
f32. Every register has a home kind; an instruction that reads it as another kind of the same width
looks at the same bits.
"""

import numpy as np

DTYPES = {
    "pred": np.dtype(np.bool_),
    "u16": np.dtype(np.uint16),
    "i16": np.dtype(np.int16),
    "f16": np.dtype(np.float16),
    "u32": np.dtype(np.uint32),
    "i32": np.dtype(np.int32),
    "f32": np.dtype(np.float32),
    "u64": np.dtype(np.uint64),
    "i64": np.dtype(np.int64),
    "f64": np.dtype(np.float64),
    "f32x2": np.dtype(np.float32),
}
PLAIN = {1: "pred", 8: "u16", 16: "u16", 32: "u32", 64: "u64"}
PTX = {"pred": "pred", "f16": "f16", "bf16": "u16", "f16x2": "u32", "bf16x2": "u32"}
PTX |= {"f32": "f32", "f64": "f64", "f32x2": "f32x2", "s8": "i16", "u8": "u16", "b8": "u16"}
PTX |= {f"{sign}{bits}": f"u{bits}" for sign in "ub" for bits in (16, 32, 64)}
PTX |= {f"s{bits}": f"i{bits}" for bits in (16, 32, 64)}


def seen_as(expression: str, home: str, kind: str) -> str:
    """The expression of a value of kind `home`, seen as `kind`; TypeError if the widths differ."""
    if home == kind:
        return expression
    if "pred" in (home, kind) or DTYPES[home].itemsize * (1 + (home == "f32x2")) != DTYPES[
        kind
    ].itemsize * (1 + (kind == "f32x2")):
        raise TypeError(f"{expression}: a {home} cannot be seen as {kind}")
    if home == "f32x2":
        return seen_as(f"joined({expression})", "u64", kind)
    if kind == "f32x2":
        return f"parted({seen_as(expression, home, 'u64')})"
    return f"({expression}).view({kind.upper()})"


def constant(bits: int, kind: str, lanes: int) -> np.ndarray:
    """The same bits in every lane."""
    if kind == "pred":
        return np.full(lanes, bool(bits))
    if kind == "f32x2":
        halves = np.array([[bits & 0xFFFFFFFF], [bits >> 32]], np.uint32)
        return np.repeat(halves, lanes, axis=1).view(np.float32)
    dtype = DTYPES[kind]
    unsigned = np.dtype(f"u{dtype.itemsize}")
    return np.full(lanes, bits & ((1 << 8 * dtype.itemsize) - 1), unsigned).view(dtype)
