"""Tensor memory (128 lanes of 512 columns of 32 bits) and the tcgen05 pipe.

A tensor-memory address is lane << 16 | column. Row i of an f32 accumulator with 128 rows lies in
lane i, its column n in column n; with 64 rows it lies in lanes 0-15 of each quarter. An operand A
in tensor memory holds two 16-bit elements a column. Products and commits complete in the order of
issue.

A product of a pair of CTAs is issued by the leading one, whose rank is even. Each CTA has half of
the rows of A and of D, and half of the rows of B (columns of D) in its shared memory. The addresses
of operands are the same in both. Of 256 rows of D each CTA has 128, in as many lanes. Of 128 each
has 64: their left half of the columns in lanes 0-63, their right half in lanes 64-127.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from .clocks import COLUMNS, QUARTERS, tensor_cells
from .copies import windows
from .descriptors import Form, operand, operand_granules, widened
from .faults import EmulatorError
from .gangs import Gang, Vector, uniform
from .ptx import WINDOW

if TYPE_CHECKING:
    from .machine import Cta

LANES = 128
POISON = 0x7FC0DEAD  # a NaN
MIN_COLUMNS = 32
K = 16  # of one instruction, 16-bit operands


class Tensor:
    """Of the CTA of this rank in its cluster."""

    def __init__(self, cta: "Cta", rank: int) -> None:
        self.cta, self.rank = cta, rank
        self.words = np.full((LANES, COLUMNS), POISON, np.uint32)
        self.writes = np.zeros(COLUMNS, np.int32)  # accumulators of products in flight
        self.reads = np.zeros(COLUMNS, np.int32)  # operands of products in flight
        self.allocated = np.zeros(COLUMNS, bool)
        self.relinquished = False

    # Allocation.
    def allocate(self, gang: Gang, target: Vector, columns: Vector, mask: Vector) -> bool:
        """False if there is no room now."""
        count = uniform(columns, gang.lanes(mask), "the columns of tcgen05.alloc")
        if count < MIN_COLUMNS or count > COLUMNS or count & (count - 1):
            raise EmulatorError(f"tcgen05.alloc of {count} columns")
        if self.relinquished:
            raise EmulatorError("tcgen05.alloc after relinquish_alloc_permit")
        if len(gang.active(mask)) != 1:
            raise EmulatorError("tcgen05.alloc is for one warp")
        for column in range(0, COLUMNS - count + 1, count):
            if not self.allocated[column : column + count].any():
                self.allocated[column : column + count] = True
                value = np.full(gang.size, column, np.uint32)
                self.cta.shared.store(gang, target, (value,), 4, mask)
                return True
        return False

    def deallocate(self, gang: Gang, address: Vector, columns: Vector, mask: Vector) -> None:
        lanes = gang.lanes(mask)
        column = uniform(address, lanes, "the address of tcgen05.dealloc") & 0xFFFF
        count = uniform(columns, lanes, "the columns of tcgen05.dealloc")
        part = slice(column, column + count)
        if not self.allocated[part].all():
            raise EmulatorError(f"tcgen05.dealloc of columns [{column}, {column + count})")
        self.cta.clocks.free_tensor(int(gang.active(mask)[0]), self.rank, column, count)
        if self.writes[part].any() or self.reads[part].any():
            self.cta.report("tcgen05.dealloc of columns that products in flight use")
        self.allocated[part] = False

    def relinquish(self) -> None:
        self.relinquished = True

    # Loads and stores of the shape 32x32b: each warp its own quarter of the lanes.
    def access(self, gang: Gang, address: Vector, count: int, mask: Vector, what: str):
        """(warps, first columns), one each for every warp."""
        if np.count_nonzero(mask) != gang.size:
            warps = gang.active(mask)
            if np.count_nonzero(mask) != 32 * len(warps):
                raise EmulatorError(f"tcgen05.{what} must be executed by whole warps")
        leaders = gang.leaders(mask)
        warps, places = gang.lane_warp[leaders], address[leaders]
        columns = (places & np.uint32(0xFFFF)).astype(np.int64)
        wrong = (places >> 16) != 32 * gang.quarters(warps)
        if wrong.any():
            warp, place = warps[wrong][0], places[wrong][0]
            raise EmulatorError(
                f"tcgen05.{what} by warp {warp} of tensor-memory lane {place >> 16}"
            )
        for column in np.unique(columns):
            if column + count > COLUMNS or not self.allocated[column : column + count].all():
                self.cta.report(
                    f"tcgen05.{what} of columns [{column}, {column + count}), not allocated"
                )
        return warps, columns

    def load(self, gang: Gang, address: Vector, count: int, mask: Vector) -> Vector:
        """[count, lanes]: a column a row."""
        warps, columns = self.access(gang, address, count, mask, "ld")
        self.cta.clocks.load_tensor(
            tensor_cells(gang.quarters(warps), columns, count, self.rank), np.repeat(warps, count)
        )
        for column in np.unique(columns):
            if self.writes[column : column + count].any():
                raise EmulatorError(
                    f"race: tcgen05.ld from column {column}, a product is in flight"
                )
        if len(warps) == 4 and (columns == columns[0]).all() and gang.quarters(warps)[0] == 0:
            return self.words[:, columns[0] : columns[0] + count].T.copy()
        out = np.zeros((count, gang.size), np.uint32)
        for slot, part in self.parts(gang, warps, columns, count):
            out[:, slot] = self.words[part].T
        return out

    def store(self, gang: Gang, address: Vector, data: tuple, mask: Vector) -> None:
        count = len(data)
        warps, columns = self.access(gang, address, count, mask, "st")
        self.cta.clocks.store_tensor(
            tensor_cells(gang.quarters(warps), columns, count, self.rank), np.repeat(warps, count)
        )
        for column in np.unique(columns):
            part = slice(column, column + count)
            if self.writes[part].any() or self.reads[part].any():
                raise EmulatorError(f"race: tcgen05.st to column {column}, a product is in flight")
        rows = np.array(data).T
        for slot, part in self.parts(gang, warps, columns, count):
            self.words[part] = rows[slot]

    def parts(
        self, gang: Gang, warps: Vector, columns: Vector, count: int
    ) -> Iterator[tuple[slice, tuple[slice, slice]]]:
        """For each warp its lanes of the gang, and its part of tensor memory."""
        place = {int(warp): 32 * i for i, warp in enumerate(gang.warps)}
        for warp, column in zip(warps, columns, strict=True):
            first, lane = place[int(warp)], 32 * int(gang.quarters(warp))
            part = slice(lane, lane + 32), slice(column, column + count)
            yield slice(first, first + 32), part

    # Products.
    def multiply(
        self, gang: Gang, d: Vector, a: Vector, b: Vector, form: Vector, accumulate: Vector,
        from_tensor: bool, kind: str, pair: bool, mask: Vector,
    ) -> None:  # fmt: skip
        if pair and self.rank % 2:
            raise EmulatorError("tcgen05.mma of a pair is issued by the CTA of even rank")
        if kind != "f16":
            raise NotImplementedError(f"tcgen05.mma of kind {kind}")
        lanes = gang.lanes(mask)
        if len(lanes) != len(gang.active(mask)):
            raise EmulatorError("tcgen05.mma must be issued by one thread")
        tensors = self.cta.tensors[self.rank : self.rank + 1 + pair]
        for lane in lanes:
            product = Product(
                tensors, int(d[lane]), int(a[lane]), int(b[lane]), int(form[lane]),
                bool(accumulate[lane]), from_tensor,
            )  # fmt: skip
            self.issue(product, int(gang.lane_warp[lane]))

    def issue(self, product: "Product", warp: int) -> None:
        """Of a pair by its leading CTA."""
        cta, shared = self.cta, self.cta.shared
        for tensor in product.tensors:
            if not tensor.allocated[product.columns].all():
                raise EmulatorError(f"tcgen05.mma into columns {product.columns}, not allocated")
        for cells in product.granules:
            shared.check(int(cells.min()) * 16, int(cells.max()) * 16 + 16)
            if shared.writes[cells].any():
                raise EmulatorError("race: tcgen05.mma of shared memory that TMA is filling")
            shared.reads[cells] += 1
        places = product.granules, product.a_cells, product.d_cells
        cta.clocks.multiply(warp, self.rank, *places)
        product.mark(1)
        cta.counts["mma"] += 1

        def complete() -> None:
            product.run()
            for cells in product.granules:
                shared.reads[cells] -= 1
            product.mark(-1)

        cta.submit_tensor(complete, self.rank)

    def commit(self, gang: Gang, address: Vector, ctas: Vector | None, mask: Vector) -> None:
        """The mbarrier gets one arrival when all products before it are complete. ctas: Those of
        the cluster whose mbarrier gets one, a bit for each."""
        cta = self.cta
        for lane in gang.lanes(mask):
            warp = int(gang.lane_warp[lane])
            published = cta.clocks.commit(warp, self.rank)
            for window in windows(int(address[lane]), None if ctas is None else int(ctas[lane])):
                place = window + int(address[lane]) % WINDOW
                barrier = cta.sync.signalled(place, warp)

                def complete(barrier=barrier, published=published, warp=warp) -> None:
                    if barrier.address // WINDOW != self.rank:  # its own CTA may have ended
                        cta.reach(barrier.address)
                    np.maximum(barrier.gathered, published, out=barrier.gathered)
                    barrier.arrive(1, f"tcgen05.commit of warp {warp}")

                cta.submit_tensor(complete, self.rank)


class Product:
    """One tcgen05.mma: D [m, n] = A [m, 16] B [n, 16]ᵀ (+ D). tensors: of the CTA, or the pair."""

    def __init__(
        self, tensors: list[Tensor], d: int, a: int, b: int, form: int, accumulate: bool,
        from_tensor: bool,
    ) -> None:  # fmt: skip
        self.tensors, self.accumulate = tensors, accumulate
        self.form = f = Form.decode(form, len(tensors) == 2)
        self.share = m, n = f.m // len(tensors), f.n // len(tensors)  # of a CTA
        self.folded = m < f.m < 2 * LANES
        if self.folded and (d >> 16 or from_tensor):
            raise NotImplementedError("128 rows of a pair elsewhere than in shared memory, lane 0")
        width = n if self.folded else f.n
        self.columns = slice(d & 0xFFFF, (d & 0xFFFF) + width)
        rows = np.arange(LANES if self.folded else m)
        self.lanes = (rows if len(rows) == LANES else rows // 16 * 32 + rows % 16) + (d >> 16)
        whole = len(rows) == LANES and d >> 16 == 0
        self.place = (slice(None), self.columns) if whole else (self.lanes, self.columns)
        self.d_cells = self.cells(self.columns.start, width)
        self.a_columns, self.a_cells, self.a = None, None, []
        if from_tensor:
            start = a & 0xFFFF
            self.a_columns = slice(start, start + K // 2)
            self.a_lanes = self.lanes - (d >> 16) + (a >> 16)
            self.a_cells = self.cells(start, K // 2)
        else:
            self.a = self.shared(operand_granules(a, m, f.a_mn_major))
        self.b = self.shared(operand_granules(b, n, f.b_mn_major))
        self.granules = self.a + self.b

    def cells(self, column: int, count: int) -> Vector:
        columns = np.full(4, column)
        cells = [tensor_cells(QUARTERS, columns, count, x.rank) for x in self.tensors]
        return np.concatenate(cells)

    def shared(self, granules: Vector) -> list[Vector]:
        """Those of each CTA."""
        return [granules + x.rank * WINDOW // 16 for x in self.tensors]

    def mark(self, by: int) -> None:
        """Counts what is in flight, or is no more."""
        for tensor in self.tensors:
            tensor.writes[self.columns] += by
            if self.a_columns:
                tensor.reads[self.a_columns] += by

    def run(self) -> None:
        f, (m, n), shared = self.form, self.share, self.tensors[0].cta.shared.granules
        parts = [operand(shared[cells], n, f.b_mn_major, f.b_format) for cells in self.b]
        b = np.concatenate(parts).T
        for number, tensor in enumerate(self.tensors):
            words = tensor.words
            if self.a:
                a = operand(shared[self.a[number]], m, f.a_mn_major, f.a_format)
            else:
                raw = np.ascontiguousarray(words[self.a_lanes, self.a_columns]).view(np.uint16)
                a = widened(raw, f.a_format)
            product = a @ b
            if self.folded:
                product = np.concatenate(np.split(product, 2, axis=1))
            if f.negative:
                product = -product
            if self.accumulate:
                product += words[self.place].view(np.float32)
            words[self.place] = product.view(np.uint32)
