"""State of one CTA (shared memory, TMEM, mbarriers, async engines) and the warp scheduler."""

import random
from collections import deque

import numpy as np

from . import tma, umma
from .hb import NAGENTS, Clocks

U8, U16, U32, U64 = np.uint8, np.uint16, np.uint32, np.uint64
F32 = np.float32
SMEM_BASE = 1024  # the first KiB of the shared window is the system's on sm_100
SMEM_SIZE = 228 * 1024
PARAM_BASE = 0x7_0000_0000_0000
SPIN = ("spin",)


class EmulatorError(Exception):
    """A fault or a protocol violation that the emulator found."""


class GlobalMemory:
    """Registered host buffers, addressed by their real addresses; anything else is a fault."""

    def __init__(self):
        self.regions = []

    def add(self, array):
        self.regions.append(
            (array.ctypes.data, array.ctypes.data + array.nbytes, array.reshape(-1).view(U8))
        )

    def find(self, lo, hi):
        for a, b, buf in self.regions:
            if a <= lo and hi <= b:
                return a, buf
        raise EmulatorError(f"global access outside every registered tensor: [{lo:#x}, {hi:#x})")

    def view(self, lo, hi, dtype):
        """dtype view of a whole region and its base, for lanes accessing [lo, hi)."""
        a, buf = self.find(lo, hi)
        n = np.dtype(dtype).itemsize
        return a, buf[: buf.size // n * n].view(dtype)


class MBarrier:
    __slots__ = ("acc", "addr", "count", "done", "init", "pending", "phase", "tx")

    def __init__(self, addr, count):
        self.addr, self.count, self.pending, self.tx, self.phase = addr, count, count, 0, 0

    def settle(self):
        if self.pending == 0 and self.tx == 0:
            self.phase += 1
            self.pending = self.count
            np.maximum(self.done, self.acc, out=self.done)

    def arrive(self, n=1, who=""):
        if n > self.pending:
            raise EmulatorError(
                f"{self}: {n} arrivals by {who}, only {self.pending} pending in this phase"
            )
        self.pending -= n
        self.settle()

    def __repr__(self):
        return (
            f"mbarrier@{self.addr - SMEM_BASE:#x}(phase {self.phase}, pending {self.pending}/{self.count},"
            f" tx {self.tx})"
        )


class NamedBarrier:
    def __init__(self):
        self.arrived = self.generation = self.expected = 0
        self.acc = np.zeros(NAGENTS, np.int32)
        self.done = self.acc.copy()


class Cta:
    def __init__(
        self, kernel, gmem, params, ctaid, nctaid, ntid, schedule="lazy", seed=0, strict=True
    ):
        self.strict, self.warnings = strict, []
        self.k, self.gmem, self.ctaid, self.nctaid, self.ntid = kernel, gmem, ctaid, nctaid, ntid
        self.smem = np.full(SMEM_BASE + SMEM_SIZE, 0xFF, U8)  # NaN in every float format
        self.s16, self.s32, self.s64 = self.smem.view(U16), self.smem.view(U32), self.smem.view(U64)
        self.granule = self.smem.reshape(-1, 16)
        # async accesses in flight per 16-byte granule: writes by TMA, reads by MMA or TMA store
        self.inflight_w = np.zeros(len(self.granule), np.int16)
        self.inflight_r = np.zeros(len(self.granule), np.int16)
        self.tmem = np.full((128, 512), 0x7FC0DEAD, U32)
        self.tmem_w = np.zeros(512, np.int32)  # in-flight MMA writes per column
        self.tmem_r = np.zeros(512, np.int32)
        self.tmem_owner = np.zeros(512, bool)
        self.alloc_permit = True
        self.params = np.zeros(4096, U8)
        self.params[: len(params)] = np.frombuffer(params, U8)
        self.bars = {}
        self.named = {}
        self.tensor_q = deque()  # tcgen05 pipe: MMAs and commits complete in order
        self.tma_q = []  # TMA transfers complete in any order
        self.bulk = {}  # warp -> open bulk-store groups
        self.warp = 0  # the warp that is running
        self.hb = Clocks(-(-int(np.prod(ntid)) // 32), len(self.granule), self.report)
        self.schedule, self.rng = schedule, random.Random(seed)
        self.stats = {}

    def report(self, text):
        """A violation that may be benign on hardware: fatal in strict mode, else recorded."""
        if self.strict:
            raise EmulatorError(text)
        self.warnings.append(text)

    # ---- generic loads and stores (addr: per-lane array, m: lane mask or None) ----
    def _lanes(self, addr, m, size):
        if m is not None:
            addr = np.where(m, addr, addr[np.argmax(m)])
        if (addr & addr.dtype.type(size - 1)).any():
            raise EmulatorError(f"misaligned {size}-byte access at {int(addr[0]):#x}")
        return addr

    def ld_shared(self, addr, n, w, m):
        addr = self._lanes(addr, m, n * w)
        g = addr >> 4
        if self.inflight_w[g].any():
            raise EmulatorError(
                f"race: ld.shared of {int(addr[0]) - SMEM_BASE:#x} while an async write is in flight"
            )
        self.hb.ld_shared(g, self.warp)
        view = {1: self.smem, 2: self.s16, 4: self.s32, 8: self.s64}[w]
        i = addr // w
        return [view[i + j] for j in range(n)]

    def st_shared(self, addr, vals, w, m):
        addr = self._lanes(addr, m, len(vals) * w)
        g = addr >> 4
        if self.inflight_w[g].any() or self.inflight_r[g].any():
            raise EmulatorError(
                f"race: st.shared to {int(addr[0]) - SMEM_BASE:#x} while an async access is in flight"
            )
        self.hb.st_shared(g, self.warp)
        view = {1: self.smem, 2: self.s16, 4: self.s32, 8: self.s64}[w]
        i = addr // w
        for j, v in enumerate(vals):
            if m is None:
                view[i + j] = v
            else:
                view[i[m] + j] = v[m]

    def ld_param(self, addr, n, w):
        i = int(addr) - PARAM_BASE
        t = {1: U8, 2: U16, 4: U32, 8: U64}[w]
        vals = self.params[i : i + n * w].view(t)
        return [np.full(32, v, t) for v in vals]

    def _global(self, addr, n, w, m):
        addr = self._lanes(addr, m, n * w)
        t = {1: U8, 2: U16, 4: U32, 8: U64}[w]
        base, view = self.gmem.view(int(addr.min()), int(addr.max()) + n * w, t)
        return ((addr - U64(base)) // U64(w)).astype(np.int64), view

    def ld_global(self, addr, n, w, m):
        i, view = self._global(addr, n, w, m)
        return [view[i + j] for j in range(n)]

    def st_global(self, addr, vals, w, m):
        i, view = self._global(addr, len(vals), w, m)
        for j, v in enumerate(vals):
            if m is None:
                view[i + j] = v
            else:
                view[i[m] + j] = v[m]

    def atom(self, space, op, addr, w, val, m, as_float):
        """atom/red: lanes in order. Returns the old values."""
        t = {4: U32, 8: U64}[w]
        if space == "shared":
            i, view = self._lanes(addr, m, w) // w, self.s32 if w == 4 else self.s64
        else:
            i, view = self._global(addr, 1, w, m)
        if as_float:
            view, val = view.view(F32), val.view(F32)
        old = np.zeros(32, view.dtype)
        fn = {
            "add": lambda a, b: a + b,
            "max": max,
            "min": min,
            "exch": lambda a, b: b,
            "or": lambda a, b: a | b,
            "and": lambda a, b: a & b,
            "inc": lambda a, b: 0 if a >= b else a + 1,
        }[op]
        for l in range(32) if m is None else np.flatnonzero(m):
            old[l] = view[i[l]]
            view[i[l]] = fn(view[i[l]], val[l])
        return old.view(t)

    # ---- mbarriers ----
    def one(self, x, m):
        """The value of a warp-uniform operand over the active lanes."""
        if m is None:
            return int(x[0])
        v = x[m]
        if (v != v[0]).any():
            raise EmulatorError("operand should be uniform over the active lanes")
        return int(v[0])

    def bar(self, addr):
        b = self.bars.get(int(addr))
        if b is None:
            raise EmulatorError(
                f"mbarrier operation on {int(addr) - SMEM_BASE:#x}, where none was initialised"
            )
        self.hb.touch_bar(b, self.warp)
        return b

    def mbar_init(self, addr, count, m):
        a = self.one(addr, m)
        self.bars[a] = MBarrier(a, self.one(count, m))
        self.hb.init_bar(self.bars[a], self.warp)

    def mbar_inval(self, addr, m):
        self.bars.pop(self.one(addr, m))

    def mbar_arrive(self, addr, count, m, who):
        for l in range(32) if m is None else np.flatnonzero(m):
            b = self.bar(addr[l])
            self.hb.release(b, self.warp)
            b.arrive(int(count[l]), who)

    def mbar_expect(self, addr, tx, m, arrive, who):
        for l in range(32) if m is None else np.flatnonzero(m):
            b = self.bar(addr[l])
            b.tx += int(tx[l])
            if arrive:
                self.hb.release(b, self.warp)
                b.arrive(1, who)

    def mbar_ready(self, addr, parity, m, peek=False):
        """(phase with that parity complete?, barrier) for a warp-uniform barrier."""
        b = self.bar(self.one(addr, m))
        ok = (b.phase & 1) != (self.one(parity, m) & 1)
        if peek and self.schedule == "random" and self.rng.random() < 0.5:
            ok = False  # try_wait without a time limit may give up at once
        if ok:
            self.hb.acquire(b, self.warp)
        return ok, b

    # ---- TMA ----
    def tensor_map(self, addr):
        a = int(addr)
        if not PARAM_BASE <= a < PARAM_BASE + len(self.params):
            raise EmulatorError(f"tensor map at {a:#x}, outside the kernel's parameters")
        raw = self.params[a - PARAM_BASE : a - PARAM_BASE + 64].tobytes()
        if raw not in self.maps:
            raise EmulatorError("a tensor map that no recorded atom stands for")
        return self.maps[raw]

    def tma_load(self, dst, desc, coords, mbar, m, who):
        for l in range(32) if m is None else np.flatnonzero(m):
            t = self.tensor_map(desc[l])
            xyz = [int(c[l].astype(np.int32)) for c in coords]
            d = int(dst[l])
            b = self.bar(mbar[l])
            g = tma.granules(t, d)
            if self.inflight_w[g].any() or self.inflight_r[g].any():
                raise EmulatorError(
                    f"race: TMA load into {d - SMEM_BASE:#x} while an async access to it is in flight ({who})"
                )
            snap = self.hb.tma_load(g, b, self.warp)
            self.granule[g] = 0xFF  # poison until it lands
            self.inflight_w[g] += 1

            def land(t=t, xyz=xyz, g=g, b=b, snap=snap):
                self.granule[g] = tma.read_box(t, xyz, self.gmem).reshape(-1, 16)
                self.inflight_w[g] -= 1
                b.tx -= t.bytes
                np.maximum(b.acc, snap, out=b.acc)
                b.settle()

            self.submit_tma(land)

    def tma_store(self, desc, coords, src, m, warp, reduce=None):
        lanes = np.arange(32) if m is None else np.flatnonzero(m)
        if reduce is None and all((x[lanes] == x[lanes[0]]).all() for x in (desc, src, *coords)):
            lanes = lanes[:1]  # CuTe DSL lets whole warps issue the same (idempotent) store
        for l in lanes:
            t = self.tensor_map(desc[l])
            xyz = [int(c[l].astype(np.int32)) for c in coords]
            g = tma.granules(t, int(src[l]))
            if self.inflight_w[g].any():
                raise EmulatorError(
                    "race: TMA store from shared memory that an async write is still filling"
                )
            self.inflight_r[g] += 1
            self.hb.bulk_read(g, warp)
            group = self.bulk.setdefault(warp, [[]])[-1]
            op = [False]
            group.append(op)

            def land(t=t, xyz=xyz, g=g, op=op):
                tma.write_box(t, xyz, self.granule[g].reshape(-1), self.gmem, reduce)
                self.inflight_r[g] -= 1
                op[0] = True

            self.submit_tma(land)

    def bulk_reduce(self, dst, src, size, m, warp, dtype, op):
        """cp.reduce.async.bulk.global.shared::cta.bulk_group.<op>.<dtype>"""
        for l in range(32) if m is None else np.flatnonzero(m):
            d, s, n = int(dst[l]), int(src[l]), int(size[l])
            g = np.arange(s >> 4, (s + n) >> 4)
            self.inflight_r[g] += 1
            self.hb.bulk_read(g, warp)
            done = [False]
            self.bulk.setdefault(warp, [[]])[-1].append(done)

            def land(d=d, s=s, n=n, g=g, done=done):
                base, view = self.gmem.view(d, d + n, dtype)
                i = (d - base) // np.dtype(dtype).itemsize
                val = self.smem[s : s + n].view(dtype)
                view[i : i + len(val)] = view[i : i + len(val)] + val if op == "add" else val
                self.inflight_r[g] -= 1
                done[0] = True

            self.submit_tma(land)

    def bulk_commit(self, warp):
        self.bulk.setdefault(warp, [[]]).append([])

    def bulk_done(self, warp, n):
        """Have all committed bulk groups of the warp but the n most recent completed?"""
        groups = self.bulk.get(warp, [[]])[:-1]
        old = groups[: len(groups) - n] if n else groups
        if any(not op[0] for g in old for op in g):
            return False
        self.hb.wait_bulk(warp, sum(len(g) for g in old))
        return True

    def submit_tma(self, land):
        self.stats["tma"] = self.stats.get("tma", 0) + 1
        if self.schedule == "eager":
            land()
        else:
            self.tma_q.append(land)

    # ---- tcgen05 ----
    def tmem_alloc(self, dst, ncols, m):
        n = self.one(ncols, m)
        if n < 32 or n > 512 or n & (n - 1):
            raise EmulatorError(f"tcgen05.alloc of {n} columns")
        for c in range(0, 512 - n + 1, n):
            if not self.tmem_owner[c : c + n].any():
                self.tmem_owner[c : c + n] = True
                self.st_shared(dst, [np.full(32, c, U32)], 4, m)
                return True
        return False

    def tmem_dealloc(self, addr, ncols, m):
        c, n = self.one(addr, m) & 0xFFFF, self.one(ncols, m)
        if not self.tmem_owner[c : c + n].all():
            raise EmulatorError(
                f"tcgen05.dealloc of columns [{c}, {c + n}) that are not all allocated"
            )
        self.hb.tmem_free(self.warp, c, n)
        if self.tmem_w[c : c + n].any() or self.tmem_r[c : c + n].any():
            self.report(
                f"tcgen05.dealloc of columns that MMAs in flight use: "
                f"{[f.what for f in self.tensor_q]}"
            )
        self.tmem_owner[c : c + n] = False

    def _tmem_cols(self, addr, m, warp, ncols):
        a = self.one(addr, m)
        lane, col = a >> 16, a & 0xFFFF
        if lane != 32 * (warp % 4):
            raise EmulatorError(f"tcgen05.ld/st by warp {warp} to TMEM lane {lane}")
        if col + ncols > 512 or not self.tmem_owner[col : col + ncols].all():
            self.report(
                f"tcgen05.ld/st of columns [{col}, {col + ncols}) that are not allocated (warp {warp})"
            )
        return lane, col

    def tmem_ld(self, addr, n, m, warp):
        lane, col = self._tmem_cols(addr, m, warp, n)
        self.hb.tmem_ld(warp, col, n)
        if self.tmem_w[col : col + n].any():
            raise EmulatorError(
                f"race: tcgen05.ld of columns [{col}, {col + n}) that an MMA in flight writes"
            )
        block = self.tmem[lane : lane + 32, col : col + n].T.copy()
        return list(block)

    def tmem_st(self, addr, vals, m, warp):
        lane, col = self._tmem_cols(addr, m, warp, len(vals))
        self.hb.tmem_st(warp, col, len(vals))
        if self.tmem_w[col : col + len(vals)].any() or self.tmem_r[col : col + len(vals)].any():
            raise EmulatorError(
                f"race: tcgen05.st to columns [{col}, {col + len(vals)}) that an MMA in flight uses"
            )
        self.tmem[lane : lane + 32, col : col + len(vals)] = np.stack(vals, 1)

    def mma(self, d, a, b, idesc, acc, m, a_in_tmem, kind, who=""):
        l = 0 if m is None else int(np.argmax(m))
        if m is None or m.sum() != 1:
            raise EmulatorError("tcgen05.mma must be issued by one thread")
        op = umma.Mma(int(d[l]), int(a[l]), int(b[l]), int(idesc[l]), bool(acc[l]), a_in_tmem, kind)
        if not self.tmem_owner[op.dcols].all():
            raise EmulatorError("tcgen05.mma into TMEM columns that are not allocated")
        for g in op.smem_operands():
            # operands are read when the MMA runs; they must have landed when it is issued
            if self.inflight_w[g].any():
                raise EmulatorError(
                    "race: tcgen05.mma reads shared memory that a TMA load is still filling"
                )
            self.inflight_r[g] += 1
        self.hb.mma(op, self.warp)
        self.tmem_w[op.dcols] += 1
        if a_in_tmem:
            self.tmem_r[op.acols] += 1
        self.stats["mma"] = self.stats.get("mma", 0) + 1

        def run():
            op.execute(self)
            for g in op.smem_operands():
                self.inflight_r[g] -= 1
            self.tmem_w[op.dcols] -= 1
            if a_in_tmem:
                self.tmem_r[op.acols] -= 1

        self.submit_tensor(run, f"mma D cols [{op.dcol},{op.dcol + op.n}) {who}")

    def commit(self, mbar, m, who):
        for l in range(32) if m is None else np.flatnonzero(m):
            b = self.bar(mbar[l])
            snap = self.hb.commit(self.warp)

            def run(b=b, snap=snap):
                np.maximum(b.acc, snap, out=b.acc)
                b.arrive(1, "tcgen05.commit of " + who)

            self.submit_tensor(run, f"commit {b} {who}")

    def submit_tensor(self, run, what=""):
        run.what = what
        if self.schedule == "eager":
            run()
        else:
            self.tensor_q.append(run)

    def step_async(self):
        """Complete one asynchronous operation. False if there is none."""
        choices = list(range(len(self.tma_q))) + ([-1] if self.tensor_q else [])
        if not choices:
            return False
        c = self.rng.choice(choices)
        (self.tensor_q.popleft() if c < 0 else self.tma_q.pop(c))()
        return True

    # ---- bar.sync: returns a ticket that wait_named polls ----
    def bar_arrive(self, ident, nthreads):
        n = nthreads or int(np.prod(self.ntid))
        b = self.named.setdefault(ident, NamedBarrier())
        if b.arrived and b.expected != n:
            raise EmulatorError(f"bar {ident}: {n} threads expected here, {b.expected} elsewhere")
        b.expected = n
        gen = b.generation
        b.arrived += 32
        self.hb.release(b, self.warp)
        if b.arrived > n:
            raise EmulatorError(f"bar {ident}: more than {n} threads arrived")
        if b.arrived == n:
            b.arrived, b.generation = 0, gen + 1
            b.done = b.acc.copy()
        return b, gen

    # ---- scheduler ----
    def run(self, entry):
        nthreads = int(np.prod(self.ntid))
        warps = [(w, entry(self, w)) for w in range((nthreads + 31) // 32)]
        waiting = {w: None for w, _ in warps}
        gens = dict(warps)
        while gens:
            progress = False
            order = list(gens)
            if self.schedule == "random":
                self.rng.shuffle(order)
            for w in order:
                cond = waiting[w]
                if cond is not None and cond is not SPIN and not self.ready(cond):
                    continue
                self.warp = w
                try:
                    nxt = next(gens[w])
                except StopIteration:
                    del gens[w]
                    waiting.pop(w)
                    progress = True
                    continue
                except EmulatorError as e:
                    raise EmulatorError(
                        f"CTA {self.ctaid} warp {w}, PTX line {ptx_line(gens[w], e)}: {e}"
                    ) from e
                # a spinning warp that spins again made no progress
                progress |= not (nxt is SPIN and cond is SPIN)
                waiting[w] = nxt
                if self.schedule == "random" and self.rng.random() < 0.3:
                    self.step_async()
            if not progress and not self.step_async():
                lines = [
                    f"  warp {w} at PTX line {ptx_line(gens[w])}: waits for {self.describe(waiting[w])}"
                    for w in gens
                ]
                raise EmulatorError(f"deadlock in CTA {self.ctaid}\n" + "\n".join(lines))
        while self.step_async():
            pass
        if self.tmem_owner.any():
            raise EmulatorError(
                f"{int(self.tmem_owner.sum())} TMEM columns still allocated at exit"
            )
        for b in self.bars.values():
            if b.tx:
                raise EmulatorError(f"{b} has outstanding transaction bytes at exit")

    def ready(self, c):
        if c[0] == "mbar":
            return (c[1].phase & 1) != c[2]
        if c[0] == "bar":
            return c[1].generation != c[2]
        if c[0] == "bulk":
            return self.bulk_done(c[1], c[2])
        return True

    def describe(self, c):
        if c[0] == "mbar":
            return f"{c[1]} parity {c[2]}"
        if c[0] == "bar":
            return f"bar.sync, {c[1].arrived} of {c[1].expected} threads arrived"
        return c[0]


def ptx_line(gen, exc=None):
    """PTX line of a suspended generator, or of the innermost generated frame of an exception."""
    if exc is not None:
        tb, line = exc.__traceback__, None
        while tb:
            if tb.tb_frame.f_code.co_filename.startswith("<ptx"):
                line = tb.tb_frame.f_globals["LINES"].get(tb.tb_lineno)
            tb = tb.tb_next
        return line
    return gen.gi_frame.f_globals["LINES"].get(gen.gi_frame.f_lineno) if gen.gi_frame else None
