"""Tiles of jagged sequences in the forward: each is taken once, the longest sequences first. The
scheduler's own arithmetic runs on the emulator."""

import functools

import pytest
import torch

pytest.importorskip("cutlass")

import cuda.bindings.driver as cuda
from cutlass import Int32, cute

from gdpa_inductor.kernels.cute.barriers import Cursor
from gdpa_inductor.kernels.cute.compiler import pointer
from gdpa_inductor.kernels.cute.forward.scheduler import Scheduler
from gdpa_inductor.kernels.cute.forward.work import Queue, Work
from gdpa_inductor.kernels.cute.operands import KernelArguments
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config
from tests.emulator import recording, run

ARCH = "sm_100a"  # that of the emulator
HEADS, KEY_HEADS = 6, 2
MOST = 2048  # tiles of a CTA
FIELDS = ("valid", "row", "batch", "head", "key_head", "q_start", "q_rows", "k_rows")
CONFIG = {
    sides: Sm90Config("bfloat16", 128, 128, "s", jagged_q="q" in sides, jagged_k="k" in sides)
    for sides in ("q", "k", "qk")
}
HEIGHT = CONFIG["q"].tiles * CONFIG["q"].rows
LENGTHS = {
    "one": (300,),
    "empty": (0, 0, 0),
    "some empty": (128, 0, 1, 700, 129, 0),
    "all alike": (256,) * 9,
    "many": tuple(i * 37 % 300 for i in range(70)),
}


class Noted(Scheduler):
    """Writes down what it would publish. out: Int32 [tiles, fields] of the CTA."""

    def __init__(self, out, work) -> None:
        self.out, self.work, self.ring = out, work, self
        self.fields = len(FIELDS)

    def start(self) -> Cursor:
        return Cursor(MOST)

    @cute.jit
    def put(self, at: Cursor, tile):
        line = cute.make_tensor(self.out + at.index * self.fields, cute.make_layout(self.fields))
        with cute.arch.elect_one():
            for i, name in enumerate(FIELDS):
                line[i] = getattr(tile, name)
        return at.next()

    def nothing(self):
        return self.work.tile(self.work.sequence(Int32(0), Int32(0)), Int32(-1), Int32(-1))


