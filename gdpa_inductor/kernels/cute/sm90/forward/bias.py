"""A bias that TMA loads in tiles (`KernelConfig.tiled`), as the products read it.

The tile of a key block comes in parts of 64 columns. ldmatrix reads 16 columns at a time into 8
numbers of a thread. They match the layout of the scores S: number i of the chunk that begins at
register r belongs to the score in register r + i.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cutlass import Float32, Int32, cute
from cutlass.cute.nvgpu import warp

from ...barriers import Cursor, Ring
from ...values import Fixed, Pair
from ..config import HALF
from ..wgmma import K, tiled

CHUNK = 8  # registers of S that one ldmatrix serves: those of 16 columns
CHUNKS = HALF // 16


@dataclass
class HopperBias(Fixed):
    """The bias of query tile t, as a thread of its warpgroup reads it."""

    number: int  # of the aux operand
    ring: Ring  # of the parts of query tile t
    sBias: Any  # the buffers of all query tiles in turn, [64, 64, stages]
    t: Any
    thread: Any
    dtype: Any
    tiles: int  # query tiles of the CTA
    parts: int  # of the tile of a key block

    def __post_init__(self) -> None:
        self.atom = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), self.dtype)
        copy = cute.make_tiled_copy_C(self.atom, tiled(self.dtype, HALF, K))
        self.source = copy.get_slice(self.thread).partition_S(self.sBias)

    def after(self, at: Cursor) -> Cursor:
        for _ in range(self.parts):
            at = at.next()
        return at

    def of_scores(self, at: Cursor) -> Iterator[Pair]:
        """The bias of a key block, for one pair of scores after the other."""
        for _ in range(self.parts):
            self.ring.full.wait(at)
            # A chunk is read when it is needed, so that few are in registers at a time.
            chunks: list[Any] = []
            for chunk in range(CHUNKS):
                numbers = self.read(at, chunk)
                chunks.append(numbers)
                if chunk == CHUNKS - 1:
                    self.free(at, chunks)
                for i in range(0, CHUNK, 2):
                    yield Pair(Float32(numbers[i]), Float32(numbers[i + 1]))
            at = at.next()

    def free(self, at: Cursor, chunks: Sequence[Any]) -> None:
        """Free a part, of which all `chunks` were read.

        The arrival must not overtake the reads, which other loads may delay for longer than the
        next tile takes. So the address of the barrier depends on the numbers that were read: a zero
        is added that the compiler cannot know.
        """
        word = Int32(0)
        for numbers in chunks:
            word = word ^ cute.recast_tensor(numbers, Int32)[0]
        popc = "{ .reg .b32 n; popc.b32 n, {$r0}; shr.u32 {$w0}, n, 6; }"
        zero = cute.arch.inline_ptx(popc, write_only_types=[Int32], read_only_args=[word])
        self.ring.empty.arrive_once(Cursor(at.stages, at.index + zero, at.phase))

    def read(self, at: Cursor, chunk: int):
        numbers = cute.make_rmem_tensor((CHUNK, 1), self.dtype)
        stage = at.index * self.tiles + self.t
        cute.copy(self.atom, self.source[(None, chunk), None, 0, stage], numbers)
        return numbers
