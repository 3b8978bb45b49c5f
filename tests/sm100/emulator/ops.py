"""Lane-vector helpers that generated code calls."""

import numpy as np

U8, U16, U32, U64 = np.uint8, np.uint16, np.uint32, np.uint64
I8, I16, I32, I64 = np.int8, np.int16, np.int32, np.int64
F16, F32, F64 = np.float16, np.float32, np.float64
np.seterr(all="ignore")
W = np.where
cnt = np.count_nonzero
ALL, NONE = np.ones(32, bool), np.zeros(32, bool)
LANE = np.arange(32, dtype=U32)
LANE_IS = [LANE == i for i in range(32)]
zeros = {
    1: np.zeros(32, bool),
    8: np.zeros(32, U16),
    16: np.zeros(32, U16),
    32: np.zeros(32, U32),
    64: np.zeros(32, U64),
}


def lane_const(i):
    return np.full(32, i, U32)


# ---- divergence ----
def reconverge(pend, pc, m):
    """Merge lanes pending at pc, and run the lowest block anyone is at."""
    if (q := pend.pop(pc, None)) is not None:
        m = m | q
    if pend and min(pend) < pc:
        pend[pc] = m
        return pop(pend)
    return pc, m, bool(m.all())


def pop(pend):
    pc = min(pend)
    m = pend.pop(pc)
    return pc, m, bool(m.all())


def diverge(pend, taken, m, F, target, fall):
    rest = ~taken if F else m & ~taken
    for pc, q in ((target, taken), (fall, rest)):
        pend[pc] = pend[pc] | q if pc in pend else q
    return pop(pend)


def special(C, w, name):
    tid = np.arange(32 * w, 32 * w + 32)
    x, y, _ = C.ntid
    axis = {"x": 0, "y": 1, "z": 2}.get(name[-1])
    if name.startswith("%tid."):
        v = (tid % x, tid // x % y, tid // (x * y))[axis]
    elif name.startswith("%ctaid.") or name.startswith("%clusterid."):
        v = C.ctaid[axis]
    elif name.startswith("%nctaid.") or name.startswith("%nclusterid."):
        v = C.nctaid[axis]
    elif name.startswith("%ntid."):
        v = C.ntid[axis]
    elif name == "%laneid":
        v = LANE
    elif name in ("%warpid",):
        v = w
    elif name.startswith("%cluster_nctaid"):
        v = 1
    elif name.startswith("%cluster_ctaid") or name == "%cluster_ctarank" or name == "%smid":
        v = 0
    else:
        raise NotImplementedError(name)
    return np.broadcast_to(np.asarray(v, U32), 32).copy()


# ---- integers ----
def sx8(x):
    return x.astype(U8).view(I8).astype(I16)


def sx16(x):
    return x.view(I16).astype(I32).view(U32)


def zx16(x):
    return x.astype(U32)


def sx32(x):
    return x.view(I32).astype(I64).view(U64)


def zx32(x):
    return x.astype(U64)


def shl(x, n, w):
    return W(n < w, x << np.minimum(n, U32(w - 1)).astype(x.dtype), x.dtype.type(0))


def shr(x, n, w):
    if x.dtype.kind == "i":
        return x >> np.minimum(n, U32(w - 1)).astype(x.dtype)
    return W(n < w, x >> np.minimum(n, U32(w - 1)).astype(x.dtype), x.dtype.type(0))


def idiv(a, b):
    b = W(b == 0, b.dtype.type(1), b)
    q = a // b
    if a.dtype.kind == "i":
        q = q + ((a % b != 0) & ((a < 0) != (b < 0))).astype(a.dtype)
    return q


def irem(a, b):
    return a - idiv(a, b) * b


def bfe(x, pos, n, signed):
    v = x.astype(U64) >> (pos & U32(255)).astype(U64)
    n = np.minimum(n & U32(255), U32(32)).astype(U64)
    v = v & ((U64(1) << n) - U64(1))
    if signed:
        s = (v >> np.maximum(n, U64(1)) - U64(1)) & U64(1)
        v = W(s == 1, v | ~((U64(1) << n) - U64(1)), v)
    return v.astype(U32)


def prmt(a, b, sel):
    by = np.stack([a, b]).T.copy().view(U8)  # (32, 8)
    out = np.zeros((32, 4), U8)
    for i in range(4):
        s = (sel >> U32(4 * i)) & U32(15)
        v = by[LANE, s & U32(7)]
        out[:, i] = W(s & U32(8), W(v & 128, 255, 0), v)
    return out.view(U32)[:, 0]


def lop3(a, b, c, lut):
    r = np.zeros(32, U32)
    for i in range(8):
        if lut >> i & 1:
            r |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
    return r


def pack64_2(a, b):
    out = np.empty(64, U32)
    out[0::2], out[1::2] = a, b
    return out.view(U64)


def pack32_2(a, b):
    out = np.empty(64, U16)
    out[0::2], out[1::2] = a, b
    return out.view(U32)


def pack64_4(a, b, c, d):
    return pack64_2(pack32_2(a, b), pack32_2(c, d))


def widen8(vals, signed):
    return [sx8(v).view(U16) if signed else v.astype(U16) for v in vals]


# ---- floats ----
def fma32(a, b, c):
    return (a.astype(F64) * b + c).astype(F32)


def to_bf16(x):
    u = x.view(U32)
    r = ((u + U32(0x7FFF) + ((u >> U32(16)) & U32(1))) >> U32(16)).astype(U16)
    return W(np.isnan(x), U16(0x7FFF), r)


def to_f16(x):
    return x.astype(F16).view(U16)


def from_bf16(x):
    return x.astype(U32) << U32(16)


def from_f16(x):
    return x.view(F16).astype(F32).view(U32)


def bf16x2(a, b, sym):
    x, y = from_bf16(a.view(U16)).view(F32), from_bf16(b.view(U16)).view(F32)  # 64 elements
    return to_bf16(x * y if sym == "*" else x + y if sym == "+" else x - y).view(U32)


def cvt_bf16x2(hi, lo, relu):
    if relu:
        hi, lo = np.maximum(hi, F32(0)), np.maximum(lo, F32(0))
    return pack32_2(to_bf16(lo), to_bf16(hi))


def cvt_f16x2(hi, lo, relu):
    if relu:
        hi, lo = np.maximum(hi, F32(0)), np.maximum(lo, F32(0))
    return pack32_2(to_f16(lo), to_f16(hi))


def f2i(x, mode, t):
    r = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}[mode](x.astype(F64))
    lo, hi = (-(2**31), 2**31 - 1) if t == "s32" else (0, 2**32 - 1)
    r = W(np.isnan(r), 0, np.clip(r, lo, hi))
    return r.astype(I64).astype(U32)


