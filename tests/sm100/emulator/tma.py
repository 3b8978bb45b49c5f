"""Tiled bulk tensor copies."""

import functools

import numpy as np


@functools.lru_cache(1024)
def granules(t, dst):
    """Indices of the 16-byte shared-memory granules of a box at dst, in box order, swizzled by absolute address."""
    if dst & 15 or (t.swizzle and dst & 127):
        raise ValueError(f"TMA shared address {dst:#x} misaligned")
    g = (dst >> 4) + np.arange(-(-t.bytes // 16))
    return g ^ ((g >> 3) & max(0, t.swizzle // 16 - 1))


def window(t, start):
    """In-bounds slice of the box at start: (global byte offset, box slices, extents), or None when all outside."""
    lo = [max(0, -s) for s in start]
    hi = [min(b, d - s) for b, d, s in zip(t.box, t.extents, start)]
    if any(h <= l for l, h in zip(lo, hi)):
        return None
    off = sum((s + l) * st for s, l, st in zip(start, lo, t.strides))
    return off, tuple(slice(l, h) for l, h in zip(lo, hi))[::-1], [h - l for l, h in zip(lo, hi)]


def global_view(t, off, ext, gmem):
    last = t.address + off + sum((e - 1) * s for e, s in zip(ext, t.strides)) + t.strides[0]
    base, buf = gmem.find(t.address + off, last)
    return np.ndarray(ext[::-1], t.dtype, buf, t.address + off - base, t.strides[::-1])


def read_box(t, start, gmem):
    out = np.zeros(t.box[::-1], t.dtype)
    if w := window(t, start):
        off, sl, ext = w
        out[sl] = global_view(t, off, ext, gmem)
    return out.reshape(-1).view(np.uint8)


def write_box(t, start, data, gmem, reduce=None):
    if w := window(t, start):
        off, sl, ext = w
        src = data.view(t.dtype).reshape(t.box[::-1])[sl]
        dst = global_view(t, off, ext, gmem)
        if reduce == "add":
            dst += src
        else:
            dst[...] = src
