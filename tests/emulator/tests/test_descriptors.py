"""tcgen05 and its descriptors: layouts element by element, products, tensor memory."""

import math

import numpy as np
import pytest

from tests.emulator.descriptors import Form, operand_granules
from tests.emulator.faults import EmulatorError

from .harness import cta

SPAN_CODES = {16: 0, 32: 6, 64: 4, 128: 2}  # bytes of the swizzle span; 16: none
BASE = 1024


def swizzled(address: int, span: int) -> int:
    """Bits 4.. of a byte address, xor the bits three above them."""
    return address ^ ((address >> 7 & span // 16 - 1) << 4)


def descriptor(address: int, leading: int, stride: int, span: int) -> int:
    """Offsets in bytes."""
    word = address >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32
    return word | 1 << 46 | SPAN_CODES[span] << 61


def form(m: int, n: int, a: str, b: str, a_mn: bool, b_mn: bool, negate: bool = False) -> int:
    codes = {"f16": 0, "bf16": 1}
    word = 1 << 4 | codes[a] << 7 | codes[b] << 10 | negate << 13
    return word | a_mn << 15 | b_mn << 16 | (n >> 3) << 17 | (m >> 4) << 24


def k_major_place(row: int, k: int, span: int, rows: int) -> int:
    """Byte offset of an element: groups of 8 rows, one span a row; k beyond the span follows all
    rows. Without a swizzle: 8x8 matrices of 128 bytes, by row groups, then by k."""
    if span == 16:
        return row % 8 * 16 + row // 8 * 128 + k % 8 * 2 + k // 8 * rows * 16
    return row % 8 * span + row // 8 * 8 * span + k * 2


def mn_major_place(row: int, k: int, span: int, rows: int) -> int:
    """Spans of consecutive rows, one for each of 8 k; then the next span of rows, then more k."""
    per = span // 2
    if span == 16:
        return row % 8 * 2 + k % 8 * 16 + k // 8 * 128 + row // 8 * 256
    block = 8 * span
    return row % per * 2 + k % 8 * span + row // per * block + k // 8 * (rows // per) * block


def layout(span: int, mn_major: bool, rows: int):
    """(place of an element, leading and stride offsets in bytes)."""
    if mn_major:
        groups = rows // (span // 2)
        offsets = (128, 256) if span == 16 else (8 * span, groups * 8 * span)
        return mn_major_place, *offsets
    return k_major_place, *((rows * 16, 128) if span == 16 else (16, 8 * span))


@pytest.mark.parametrize("span", SPAN_CODES)
@pytest.mark.parametrize("mn_major", [False, True])
def test_operand_layouts(span, mn_major):
    rows = 64
    place, leading, stride = layout(span, mn_major, rows)
    result = operand_granules(descriptor(BASE, leading, stride, span), rows, mn_major)
    for row in range(rows):
        for k in range(16):
            address = swizzled(BASE + place(row, k, span, rows), span)
            granule = result[row // 8, k] if mn_major else result[row, k // 8]
            assert granule == address >> 4, (row, k)


@pytest.mark.parametrize("a_mn, b_mn", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("dtype, span, m", [
    ("bf16", 128, 128), ("f16", 64, 128), ("f16", 128, 64), ("bf16", 16, 128),
])  # fmt: skip
def test_products_of_shared_operands(dtype, span, m, a_mn, b_mn):
    n, generator = 64, np.random.default_rng(0)
    machine, product = prepared(m, n)
    a, b = (generator.integers(-8, 9, (rows, 16)).astype(np.float32) for rows in (m, n))
    words = [
        laid(machine, address, matrix, dtype, span, mn)
        for address, matrix, mn in ((BASE, a, a_mn), (BASE + 32768, b, b_mn))
    ]
    what = form(m, n, dtype, dtype, a_mn, b_mn)
    product(32, words[0], words[1], what, False, False)
    expected = a @ b.T
    assert (accumulator(machine, m, 32, n) == expected).all()
    product(32, words[0], words[1], what, True, False)
    assert (accumulator(machine, m, 32, n) == 2 * expected).all()
    product(32, words[0], words[1], what | 1 << 13, True, False)
    assert (accumulator(machine, m, 32, n) == expected).all()


def half(value: float, dtype: str) -> np.ndarray:
    if dtype == "f16":
        return np.array([value], np.float16).view(np.uint8)
    return np.array([value], np.float32).view(np.uint8)[2:]


def laid(machine, address: int, matrix: np.ndarray, dtype: str, span: int, mn: bool) -> int:
    """Puts an operand into shared memory; its descriptor."""
    place, leading, stride = layout(span, mn, len(matrix))
    for (row, k), value in np.ndenumerate(matrix):
        at = swizzled(address + place(row, k, span, len(matrix)), span)
        machine.shared.bytes[at : at + 2] = half(value, dtype)
    return descriptor(address, leading, stride, span)


def prepared(m: int, n: int):
    """(a CTA whose tensor memory is all allocated, a function that runs one product)."""
    from tests.emulator.tensor import Product

    machine = cta("", shared_bytes=96 * 1024)
    machine.tensors[0].allocated[:] = True

    def product(*operands) -> None:
        Product(machine.tensors, *operands).run()

    return machine, product


def accumulator(machine, m: int, column: int, n: int) -> np.ndarray:
    """Row i in lane i, or for 64 rows in lanes 0-15 of each quarter."""
    lanes = [i if m == 128 else i // 16 * 32 + i % 16 for i in range(m)]
    return machine.tensors[0].words.view(np.float32)[lanes, column : column + n]


def test_a_product_of_an_operand_in_tensor_memory():
    n, generator = 32, np.random.default_rng(1)
    machine, product = prepared(128, n)
    a, b = (generator.integers(-8, 9, (rows, 16)).astype(np.float32) for rows in (128, n))
    for (row, k), value in np.ndenumerate(a):  # two elements a column, the even one low
        word = int(half(value, "bf16").view(np.uint16)[0]) << 16 * (k % 2)
        keep = 0xFFFF << 16 * (1 - k % 2)
        old = int(machine.tensors[0].words[row, 64 + k // 2])
        machine.tensors[0].words[row, 64 + k // 2] = old & keep | word
    word = laid(machine, BASE, b, "bf16", 128, False)
    product(0, 64, word, form(128, n, "bf16", "bf16", False, False), False, True)
    assert (accumulator(machine, 128, 0, n) == a @ b.T).all()


def test_the_instruction_descriptor():
    result = Form.decode(form(128, 256, "bf16", "f16", True, False, True))
    assert result == Form(128, 256, "bf16", "f16", True, False, True)
    with pytest.raises(ValueError, match="shape 128 x 8"):
        Form.decode(form(128, 8, "f16", "f16", False, False))
    with pytest.raises(NotImplementedError, match="accumulators"):
        Form.decode(form(128, 64, "f16", "f16", False, False) & ~(3 << 4))
    with pytest.raises(NotImplementedError, match="formats"):
        Form.decode(form(128, 64, "f16", "f16", False, False) | 4 << 7)


def test_other_shared_descriptors_are_refused():
    word = descriptor(BASE, 16, 1024, 128)
    with pytest.raises(ValueError, match="version"):
        operand_granules(word & ~(3 << 46), 64, False)
    with pytest.raises(NotImplementedError, match="base offset"):
        operand_granules(word | 1 << 49, 64, False)
    with pytest.raises(NotImplementedError, match="layout 1"):
        operand_granules(word & ~(7 << 61) | 1 << 61, 64, False)


LIFETIME = """
setp.lt.u32 %p1, %r298, 32;
@!%p1 bra ALLOCATED;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r299], {columns};
ALLOCATED:
bar.sync 0;
ld.shared.b32 %r1, [%r299];
shr.u32 %r2, %r298, 5;
shl.b32 %r2, %r2, 21;
add.s32 %r3, %r1, %r2;
{body}
tcgen05.fence::before_thread_sync;
bar.sync 0;
@!%p1 bra FREED;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, {columns};
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
FREED:
"""


def with_tensor_memory(body: str, arrays=(), columns: int = 64, threads: int = 128, **options):
    text = "mov.u32 %r298, %tid.x;" + LIFETIME.format(body=body, columns=columns)
    machine = cta(text, arrays, threads=threads, **options)
    machine.run()


@pytest.mark.parametrize("schedule", ["lazy", "random", "eager"])
def test_each_warp_stores_and_loads_its_quarter(schedule):
    out = np.zeros((128, 4), np.uint32)
    body = """
    add.u32 %r10, %r298, 1000; add.u32 %r11, %r298, 2000;
    tcgen05.st.sync.aligned.32x32b.x2.b32 [%r3+8], {%r10, %r11};
    tcgen05.wait::st.sync.aligned;
    tcgen05.st.sync.aligned.32x32b.x2.b32 [%r3+10], {%r11, %r298};
    tcgen05.wait::st.sync.aligned;
    tcgen05.ld.sync.aligned.32x32b.x4.b32 {%r20, %r21, %r22, %r23}, [%r3+8];
    tcgen05.wait::ld.sync.aligned;
    mad.wide.u32 %rd1, %r298, 16, %rd90;
    st.global.v4.b32 [%rd1], {%r20, %r21, %r22, %r23};
    """
    with_tensor_memory(body, [out], schedule=schedule)
    thread = np.arange(128)
    expected = [thread + 1000, thread + 2000, thread + 2000, thread]
    assert (out == np.stack(expected, 1)).all()


HANDED_OVER = """
setp.lt.u32 %p2, %r298, 128; and.b32 %r3, %r3, 0x7FFFFF;      // warps 0-3 to warps 4-7
@!%p2 bra WAIT;
tcgen05.st.sync.aligned.32x32b.x1.b32 [%r3], {%r298};
tcgen05.wait::st.sync.aligned;
tcgen05.fence::before_thread_sync;
WAIT:
bar.sync 1;
@%p2 bra READ;
tcgen05.fence::after_thread_sync;
tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r20}, [%r3];
tcgen05.wait::ld.sync.aligned;
mad.wide.u32 %rd1, %r298, 4, %rd90; st.global.b32 [%rd1], %r20;
READ:
"""
AFTER, BEFORE = "tcgen05.fence::after_thread_sync;", "tcgen05.fence::before_thread_sync;"


@pytest.mark.parametrize("schedule", ["lazy", "random", "eager"])
@pytest.mark.parametrize("missing, message", [
    ("", ""),
    (BEFORE, r"tcgen05\.ld .* after the access by tcgen05\.st of warp"),
    (AFTER, r"tcgen05\.ld .* after the access by tcgen05\.st of warp"),
    ("tcgen05.wait::st.sync.aligned;", r"tcgen05\.ld .* after the access by tcgen05\.st of warp"),
    ("tcgen05.wait::ld.sync.aligned;", r"dealloc .* after the access by tcgen05\.ld of warp"),
])  # fmt: skip
def test_a_hand_over_in_tensor_memory_is_fenced(missing, message, schedule):
    out = np.zeros(256, np.uint32)
    body = HANDED_OVER.replace(missing, "") if missing else HANDED_OVER
    if missing:
        with pytest.raises(EmulatorError, match=message):
            with_tensor_memory(body, [out], threads=256, schedule=schedule)
    else:
        with_tensor_memory(body, [out], threads=256, schedule=schedule)
        assert (out[128:] == np.arange(128)).all()
    if missing in (BEFORE, AFTER, "tcgen05.wait::ld.sync.aligned;"):  # as NVIDIA's kernels do
        with_tensor_memory(body, [out], threads=256, schedule=schedule, fences=False)


@pytest.mark.parametrize("body, message", [
    ("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r20}, [%r1];", "by warp 1 of tensor-memory lane 0"),
    ("tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r20, %r21}, [%r3+63];", "not allocated"),
    ("tcgen05.ld.sync.aligned.32x32b.x4.b32 {%r20, %r21, %r22, %r23}, [%r3+510];", "not allocated"),
    ("tcgen05.st.sync.aligned.32x32b.x1.b32 [%r3], {%r1};"
     "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r20}, [%r3];", r"by tcgen05\.st of warp 1"),
    ("setp.eq.u32 %p2, %r298, 3; @%p2 tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r20}, [%r3];",
     "whole warps"),
])  # fmt: skip
def test_wrong_use_of_tensor_memory(body, message):
    with pytest.raises(EmulatorError, match=message):
        with_tensor_memory(body)


ALLOC = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r299], {};"


@pytest.mark.parametrize("text, message", [
    (ALLOC.format(48), "alloc of 48"),
    (ALLOC.format(16), "alloc of 16"),
    (ALLOC.format(32), "32 columns of tensor memory are still allocated"),
    ("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" + ALLOC.format(32),
     "after relinquish"),
    ("mov.b32 %r1, 0; tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, 32;",
     r"dealloc of columns \[0, 32\)"),
    (2 * ALLOC.format(512), "deadlock"),  # the second waits for room
])  # fmt: skip
def test_wrong_allocations(text, message):
    with pytest.raises(EmulatorError, match=message):
        cta(text).run()


def test_fresh_tensor_memory_is_nan():
    machine = cta("")
    assert np.isnan(machine.tensors[0].words.view(np.float32)).all()
    assert math.isnan(machine.shared.bytes[1024:1028].view(np.float32)[0])