class Deal:
    """A kernel that does nothing else."""

    def __init__(self, config: Sm90Config) -> None:
        self.config = config

    @cute.jit
    def __call__(self, out, cu_q, cu_k, order, sizes, ctas: Int32, stream):
        self.kernel(out, cu_q, cu_k, order, sizes).launch(
            grid=(ctas, 1, 1), block=(32, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, out, cu_q, cu_k, order, sizes):
        cta, _, _ = cute.arch.block_idx()
        work = Work(self.config, shape(cu_q, cu_k, order, sizes), False)
        Noted(out + cta * (MOST * len(FIELDS)), work).publish(Queue(work))


def shape(cu_q, cu_k, order, sizes) -> KernelArguments:
    return KernelArguments((), (), sizes, cu_q, cu_k, order, None, None)


def arguments(out, cu_q, cu_k, order, sizes, ctas):
    """As the kernel takes them."""
    kinds = ("int32", "int32", "int32", "int64")
    inputs = [
        None if x is None else pointer(kind, 8, x.data_ptr())
        for kind, x in zip(kinds, (out, cu_q, cu_k, order))
    ]
    return *inputs, tuple(map(Int32, sizes)), Int32(ctas), cuda.CUstream(0)


@functools.cache
def compiled(sides: str):
    room = torch.zeros(1, dtype=torch.int64)
    offsets = [room if side in sides else None for side in "qk"]
    inputs = arguments(room, *offsets, room, [1] * 9, 1)
    return cute.compile(Deal(CONFIG[sides]), *inputs, options=f"--gpu-arch={ARCH}")


def dealt(sides: str, lengths: tuple[int, ...], ctas: int) -> tuple[list[list[dict]], int]:
    """The tiles of each CTA, and the counter at the end."""
    cu = torch.nn.functional.pad(torch.tensor(lengths).cumsum(0), (1, 0)).int()
    ranked = torch.tensor(lengths).argsort(descending=True, stable=True)
    order = torch.nn.functional.pad(ranked, (0, 1))
    out = torch.full((ctas, MOST, len(FIELDS)), -7, dtype=torch.int32)
    rows = cols = max(lengths)
    sizes = (len(lengths), HEADS, KEY_HEADS, KEY_HEADS, rows, cols, sum(lengths), sum(lengths), 0)
    offsets = [cu if side in sides else None for side in "qk"]
    with recording():
        kernel = compiled(sides)
        call = lambda: kernel(*arguments(out, *offsets, order, sizes, ctas))
        run(call, [out, *offsets, order], schedules=("lazy",))  # of one warp
    results = [[dict(zip(FIELDS, line)) for line in own.tolist()] for own in out]
    return [own[: [x["head"] for x in own].index(-1)] for own in results], int(order[-1])


class Place(Deal):
    """A kernel that says how many sequences it takes to be in front of the counter."""

    @cute.kernel
    def kernel(self, out, cu_q, cu_k, order, sizes):
        work = Work(self.config, shape(cu_q, cu_k, order, sizes), False)
        with cute.arch.elect_one():
            out[0] = Int32((Queue(work).counter.toint() - order.toint()) // 8)


@pytest.mark.parametrize("batch", [1, 9000, 1 << 28])
def test_the_counter_lies_behind_any_number_of_sequences(batch: int) -> None:
    """An offset of 32 bits led in front of the order."""
    out, order = torch.zeros(2, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
    inputs = arguments(out, order, None, order, [batch, *[1] * 8], 1)
    with recording():
        kernel = cute.compile(Place(CONFIG["q"]), *inputs, options=f"--gpu-arch={ARCH}")
        run(lambda: kernel(*inputs), [out, order])
    assert out[0] == batch


@pytest.mark.parametrize("sides", ["q", "k", "qk"])
@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("ctas", [1, 3, 40])
def test_each_tile_is_taken_once(sides: str, name: str, ctas: int) -> None:
    lengths = LENGTHS[name]
    tiles, result = dealt(sides, lengths, ctas)
    results = [(x["batch"], x["head"], x["row"]) for own in tiles for x in own]
    rows = lengths if "q" in sides else (max(lengths),) * len(lengths)
    wanted = [
        (batch, head, row)
        for batch, count in enumerate(rows)
        for head in range(HEADS)
        for row in range(0, count, HEIGHT)
    ]
    assert sorted(results) == wanted
    assert result == 0, "the next launch would not begin with the first tile"
    for x in (x for own in tiles for x in own):
        assert x["valid"] == 1 and x["key_head"] == x["head"] // (HEADS // KEY_HEADS)
        assert x["q_rows"] == rows[x["batch"]]
        assert x["k_rows"] == (lengths[x["batch"]] if "k" in sides else max(lengths))
        assert x["q_start"] == (sum(lengths[: x["batch"]]) if "q" in sides else 0)


def test_the_longest_come_first_and_of_a_head_the_last_rows() -> None:
    """A CTA alone takes them in their order."""
    lengths = LENGTHS["many"]
    (tiles,), _ = dealt("qk", lengths, 1)
    results = [(x["q_rows"], x["batch"], x["head"], x["row"]) for x in tiles]
    assert results == sorted(results, key=lambda x: (-x[0], x[1], x[2], -x[3]))


def test_the_first_tiles_are_those_of_the_ctas() -> None:
    """So they are known without the counter."""
    (whole,), _ = dealt("qk", LENGTHS["many"], 1)
    tiles, _ = dealt("qk", LENGTHS["many"], 5)
    assert [own[0] for own in tiles] == whole[:5]


@pytest.mark.parametrize("sides", ["q", "qk"])
def test_sequences_that_are_all_alike_are_dealt(sides: str) -> None:
    """As dense ones are, back and forth, so that all CTAs get as much."""
    batch, ctas = 9, 5
    tiles, _ = dealt(sides, (3 * HEIGHT,) * batch, ctas)
    for cta, own in enumerate(tiles):
        turns = [
            2 * ctas * turn + place for turn in range(20) for place in (cta, 2 * ctas - 1 - cta)
        ]
        numbers = [number for number in turns if number < 3 * batch * HEADS]
        wanted = [(n // 3 // HEADS, n // 3 % HEADS, n % 3 * HEIGHT) for n in numbers]
        assert [(x["batch"], x["head"], x["row"]) for x in own] == wanted
