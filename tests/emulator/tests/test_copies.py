"""Memory, bulk and tensor copies."""

import numpy as np
import pytest

from tests.emulator.copies import granules_of
from tests.emulator.faults import EmulatorError
from tests.emulator.tensormap import Shape, TensorMap, box_of

from .harness import execute, per_lane

SCHEDULES = ["lazy", "random", "eager"]
LOAD = """
mov.u32 %r298, %tid.x;
mov.b32 %r1, 1;
setp.eq.u32 %p1, %r298, 0;
@!%p1 bra READY;
mbarrier.init.shared.b64 [%r299], %r1; fence.mbarrier_init.release.cluster;
READY:
bar.sync 0;
@!%p1 bra WAIT;
mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r299], {expect};
{copy}
WAIT:
mov.b32 %r2, 0;
mbarrier.try_wait.parity.shared.b64 %p2, [%r299], %r2, 10000000;
{then}
"""


def tensor_map(array: np.ndarray, box: tuple[int, ...], swizzle: int = 0) -> TensorMap:
    """box: innermost first."""
    value = TensorMap(
        address=array.ctypes.data,
        dtype=array.dtype,
        extents=array.shape[::-1],
        strides=array.strides[::-1],
        box=box,
        swizzle=swizzle,
    )
    value.check()
    return value


def aligned(shape: tuple[int, ...], dtype: str, fill: float = 0) -> np.ndarray:
    """An array whose address is a multiple of 16."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 16, np.uint8)
    start = -raw.ctypes.data % 16
    array = raw[start : start + size].view(dtype).reshape(shape)
    array[...] = fill
    return array


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_tiles_are_swizzled_on_absolute_addresses(swizzle):
    result = granules_of(4096, swizzle, 2048)
    for i, granule in enumerate(result):
        address = 2048 + 16 * i
        mask = max(swizzle // 16 - 1, 0)
        assert granule == (address ^ ((address >> 7 & mask) << 4)) >> 4
    with pytest.raises(EmulatorError, match="misaligned"):
        granules_of(4096, 128, 2048 + 64)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("swizzle", [0, 128])
@pytest.mark.parametrize("start", [(0, 0), (32, 6), (-8, -2), (500, 500)])
def test_tensor_loads_fill_with_zeros_outside(schedule, swizzle, start):
    source = aligned((9, 48), "u2")
    source[...] = np.arange(source.size).reshape(source.shape) + 1
    out = np.zeros(8 * 64, np.uint16)
    copy = f"""
    cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
      [%r299+1024], [map0, {{{start[0]}, {start[1]}}}], [%r299];
    """
    then = """
    shl.b32 %r3, %r298, 4;
    shr.u32 %r4, %r3, 3; and.b32 %r4, %r4, %r20; xor.b32 %r4, %r3, %r4;
    add.s32 %r4, %r299, %r4;
    ld.shared.v4.b32 {%r5, %r6, %r7, %r8}, [%r4+1024];
    mad.wide.u32 %rd2, %r3, 1, %rd91;
    st.global.v4.b32 [%rd2], {%r5, %r6, %r7, %r8};
    """
    body = f"mov.b32 %r20, {112 if swizzle else 0};" + LOAD.format(
        expect=1024, copy=copy, then=then
    )
    body = body.replace("map0", "%rd60").replace(
        "mov.u32 %r298", "mov.b64 %rd60, map0;\nmov.u32 %r298"
    )
    maps = [tensor_map(source, (64, 8), swizzle)]
    execute(body, [source, out], threads=64, maps=maps, schedule=schedule)
    expected = np.zeros((8, 64), np.uint16)
    for row, column in np.ndindex(8, 64):
        y, x = start[1] + row, start[0] + column
        if 0 <= y < 9 and 0 <= x < 48:
            expected[row, column] = source[y, x]
    assert (out.reshape(8, 64) == expected).all()


STORE = """
mov.b64 %rd60, map0;
mov.u32 %r298, %tid.x;
cvt.rn.f32.u32 %r1, %r298;
shl.b32 %r2, %r298, 2;
add.s32 %r2, %r299, %r2;
st.shared.b32 [%r2+1024], %r1;
fence.proxy.async.shared::cta;
bar.sync 0;
setp.eq.u32 %p1, %r298, 0;
@!%p1 bra DONE;
{copy}
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
DONE:
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("reduce", [False, True])
def test_tensor_stores_leave_out_what_is_outside(schedule, reduce):
    target = aligned((6, 8), "f4", 100)
    opcode = "cp.reduce.async.bulk.tensor" if reduce else "cp.async.bulk.tensor"
    kind = ".add" if reduce else ""
    copy = f"{opcode}.2d.global.shared::cta{kind}.tile.bulk_group [%rd60, {{4, 3}}], [%r299+1024];"
    maps = [tensor_map(target, (8, 8))]
    execute(STORE.format(copy=copy), [target], threads=64, maps=maps, schedule=schedule)
    expected = np.full((6, 8), 100.0)
    tile = np.arange(64.0).reshape(8, 8)[:3, :4]
    expected[3:, 4:] = tile + 100 * reduce
    assert (target == expected).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("reduce", [False, True])
