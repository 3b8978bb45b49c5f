"""Tiles in rounds: every row once, and no round for a few CTAs. The kernel's own arithmetic runs on
the emulator."""

import functools

import pytest
import torch

pytest.importorskip("cutlass")

import cuda.bindings.driver as cuda
from cutlass import Int32, cute

from gdpa_inductor.kernels.cute.compiler import pointer
from gdpa_inductor.kernels.cute.forward.work import Rounds
from tests.emulator import recording, run

from .test_cute_sequences import ARCH, addresses

HEIGHT = 64
MOST = 512  # tiles and pieces
FIELDS = 4  # numbers, unit, first, end
SHAPES = (  # rows, units, CTAs
    (192, 1, 1), (1, 1, 4), (100, 5, 7), (192, 5, 4), (400, 3, 2), (400, 3, 7), (400, 2, 100),
    (1000, 7, 13), (1024, 8, 9), (1024, 3, 8), (8192, 1, 132), (320, 132, 132), (513, 3, 1),
    (1000, 5, 12),  # two pieces of three query tiles
)  # fmt: skip


class Deal:
    """A kernel that writes down what each number is."""

    def __init__(self, query_tiles: int) -> None:
        self.query_tiles = query_tiles

    @cute.jit
    def __call__(self, out, rows: Int32, units: Int32, ctas: Int32, stream):
        self.kernel(out, rows, units).launch(grid=(ctas, 1, 1), block=(32, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, out, rows, units):
        thread, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        rounds = Rounds(rows, units, self.query_tiles, HEIGHT)
        number = Int32(thread)
        while (cta == 0) & (number < rounds.numbers):
            line = cute.make_tensor(out + number * FIELDS, cute.make_layout(FIELDS))
            for i, value in enumerate((rounds.numbers, *rounds.take(number))):
                line[i] = value
            number += 32


@functools.cache
def compiled(query_tiles: int):
    counts = (Int32(1), Int32(1), Int32(1), cuda.CUstream(0))
    return cute.compile(Deal(query_tiles), pointer("int32"), *counts, options=f"--gpu-arch={ARCH}")


def dealt(query_tiles: int, rows: int, units: int, ctas: int) -> list[tuple[int, int, int]]:
    """(unit, first row, end) of every number."""
    out = torch.full((MOST, FIELDS), -1, dtype=torch.int32)
    with recording():
        kernel = compiled(query_tiles)
        counts = (Int32(rows), Int32(units), Int32(ctas))
        call = lambda: kernel(*addresses(out), *counts, cuda.CUstream(0))
        run(call, [out], schedules=("lazy",))  # of one warp
    count = int(out[0, 0])
    assert (out[:count, 0] == count).all() and (out[count:] == -1).all()
    return [tuple(line) for line in out[:count, 1:].tolist()]


@pytest.mark.parametrize("query_tiles", [2, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_row_once(query_tiles: int, shape: tuple[int, int, int]) -> None:
    """Whole tiles come first, then ends. The last round is cut: pieces fill it, of as few query
    tiles as they can have."""
    rows, units, ctas = shape
    height, tiles = query_tiles * HEIGHT, dealt(query_tiles, *shape)
    counts = torch.zeros(units, rows, dtype=torch.int32)
    for unit, first, end in tiles:
        assert first % HEIGHT == 0, "a piece begins within a query tile"
        assert end <= rows
        counts[unit, first : min(end, first + height)] += 1
    assert (counts == 1).all()
    count = -(-rows // height) * units
    left = count % ctas
    uncut, pieces = tiles[: count - left], tiles[count - left :]
    assert len(pieces) == left * min(query_tiles, ctas // max(left, 1))
    assert len(pieces) <= ctas
    whole = [first + height <= rows for _, first, _ in uncut]
    assert whole == sorted(whole, reverse=True)
    most = -(-query_tiles // min(query_tiles, ctas // max(left, 1)))
    assert all(first < end <= first + most * HEIGHT or end <= first for _, first, end in pieces)