# ---- warp ----
def _seg(c):
    c = int(c[0])
    return c & 31, (c >> 8) & 31  # clamp, segment mask


def shfl_idx(a, b, c):
    clamp, seg = _seg(c)
    src = (LANE & U32(seg)) | (b & U32(31) & U32(~seg & 31))
    top = (LANE & U32(seg)) | U32(clamp & ~seg & 31)
    return W(src <= top, a[src], a)


def shfl_bfly(a, b, c):
    clamp, seg = _seg(c)
    src = LANE ^ (b & U32(31))
    top = (LANE & U32(seg)) | U32(clamp & ~seg & 31)
    return W(src <= top, a[src & U32(31)], a)


def shfl_down(a, b, c):
    clamp, seg = _seg(c)
    src = LANE + (b & U32(31))
    top = (LANE & U32(seg)) | U32(clamp & ~seg & 31)
    return W(src <= top, a[np.minimum(src, U32(31))], a)


def shfl_up(a, b, c):
    clamp, seg = _seg(c)
    src = LANE.view(I32) - (b & U32(31)).view(I32)
    top = ((LANE & U32(seg)) | U32(clamp & ~seg & 31)).view(I32)
    return W(src >= top, a[np.maximum(src, 0)], a)


def ballot(p, m):
    return np.full(32, int(np.packbits(p & m, bitorder="little").view(U32)[0]), U32)


def vote_any(p, m):
    return ALL if (p & m).any() else NONE


def vote_all(p, m):
    return ALL if (p | ~m).all() else NONE


def vote_uni(p, m):
    return ALL if (p | ~m).all() or not (p & m).any() else NONE


def cp_async(C, dst, src, size, src_size, m):
    """Non-bulk cp.async, done at once; src_size < size zero-fills."""
    w = min(size, 8)
    lanes = range(32) if m is None else np.flatnonzero(m)
    C.hb.st_shared(np.unique(dst[lanes] >> 4), C.warp)
    for l in lanes:
        d, s = int(dst[l]), int(src[l])
        n = size if src_size is None else int(src_size[l])
        C.smem[d : d + size] = 0
        if n:
            base, buf = C.gmem.find(s, s + n)
            C.smem[d : d + n] = buf[s - base : s - base + n]
