"""Products of one warpgroup (wgmma): 64 rows, with sums in registers.

Operands are in swizzled shared memory, or, for A, in registers. Thread i of the warpgroup holds two
rows of the sums: row0 = 16·(i // 32) + i % 32 // 4, and row0 + 8. In each 8 columns it holds two,
from col0 = 2·(i % 4) on. Its register r is the element

    row0 + 8·(r // 2 % 2),  col0 + 8·(r // 4) + r % 2
"""

import functools
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cutlass import Constexpr, Float32, Int32, cute
from cutlass.cute.nvgpu import OperandMajorMode, warp, warpgroup
from cutlass.utils import hopper_helpers

from ..values import Fixed, select

WARPGROUP = 128  # threads
K, MN = OperandMajorMode.K, OperandMajorMode.MN
SHARED, REGISTERS = warpgroup.OperandSource.SMEM, warpgroup.OperandSource.RMEM


def first_row(thread):
    return thread // 32 * 16 + thread % 32 // 4


def tiled(dtype, cols: int, b_major, a_source=SHARED, a_major=K, groups: int = 1):
    """The tiled product of [64, k] by [k, cols], for each of `groups` warpgroups."""
    return hopper_helpers.make_trivial_tiled_mma(
        dtype, dtype, a_major, b_major, Float32, (groups, 1, 1), (64, cols), a_source
    )


def issue(product, sums, a, b, fresh: bool) -> None:
    """Issue sums = a b (if `fresh`) or sums += a b. The product is in flight as one group."""
    warpgroup.fence()
    atom = cute.make_mma_atom(product.op)
    atom.set(warpgroup.Field.ACCUMULATE, not fresh)
    for k in range(cute.size(a.shape[2])):
        cute.gemm(atom, sums, a[None, None, k], b[None, None, k], sums)
        atom.set(warpgroup.Field.ACCUMULATE, True)
    warpgroup.commit_group()


def operand_layout(layout):
    """The layout of sums when they are read as operand A, from the same registers."""
    halves = cute.logical_divide(layout, ((None, None, 2), None, None))
    (a, b, (c, d)), m, n = halves.shape
    (sa, sb, (sc, sd)), sm, sn = halves.stride
    return cute.make_layout(((a, b, c), m, (d, n)), stride=((sa, sb, sc), sm, (sd, sn)))


def as_operand(sums, dtype):
    """Sums, rounded to 16 bits, as operand A."""
    layout = operand_layout(sums.layout)
    out = cute.make_rmem_tensor(layout, dtype)
    out.store(cute.make_tensor(sums.iterator, layout).load().to(dtype))
    return out


def replace_operand(old, new) -> None:
    """Copy operand `new` to the registers of `old`, once no product in flight reads these."""
    # The moves are inline PTX, so that the compiler cannot see through them. Otherwise it computes
    # `new` in the registers of `old`, sees that a product reads them, and waits for every product.
    into, out = (cute.recast_tensor(x, Int32) for x in (old, new))
    for word in range(cute.size(into)):
        into[word] = cute.arch.inline_ptx(
            "mov.b32 {$w0}, {$r0};", write_only_types=[Int32], read_only_args=[out[word]]
        )


def share(product, halves, buffers, stage, thread) -> None:
    """Copy the sums of a product, in 16 bits, to a buffer in shared memory."""
    atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), halves.element_type)
    copy = cute.make_tiled_copy_C(atom, product)
    part = copy.get_slice(thread)
    cute.copy(copy, part.retile(halves), part.partition_D(buffers)[None, None, None, stage])
    cute.arch.fence_view_async_shared()


def zero_after(words: Iterable[Any]):
    """A zero, once loads from shared memory have brought these words of 32 bits.

    An arrival that frees the memory must not overtake the loads, which others may delay for longer
    than the next tile takes. So this zero is added to the address of its barrier. The compiler
    cannot know that it is one.
    """
    together = functools.reduce(operator.xor, words)
    popc = "{ .reg .b32 n; popc.b32 n, {$r0}; shr.u32 {$w0}, n, 6; }"
    return cute.arch.inline_ptx(popc, write_only_types=[Int32], read_only_args=[together])


@cute.jit
def wait_for_stores(thread, read: Constexpr):
    """The first warp of a warpgroup waits for its TMA stores, if `read` until they have read."""
    if thread < 32:
        cute.arch.cp_async_bulk_wait_group(0, read=read)


def tile_layout(dtype, rows: int, width: int):
    """The layout of [rows, width] in shared memory, with the widest swizzle for this width."""
    # A row has a multiple of 64 bytes.
    kinds = warpgroup.SmemLayoutAtomKind
    kind = kinds.K_SW64 if width * dtype.width // 8 % 128 else kinds.K_SW128
    atom = warpgroup.make_smem_layout_atom(kind, dtype)
    return cute.tile_to_shape(atom, (rows, width), order=(0, 1))


def swizzled(row, byte, width: int):
    """Where a byte of a row of `tile_layout` is, if rows have 64 or 128 bytes."""
    turn = row if width == 128 else row >> 1
    piece = (byte >> 4) ^ (turn & (width // 16 - 1))
    return row * width + (piece << 4) + (byte & 15)


def staged(layout, stages: int):
    return cute.append(layout, cute.make_layout(stages, stride=cute.cosize(layout)))


def transposed(x):
    return cute.make_tensor(x.iterator, cute.select(x.layout, mode=[1, 0, 2]))


@dataclass
class IssueTurns(Fixed):
    """Turns: in each step the warpgroups issue their products one after the other, from t = 0 on.

    So a warpgroup activates its scores while the products of others run. Without turns, all would
    issue products at once, and then all would wait for the special functions.

    Warpgroup t has the named barrier `first` + t. It waits there for its turn, and the warpgroup
    before it arrives there to pass the turn on.
    """

    t: Any
    tiles: int
    first: int

    @cute.jit
    def start(self):
        if self.t == self.tiles - 1:
            self.passes()

    def wait(self) -> None:
        cute.arch.barrier(barrier_id=self.first + self.t, number_of_threads=2 * WARPGROUP)

    def passes(self) -> None:
        if self.tiles == 2:
            other = self.first + 1 - self.t
        else:
            other = self.first + select(self.t == self.tiles - 1, 0, self.t + 1)
        cute.arch.barrier_arrive(barrier_id=other, number_of_threads=2 * WARPGROUP)

    @cute.jit
    def finish(self):
        """Call it after the last step. t = 0 takes the last turn, so that no arrival is left."""
        if self.t == 0:
            self.wait()
