"""Happens-before checking with vector clocks, independent of the schedule that was run.

Agents: each warp; each warp's unfinished tcgen05.st (joined by tcgen05.wait::st); each warp's bulk stores
(joined by cp.async.bulk.wait_group); the tcgen05 pipe (in order); and, for TMA loads, the mbarrier they
complete on (epoch = its phase).  A release (arrive, commit, bar) publishes a clock, an acquire (a wait that
succeeded, bar.sync) joins it.  Every 16-byte granule of shared memory and every (lane quarter, column) of
TMEM remembers its last write and the last read by each agent; an access not ordered after them is a race.
"""

import numpy as np

NAGENTS = 192


class Shadow:
    """Last write and last reads of an array of cells."""

    def __init__(self, ncells):
        self.wa = np.zeros(ncells, np.int16)
        self.we = np.zeros(ncells, np.int32)
        self.re = np.zeros((ncells, NAGENTS), np.int32)

    def read(self, cells, vc, agent, epoch):
        bad = vc[self.wa[cells]] < self.we[cells]
        self.re[cells, agent] = epoch
        return self.wa[cells][bad] if bad.any() else None

    def write(self, cells, vc, agent, epoch, record=True):
        bad = vc[self.wa[cells]] < self.we[cells]
        who = self.wa[cells][bad] if bad.any() else None
        if who is None:
            late = self.re[cells] > vc
            if late.any():
                who = np.nonzero(late.any(tuple(range(late.ndim - 1))))[0]
        if record:
            self.wa[cells], self.we[cells] = agent, epoch
            self.re[cells] = 0
        return who


class Clocks:
    def __init__(self, nwarps, nsmem, report):
        W = self.W = nwarps
        self.report = report
        self.vc = np.zeros((W, NAGENTS), np.int32)
        self.vc[np.arange(W), np.arange(W)] = 1
        self.names = [f"warp {w}" for w in range(W)] + [f"tcgen05.st of warp {w}" for w in range(W)]
        self.names += [f"bulk store of warp {w}" for w in range(W)] + ["tcgen05 pipe"]
        self.T = 3 * W
        self.tensor = np.zeros(NAGENTS, np.int32)
        self.st_count, self.bulk_count = np.zeros(W, np.int32), np.zeros(W, np.int32)
        self.smem, self.tmem = Shadow(nsmem), Shadow(4 * 512)
        self.dirty = np.zeros(
            nsmem, np.int16
        )  # generic write by warp w (w+1), not yet proxy-fenced
        self.bar_agent = {}

    def fail(self, what, who):
        names = sorted({self.names[a] for a in np.unique(who)})
        self.report(f"race: {what} is not ordered after the access by {', '.join(names)}")

    def agent_of(self, bar):
        if bar.addr not in self.bar_agent:
            self.bar_agent[bar.addr] = len(self.names)
            self.names.append(f"TMA load signalling mbarrier@{bar.addr - 1024:#x}")
        return self.bar_agent[bar.addr]

    # ---- synchronisation ----
    def init_bar(self, bar, w):
        bar.acc, bar.done = np.zeros(NAGENTS, np.int32), np.zeros(NAGENTS, np.int32)
        bar.init = (w, self.vc[w, w])

    def touch_bar(self, bar, w):
        a, e = bar.init
        if self.vc[w, a] < e:
            self.report(f"{bar} is used by warp {w} before its initialisation is visible to it")

    def release(self, obj, w):
        np.maximum(obj.acc, self.vc[w], out=obj.acc)
        self.vc[w, w] += 1

    def acquire(self, obj, w):
        np.maximum(self.vc[w], obj.done, out=self.vc[w])

    def wait_st(self, w):
        self.vc[w, self.W + w] = self.st_count[w]

    def wait_bulk(self, w, nops):
        """The warp's first nops bulk stores have been waited for."""
        self.vc[w, 2 * self.W + w] = max(self.vc[w, 2 * self.W + w], nops)

    def fence_proxy(self, w):
        self.dirty[self.dirty == w + 1] = 0

    # ---- accesses ----
    def ld_shared(self, g, w):
        if (who := self.smem.read(g, self.vc[w], w, self.vc[w, w])) is not None:
            self.fail(f"ld.shared by warp {w}", who)

    def st_shared(self, g, w):
        if (who := self.smem.write(g, self.vc[w], w, self.vc[w, w])) is not None:
            self.fail(f"st.shared by warp {w}", who)
        self.dirty[g] = w + 1

    def async_read(self, g, what):
        if self.dirty[g].any():
            self.report(
                f"{what} reads shared memory written by warp {int(self.dirty[g].max()) - 1} "
                "without fence.proxy.async"
            )

    def tma_load(self, g, bar, w):
        """Returns what landing must publish on the barrier."""
        a, e = self.agent_of(bar), bar.phase + 1
        if (who := self.smem.write(g, self.vc[w], a, e)) is not None:
            self.fail(f"TMA load issued by warp {w}", who)
        self.dirty[g] = 0
        snap = self.vc[w].copy()
        snap[a] = max(snap[a], e)
        return snap

    def bulk_read(self, g, w):
        self.bulk_count[w] += 1
        self.async_read(g, "TMA store")
        if (who := self.smem.read(g, self.vc[w], 2 * self.W + w, self.bulk_count[w])) is not None:
            self.fail(f"TMA store issued by warp {w}", who)

    def mma(self, op, w):
        np.maximum(self.tensor, self.vc[w], out=self.tensor)
        self.tensor[self.T] += 1
        e = self.tensor[self.T]
        for g in op.smem_operands():
            self.async_read(g, "tcgen05.mma")
            if (who := self.smem.read(g, self.tensor, self.T, e)) is not None:
                self.fail("tcgen05.mma shared operand", who)
        if op.a_in_tmem:
            if (
                who := self.tmem.read(cells(range(4), op.acols), self.tensor, self.T, e)
            ) is not None:
                self.fail("tcgen05.mma TMEM operand", who)
        if (who := self.tmem.write(cells(range(4), op.dcols), self.tensor, self.T, e)) is not None:
            self.fail(f"tcgen05.mma accumulator [{op.dcol}, {op.dcol + op.n})", who)

    def commit(self, w):
        np.maximum(self.tensor, self.vc[w], out=self.tensor)
        return self.tensor.copy()

    def tmem_ld(self, w, col, n):
        if (
            who := self.tmem.read(cells([w % 4], slice(col, col + n)), self.vc[w], w, self.vc[w, w])
        ) is not None:
            self.fail(f"tcgen05.ld of columns [{col}, {col + n}) by warp {w}", who)

    def tmem_st(self, w, col, n):
        self.st_count[w] += 1
        if (
            who := self.tmem.write(
                cells([w % 4], slice(col, col + n)), self.vc[w], self.W + w, self.st_count[w]
            )
        ) is not None:
            self.fail(f"tcgen05.st to columns [{col}, {col + n}) by warp {w}", who)

    def tmem_free(self, w, col, n):
        if (
            who := self.tmem.write(
                cells(range(4), slice(col, col + n)), self.vc[w], w, 0, record=False
            )
        ) is not None:
            self.fail(f"tcgen05.dealloc of columns [{col}, {col + n}) by warp {w}", who)


def cells(quarters, cols):
    return (
        np.asarray(list(quarters))[:, None] * 512 + np.arange(cols.start, cols.stop)[None, :]
    ).reshape(-1)
