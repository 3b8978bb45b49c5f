"""Read and write tensor memory, in an order around mbarriers."""

from dataclasses import dataclass
from typing import Any, ClassVar

from cutlass import Float32, const_expr, cute
from cutlass.cute.nvgpu import tcgen05

from ..barriers import Mbarriers
from ..values import Fixed
from .config import ROWS

EACH = 0b11  # a bit for each CTA of a pair


@cute.jit
def arrive_when_multiplied(barriers: Mbarriers, place):
    """Arrive when all products issued so far are complete, in each CTA of a pair. The product warp
    calls it.
    """
    with cute.arch.elect_one():
        if const_expr(barriers.ctas > 1):
            tcgen05.commit(barriers.at(place), EACH, tcgen05.CtaGroup.TWO)
        else:
            tcgen05.commit(barriers.at(place))


def scores_ready() -> None:
    """Call it after a wait: accesses of tensor memory come after what was waited for."""
    cute.arch.inline_ptx("tcgen05.fence::after_thread_sync;")


def scores_done(stored: bool) -> None:
    """Call it before an arrival: loads or stores of tensor memory by this thread come before it."""
    if stored:
        cute.arch.fence_view_async_tmem_store()
    else:
        cute.arch.fence_view_async_tmem_load()
    cute.arch.inline_ptx("tcgen05.fence::before_thread_sync;")


@dataclass
class TensorMemoryRow(Fixed):
    """The row (lane) of tensor memory that a thread owns. Columns have 32 bits."""

    pointer: Any  # to column 0
    thread: Any
    dtype: Any  # of stores

    def load(self, column, width: int):
        return ColumnLoads(self, column, width, width).load(0)

    def store(self, column, registers) -> None:
        width = cute.size(registers) // 2
        ColumnStores(self, column, width, width).store(0, registers)


@dataclass
class ColumnCopies(Fixed):
    """Copies of `count` columns of a row, `width` columns at a time."""

    row: TensorMemoryRow
    column: Any
    width: int
    count: int

    OPERATION: ClassVar[Any]

    def __post_init__(self) -> None:
        atom = cute.make_copy_atom(self.OPERATION(tcgen05.Repetition(self.width)), Float32)
        layout = cute.make_layout((ROWS, self.count), stride=(1 << 16, 1))
        self.window = cute.make_tensor(self.row.pointer + self.column, layout)
        self.copy = tcgen05.make_tmem_copy(atom, self.window)
        self.part = self.copy.get_slice(self.row.thread % ROWS)

    def registers(self):
        return cute.make_rmem_tensor(((self.width, 1), 1), Float32)


class ColumnLoads(ColumnCopies):
    OPERATION = tcgen05.Ld32x32bOp

    def __post_init__(self) -> None:
        super().__post_init__()
        self.columns = self.part.partition_S(self.window)

    def load(self, part: int):
        """The columns from width·part on, as fp32. Valid after `fence_view_async_tmem_load`."""
        registers = self.registers()
        cute.copy(self.copy, self.columns[None, None, part], registers)
        return cute.make_tensor(registers.iterator, cute.make_layout(self.width))


class ColumnStores(ColumnCopies):
    OPERATION = tcgen05.St32x32bOp

    def store(self, part: int, registers) -> None:
        """Store fp32 registers as 16-bit elements, two in a column. It is in flight afterwards."""
        packed = self.registers()
        narrow = cute.recast_ptr(packed.iterator, dtype=self.row.dtype)
        halves = cute.make_tensor(narrow, cute.make_layout(2 * self.width))
        halves.store(registers.load().to(self.row.dtype))
        columns = self.part.partition_D(self.window)
        cute.copy(self.copy, packed, columns[None, None, part])
