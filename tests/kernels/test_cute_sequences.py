"""What the CuTe kernels do about sequences, apart from attention, on the emulator: their order, and
zeros in the rows that none owns."""

import functools

import pytest
import torch

pytest.importorskip("cutlass")

import cuda.bindings.driver as cuda
from cutlass import Int32, Int64, cute

from gdpa_inductor.kernels.cute import ranking
from gdpa_inductor.kernels.cute.compiler import pointer
from gdpa_inductor.kernels.cute.launcher import WordLauncher
from gdpa_inductor.kernels.cute.operands import Matrix
from gdpa_inductor.kernels.cute.runtime import Kernel, exported
from gdpa_inductor.kernels.cute.sequences import Gaps
from tests.emulator import recording, run

ARCH = "sm_100a"  # that of the emulator
HEADS, WIDTH, CTAS = 3, 16, 2
GUARD = 5  # rows before and behind the matrix, which nobody may touch


@pytest.mark.parametrize(
    "lengths", [(5,), (3, 3, 0, 9, 3, 1), tuple(i * 7 % 50 for i in range(70))]
)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_the_longest_come_first(lengths: tuple[int, ...], dtype: str) -> None:
    offsets = torch.tensor([4, *lengths]).cumsum(0).to(getattr(torch, dtype))
    result = torch.full((len(lengths) + 1,), -1)
    with recording():
        kernel = WordLauncher(Kernel(exported(ranking.compiled(dtype, ARCH))), 4)
        words = (offsets.data_ptr(), result.data_ptr(), len(lengths), 0)
        run(lambda: kernel(*words), [offsets, result])
    *order, amount = result.tolist()
    expected = torch.argsort(torch.tensor(lengths), descending=True, stable=True)
    assert order == expected.tolist() and amount == 0


class Clear:
    """A kernel that does nothing else. others: whether sequences without keys take no part."""

    def __init__(self, others: bool) -> None:
        self.others = others

    @cute.jit
    def __call__(self, out, cu_q, cu_k, batch: Int32, rows: Int32, most: Int32, stream):
        self.kernel(out, cu_q, cu_k, batch, rows, most).launch(
            grid=(CTAS, 1, 1), block=(32, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, out, cu_q, cu_k, batch, rows, most):
        strides = (Int64(8), Int64(WIDTH), Int64(HEADS * WIDTH))
        matrix = Matrix(out, batch, HEADS, rows, WIDTH, strides, jagged=True)
        others = (cu_k, most, rows) if self.others else None
        Gaps(cu_q, batch, most, others).clear(matrix)


@functools.cache
def compiled(others: bool):
    example = (pointer("bfloat16", 16), pointer("int32"), pointer("int32"))
    counts, stream = (Int32(1), Int32(1), Int32(1)), cuda.CUstream(0)
    return cute.compile(Clear(others), *example, *counts, stream, options=f"--gpu-arch={ARCH}")


def owned(cu_q: list[int], cu_k: list[int] | None, rows: int, most: int) -> torch.Tensor:
    """Which rows a sequence owns."""
    result = torch.zeros(rows, dtype=torch.bool)
    for number in range(len(cu_q) - 1):
        first, end = (min(max(x, 0), rows) for x in cu_q[number : number + 2])
        if cu_k is None or cu_k[number] < cu_k[number + 1]:
            result[first : min(end, first + most)] = True
    return result


@pytest.mark.parametrize(
    ("cu_q", "most"),
    [
        ([0, 4, 10, 30], 20),
        ([3, 4, 10, 10, 25], 20),
        ([0, 12, 13, 30], 5),
        ([7, 20, 18], 9),  # the last owns nothing
        ([0, 12, 40], 20),  # the last leaves the rows
        ([0, 12, 40], 5),
        ([-6, 12, 500, 900], 5),
        ([0, *range(30)], 20),
    ],
    ids=str,
)
@pytest.mark.parametrize("empty", [False, True])
def test_rows_of_no_sequence_are_cleared(cu_q: list[int], most: int, empty: bool) -> None:
    """And no others. empty: every other sequence has no keys."""
    rows = 30
    cu_k = [x // 2 for x in range(len(cu_q))] if empty else None
    whole = torch.ones(rows + 2 * GUARD, HEADS, WIDTH, dtype=torch.bfloat16)
    out = whole[GUARD:-GUARD]
    arguments = [torch.tensor(x, dtype=torch.int32) for x in (cu_q, cu_k or cu_q)]
    counts = (Int32(len(cu_q) - 1), Int32(rows), Int32(most))
    with recording():
        kernel = compiled(empty)
        call = lambda: kernel(*addresses(out, *arguments), *counts, cuda.CUstream(0))
        run(call, [whole, *arguments], schedules=("lazy",))  # of one warp
    result = torch.ones(rows + 2 * GUARD, dtype=torch.bool)
    result[GUARD:-GUARD] = owned(cu_q, cu_k, rows, most)
    assert torch.equal(whole, result[:, None, None].expand(whole.shape).to(whole.dtype))


def addresses(*tensors: torch.Tensor) -> list:
    """As kernels take them."""
    kinds = {torch.bfloat16: "bfloat16", torch.int32: "int32"}
    return [pointer(kinds[x.dtype], x.element_size(), x.data_ptr()) for x in tensors]
