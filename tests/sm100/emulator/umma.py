"""tcgen05.mma: instruction and shared-memory descriptors (cute/arch/mma_sm100_desc.hpp) and the product."""

import functools

import numpy as np


def bits(x, lo, n):
    return (x >> lo) & ((1 << n) - 1)


@functools.lru_cache(4096)
def operand_granules(desc, rows, mn_major):
    """Granule indices of a rows x 32-byte (K-major) or rows x 16 (MN-major) operand.

    K-major:  (row, kchunk) -> ((8,n),2):((swizzle span, SBO), 16 B or LBO)
    MN-major: (mn chunk, k) -> ((span/16, n),(8,2)):((16 B, LBO),(span, SBO))
    The swizzle XORs address bits [4,7) with bits [7,10), on absolute addresses.
    """
    start, lbo, sbo = (
        bits(desc, 0, 14),
        bits(desc, 16, 14),
        bits(desc, 32, 14),
    )  # in granules of 16 bytes
    layout = bits(desc, 61, 3)
    if bits(desc, 49, 3):
        raise NotImplementedError("matrix base offset")
    if layout not in (0, 2, 4, 6):
        raise NotImplementedError(f"descriptor layout {layout}")
    span = {0: 1, 6: 2, 4: 4, 2: 8}[layout]
    if mn_major:
        c, k = np.arange(rows // 8)[:, None], np.arange(16)[None, :]
        if layout:
            g = c % span + c // span * lbo + k % 8 * span + k // 8 * sbo
        else:
            g = c * sbo + k % 8 + k // 8 * lbo
    else:
        r, k = np.arange(rows)[:, None], np.arange(2)[None, :]
        g = r % 8 * span + r // 8 * sbo + k * (1 if layout else lbo)
    g = g + start
    return g ^ ((g >> 3) & (span - 1))


def widen(raw, fmt):
    """16-bit patterns -> float32 (fmt: 0 f16, 1 bf16)."""
    if fmt == 0:
        return raw.view(np.float16).astype(np.float32)
    return (raw.astype(np.uint32) << 16).view(np.float32)


class Mma:
    def __init__(self, d, a, b, idesc, accumulate, a_in_tmem, kind):
        if kind != "f16" or bits(idesc, 2, 1):
            raise NotImplementedError(f"tcgen05.mma kind {kind}, idesc {idesc:#x}")
        self.d, self.a, self.b, self.accumulate, self.a_in_tmem = d, a, b, accumulate, a_in_tmem
        self.cfmt, self.afmt, self.bfmt = bits(idesc, 4, 2), bits(idesc, 7, 3), bits(idesc, 10, 3)
        self.aneg, self.bneg = bits(idesc, 13, 1), bits(idesc, 14, 1)
        self.amn, self.bmn = bool(bits(idesc, 15, 1)), bool(bits(idesc, 16, 1))
        self.n, self.m = bits(idesc, 17, 6) * 8, bits(idesc, 24, 5) * 16
        if self.cfmt != 1 or self.m not in (64, 128):
            raise NotImplementedError(f"accumulator format {self.cfmt}, M {self.m}")
        self.dcol = d & 0xFFFF
        self.dcols = slice(self.dcol, self.dcol + self.n)
        self.acols = slice(a & 0xFFFF, (a & 0xFFFF) + 8) if a_in_tmem else None
        # M=64 uses lanes 0-15 of each warp's quarter of TMEM
        self.lanes = (
            np.arange(self.m) if self.m == 128 else np.arange(64) // 16 * 32 + np.arange(64) % 16
        )
        self.lanes = self.lanes + (d >> 16)

    def smem_operands(self):
        if not self.a_in_tmem:
            yield operand_granules(self.a, self.m, self.amn)
        yield operand_granules(self.b, self.n, self.bmn)

    @staticmethod
    def load(cta, desc, rows, mn_major, fmt):
        raw = cta.granule[operand_granules(desc, rows, mn_major)].view(np.uint16)  # (.., .., 8)
        raw = raw.reshape(*raw.shape[:2], -1) if raw.ndim == 3 else raw
        if mn_major:
            raw = raw.transpose(0, 2, 1).reshape(rows, 16)
        else:
            raw = raw.reshape(rows, 16)
        return widen(np.ascontiguousarray(raw), fmt)

    def execute(self, cta):
        if self.a_in_tmem:
            words = cta.tmem[self.lanes - (self.d >> 16) + (self.a >> 16), self.acols]
            a = widen(np.ascontiguousarray(words).view(np.uint16), self.afmt)
        else:
            a = self.load(cta, self.a, self.m, self.amn, self.afmt)
        b = self.load(cta, self.b, self.n, self.bmn, self.bfmt)
        p = a @ b.T
        if self.aneg ^ self.bneg:
            p = -p
        if self.accumulate:
            p += cta.tmem[self.lanes, self.dcols].view(np.float32)
        cta.tmem[self.lanes, self.dcols] = p.view(np.uint32)
