"""A CuTe kernel that tests of the host side compile: it doubles a matrix by way of TMA.

Y[r, c] = X[r, c] + X[r, c], in tiles of [ROWS, COLUMNS]; both may have any strides that TMA takes.
"""

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import cpasync

ROWS, COLUMNS = 8, 32


@cute.struct
class Storage:
    barrier: cutlass.Int64


@cute.kernel
def kernel(load: cute.CopyAtom, x: cute.Tensor, y: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    column, row, _ = cute.arch.block_idx()
    allocator = cutlass.memory.SmemAllocator()
    storage = allocator.allocate(Storage)
    tile = allocator.allocate_tensor(
        cutlass.Float32, cute.make_layout((ROWS, COLUMNS), stride=(COLUMNS, 1)), byte_alignment=128
    )
    barrier = storage.barrier.ptr
    if thread == 0:
        cute.arch.mbarrier_init(barrier, 1)
    cute.arch.mbarrier_init_fence()
    cute.arch.barrier()
    if thread == 0:
        cute.arch.mbarrier_arrive_and_expect_tx(barrier, ROWS * COLUMNS * 4)
    part = cute.local_tile(x, (ROWS, COLUMNS), (row, column))
    shared, source = cpasync.tma_partition(
        load, 0, cute.make_layout(1), cute.group_modes(tile, 0, 2), cute.group_modes(part, 0, 2)
    )
    if cute.arch.warp_idx() == 0:
        cute.copy(load, source, shared, tma_bar_ptr=barrier)
    cute.arch.mbarrier_wait(barrier, 0)
    for i in cutlass.range_constexpr(ROWS):
        r, c = row * ROWS + i, column * COLUMNS + thread
        if r < y.shape[0] and c < y.shape[1]:
            y[r, c] = tile[i, thread] + tile[i, thread]


@cute.jit
def double(x: cute.Tensor, y: cute.Tensor):
    layout = cute.make_layout((ROWS, COLUMNS), stride=(COLUMNS, 1))
    operation = cpasync.CopyBulkTensorTileG2SOp()
    atom, tensor = cpasync.make_tiled_tma_atom(operation, x, layout, (ROWS, COLUMNS))
    grid = (cute.ceil_div(y.shape[1], COLUMNS), cute.ceil_div(y.shape[0], ROWS), 1)
    kernel(atom, tensor, y).launch(grid=grid, block=(COLUMNS, 1, 1))