def test_plain_bulk_copies_out(schedule, reduce):
    target = aligned((64,), "f4", 10)
    name = "cp.reduce.async.bulk" if reduce else "cp.async.bulk"
    kind = ".add.f32" if reduce else ""
    copy = f"{name}.global.shared::cta.bulk_group{kind} [%rd90], [%r299+1024], 256;"
    text = STORE.replace("mov.b64 %rd60, map0;", "").format(copy=copy)
    execute(text, [target], threads=64, schedule=schedule)
    assert (target == np.arange(64) + 10 * reduce).all()


def test_plain_bulk_copies_in():
    source, out = aligned((64,), "i4"), np.zeros(64, np.int32)
    source[...] = np.arange(64) * 3
    copy = """cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes
      [%r299+1024], [%rd90], 256, [%r299];"""
    then = (
        """
    shl.b32 %r3, %r298, 2; add.s32 %r4, %r299, %r3; ld.shared.b32 %r5, [%r4+1024];
    """
        + per_lane(1, 4, "%rd2")
        + "st.global.b32 [%rd2], %r5;"
    )
    execute(LOAD.format(expect=256, copy=copy, then=then), [source, out], threads=64)
    assert (out == source).all()


def test_small_copies_fill_with_zeros():
    source, out = np.arange(32, dtype=np.uint32) + 1, np.zeros(32, np.uint32)
    body = (
        per_lane(0, 4, "%rd1")
        + """
    shl.b32 %r1, %r298, 2;
    add.s32 %r1, %r299, %r1;
    setp.lt.u32 %p1, %r298, 20;
    selp.b32 %r2, 4, 0, %p1;
    cp.async.ca.shared.global [%r1], [%rd1], 4, %r2;
    cp.async.wait_all;
    ld.shared.b32 %r3, [%r1];
    """
        + per_lane(1, 4, "%rd1")
        + "st.global.b32 [%rd1], %r3;"
    )
    execute(body, [source, out])
    assert (out == np.where(np.arange(32) < 20, source, 0)).all()


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("name, expected", [
    ("add", 5 + sum(range(32))), ("max", 31), ("min", 0), ("or", 31 | 5), ("exch", 31),
])  # fmt: skip
def test_atomics_give_old_values_and_see_every_lane(space, name, expected):
    out = np.array([5] * 33, np.uint32)
    address = "[%rd90+128]" if space == "global" else "[%r299]"
    start = "mov.b32 %r1, 5; st.shared.b32 [%r299], %r1;" if space == "shared" else ""
    body = (
        f"""
    mov.u32 %r298, %laneid;
    {start}
    atom.{space}.{name}.{"b32" if name in ("or", "exch") else "u32"} %r2, {address}, %r298;
    {"ld.shared.b32 %r3, [%r299]; st.global.b32 [%rd90+128], %r3;" if space == "shared" else ""}
    """
        + per_lane(0, 4, "%rd1")
        + "st.global.b32 [%rd1], %r2;"
    )
    execute(body, [out])
    assert out[32] == expected
    seen = {"add": [5 + sum(range(i)) for i in range(32)], "exch": [5, *range(31)]}
    if name in seen:
        assert out[:32].tolist() == seen[name]


def test_what_is_discarded_is_nan():
    """A line of 128 bytes, and nothing beside it."""
    raw = np.zeros(512 + 128, np.uint8)
    lines = raw[-raw.ctypes.data % 128 :][:512].view(np.float32).reshape(4, 32)
    lines[...] = 1
    execute("discard.global.L2 [%rd90+128], 128;", [lines], threads=1)
    assert np.isnan(lines[1]).all() and (lines[[0, 2, 3]] == 1).all()
    with pytest.raises(EmulatorError, match="misaligned"):
        execute("discard.global.L2 [%rd90+64], 128;", [lines], threads=1)


