"""Operands of the program that TMA loads in tiles, as a thread reads them from shared memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cutlass import Float32, Int32, Int64, Uint8, Uint16, cute
from cutlass.cute.nvgpu import warp

from ...barriers import Cursor, Ring
from ...program import element
from ...values import Bytes, Fixed, Pair
from ..config import HALF, ROWS
from ..wgmma import K, first_row, swizzled, tiled, zero_after

CHUNK = 8  # registers of S that one ldmatrix serves: those of 16 columns
CHUNKS = HALF // 16
PAIRS = CHUNK * CHUNKS // 2  # of a thread's scores in a half tile


@dataclass
class HopperBias(Fixed):
    """A bias that TMA loads in tiles (`KernelConfig.tiled`), as a thread of query tile t reads it.

    The tile of a key block comes in parts of 64 columns. ldmatrix reads 16 columns at a time into 8
    numbers of a thread. They match the layout of the scores S: number i of the chunk that begins at
    register r belongs to the score in register r + i.
    """

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

    def of_scores(self, at: Cursor, first: int, end: int) -> Iterator[Pair]:
        """The numbers of some parts of a key block, for one pair of scores after the other."""
        for _ in range(first):
            at = at.next()
        for _ in range(first, end):
            self.ring.full.wait(at)
            # A chunk is read when it is needed, so that few are in registers at a time.
            chunks: list[Any] = []
            for chunk in range(CHUNKS):
                numbers = self.read(at, chunk)
                chunks.append(numbers)
                if chunk == CHUNKS - 1:
                    self.free(at, chunks)
                for i in range(0, CHUNK, 2):
                    yield self.pair(numbers, i)
            at = at.next()

    def pair(self, numbers, i: int) -> Pair:
        return Pair(Float32(numbers[i]), Float32(numbers[i + 1]))

    def free(self, at: Cursor, chunks: Sequence[Any]) -> None:
        """Free a part, of which all `chunks` were read."""
        zero = zero_after(word for numbers in chunks for word in self.loaded(numbers))
        self.ring.empty.arrive_once(Cursor(at.stages, at.index + zero, at.phase))

    def loaded(self, numbers) -> list[Any]:
        """A word of each load."""
        return [cute.recast_tensor(numbers, Int32)[0]]

    def read(self, at: Cursor, chunk: int):
        numbers = cute.make_rmem_tensor((CHUNK, 1), self.dtype)
        cute.copy(self.atom, self.source[(None, chunk), None, 0, self.stage(at)], numbers)
        return numbers

    def stage(self, at: Cursor):
        return at.index * self.tiles + self.t


@dataclass
class HopperIndex(HopperBias):
    """Integers that TMA loads in tiles, such as places of tables.

    ldmatrix has no parts of 8 bits. So each load of a thread brings the two neighbours of a row
    that belong to a pair of scores, in a word.
    """

    signed: bool
    wide: bool  # The program computes in 64 bits.

    def __post_init__(self) -> None:
        self.bits = self.dtype.width
        self.width = HALF * self.bits // 8  # bytes of a row
        self.begin = cute.recast_ptr(self.sBias.iterator, None, Uint8)
        self.row = first_row(self.thread)

    def read(self, at: Cursor, chunk: int) -> list[Any]:
        return [
            self.word(self.stage(at), self.row + 8 * half, 16 * chunk + 8 * octet)
            for octet in range(2)
            for half in range(2)
        ]

    def word(self, stage, row, column: int):
        """The numbers of a row and of the thread's two columns, of eight from `column` on."""
        byte = (column + self.thread % 4 * 2) * (self.bits // 8)
        place = (self.begin + stage * ROWS * self.width) + swizzled(row, byte, self.width)
        if self.bits == 16:
            return element(cute.recast_ptr(place, None, Int32))
        return Int32(element(cute.recast_ptr(place, None, Uint16))) & 0xFFFF

    def loaded(self, numbers: list[Any]) -> list[Any]:
        return numbers

    def pair(self, numbers: list[Any], i: int) -> Pair:
        word = numbers[i // 2]
        lanes = Pair(*(self.integer(word, lane) for lane in range(2)))
        return Bytes(lanes, word, 0) if self.bits == 8 and not self.signed else lanes

    def integer(self, word, lane: int):
        if self.signed:
            number = word << (32 - (lane + 1) * self.bits) >> (32 - self.bits)
        else:
            number = word >> self.bits if lane else word & 0xFF
        return Int64(number) if self.wide else number