def test_what_is_prefetched_is_in_a_tensor():
    lines = np.zeros(64, np.uint32)
    execute("prefetch.global.L2 [%rd90+252];", [lines], threads=1)
    with pytest.raises(EmulatorError, match="outside every tensor"):
        execute("prefetch.global.L2 [%rd90+256];", [lines], threads=1)


def test_compare_and_swap():
    out = np.array([7, 0], np.uint32)
    body = """
    mov.u32 %r1, %laneid; add.u32 %r2, %r1, 8; mov.b32 %r3, 7;
    atom.global.cas.b32 %r4, [%rd90], %r3, %r2;
    setp.eq.u32 %p1, %r4, 7;
    @%p1 st.global.b32 [%rd90+4], %r1;
    """
    execute(body, [out])
    assert out.tolist() == [8, 0]


def test_lanes_may_access_different_tensors():
    a, b = np.arange(32, dtype=np.uint32), np.arange(32, dtype=np.uint32) + 100
    body = """
    mov.u32 %r298, %tid.x; setp.lt.u32 %p1, %r298, 16;
    selp.b64 %rd1, %rd90, %rd91, %p1; selp.b64 %rd2, %rd91, %rd90, %p1;
    mad.wide.u32 %rd1, %r298, 4, %rd1; mad.wide.u32 %rd2, %r298, 4, %rd2;
    ld.global.b32 %r1, [%rd1]; st.global.b32 [%rd2], %r1;
    """
    execute(body, [a, b])
    assert a.tolist() == [*range(16), *range(116, 132)]
    assert b.tolist() == [*range(16), *range(116, 132)]


@pytest.mark.parametrize("body, message", [
    ("ld.global.b32 %r1, [%rd90+128];", "outside every tensor"),
    ("st.global.b64 [%rd90-8], %rd1;", "outside every tensor"),
    ("ld.global.b64 %rd1, [%rd90+4];", "misaligned 8-byte access to global"),
    ("ld.shared.b32 %r1, [%r299+65536];", "outside the 65536 bytes"),
    ("ld.shared.b32 %r1, [0];", "outside the 65536 bytes"),
    ("st.shared.v2.b32 [%r299+4], {%r1, %r1};", "misaligned 8-byte access to shared"),
    ("cp.async.bulk.global.shared::cta.bulk_group [%rd90+4], [%r299], 16;", "misaligned"),
])  # fmt: skip
def test_accesses_out_of_bounds(body, message):
    with pytest.raises(EmulatorError, match=rf"PTX line \d+: .*{message}"):
        execute(body, [aligned((32,), "u4")])


def test_too_much_shared_memory():
    with pytest.raises(EmulatorError, match="a CTA may have"):
        execute("", shared_bytes=230 * 1024)


@pytest.mark.parametrize("change, message", [
    ({"address": 8}, "address"),
    ({"strides": (2, 24)}, "stride"),
    ({"strides": (4, 64)}, "contiguous"),
    ({"box": (512, 1)}, "box is out of range"),
    ({"box": (4, 1)}, "row of the box"),
    ({"box": (64, 8), "swizzle": 64}, "exceeds the swizzle span"),
    ({"extents": (0, 8)}, "extent"),
])  # fmt: skip
def test_impossible_tensor_maps(change, message):
    good = {"address": 64, "dtype": np.dtype("u2"), "extents": (64, 8), "strides": (2, 128)}
    TensorMap(**good, box=(64, 8), swizzle=128).check()
    with pytest.raises(EmulatorError, match=message):
        TensorMap(**(good | {"box": (64, 8), "swizzle": 128} | change)).check()


def test_leaves_of_one_dimension_are_merged():
    """Modes (4, 3) with strides (1, 4) advance dimension 0 together: 12 contiguous elements."""
    shape = Shape(np.dtype("u2"), (8, 1), 0, ((1, 0), (4, 0), (1, 1), (0, 0)))
    result = shape.bind(64, [4, 3, 5, 7], [1, 4, 16, 0])
    assert (result.extents, result.strides) == ((12, 5), (2, 32))


def test_the_box_is_what_one_copy_can_move():
    row, column = np.meshgrid(np.arange(8), np.arange(128), indexing="ij")
    coordinates = np.stack([column.reshape(-1), row.reshape(-1)], 1)
    halves = (column // 64 * 512 + row * 64 + column % 64).reshape(-1)
    assert box_of(halves, coordinates) == (64, 8)
    plain = (row * 128 + column).reshape(-1)
    assert box_of(plain, coordinates) == (128, 8)
    padded = (row * 136 + column).reshape(-1)
    assert box_of(padded, coordinates) == (128, 1)
