"""wgmma, ldmatrix and stmatrix: layouts element by element, and what the checker asks of them."""

import itertools

import numpy as np
import pytest

from tests.emulator.faults import EmulatorError

from .harness import cta, execute
from .test_descriptors import BASE, descriptor, half, laid

N = 16
SUMS = ", ".join(f"%r{100 + i}" for i in range(N // 2))
OWN = [f"mad.wide.u32 %rd1, %r298, {2 * N}, %rd90;"]
OWN += [f"st.global.b32 [%rd1+{4 * i}], %r{100 + i};" for i in range(N // 2)]
PRODUCT = """
mov.u32 %r298, %tid.x;
setp.ne.u32 %p1, %r298, 12345; setp.eq.u32 %p2, %r298, 12345;
mov.b64 %rd10, {a}; mov.b64 %rd11, {b};
mad.wide.u32 %rd2, %r298, 16, %rd91; ld.global.v4.b32 {{%r80, %r81, %r82, %r83}}, [%rd2];
wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.m64n16k16.f32.{dtype}.{dtype}
  {{{sums}}}, {first}, %rd11, %p2, 1, 1, {majors};
wgmma.mma_async.sync.aligned.m64n16k16.f32.{dtype}.{dtype}
  {{{sums}}}, {first}, %rd11, %p1, 1, 1, {majors};
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
{store}
"""  # the first product overwrites, the second adds: twice A Bᵀ


def laid_for_hopper(*operand) -> int:
    """Puts an operand into shared memory; its descriptor, of sm_90."""
    return laid(*operand) & ~(3 << 46)


def matrices(seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.integers(-8, 9, (rows, 16)).astype(np.float32) for rows in (64, N)]


def sums_of(out: np.ndarray) -> np.ndarray:
    """[64, N] of a warpgroup, as the PTX manual draws it: thread t has two neighbouring columns of
    rows t % 32 // 4 and that plus 8, in the 16 rows of its warp."""
    tensor = np.zeros((64, N), np.float32)
    for thread in range(128):
        for i in range(N // 2):
            row = thread // 32 * 16 + thread % 32 // 4 + 8 * (i // 2 % 2)
            tensor[row, i // 4 * 8 + thread % 4 * 2 + i % 2] = out[thread, i]
    return tensor


def fragments_of(a: np.ndarray, dtype: str) -> np.ndarray:
    """[128, 4]: A in registers, as the PTX manual draws it."""
    words = np.zeros((128, 4), np.uint32)
    for thread in range(128):
        for i in range(8):
            row = thread // 32 * 16 + thread % 32 // 4 + 8 * (i // 2 % 2)
            k = i // 4 * 8 + thread % 4 * 2 + i % 2
            number = int(half(a[row, k], dtype).view(np.uint16)[0])
            words[thread, i // 2] |= np.uint32(number << 16 * (i % 2))
    return words


@pytest.mark.parametrize("schedule", ["lazy", "random"])
@pytest.mark.parametrize("a_mn, b_mn", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("dtype, span", [("bf16", 128), ("f16", 64), ("bf16", 32)])
def test_products_of_shared_operands(dtype, span, a_mn, b_mn, schedule):
    a, b = matrices()
    if b_mn and span > 32:
        b = np.tile(b, (span // 32, 1))  # whole spans of rows; the product takes the first
    out, unused = np.zeros((128, N // 2), np.float32), np.zeros((128, 4), np.uint32)
    probe = cta("", shared_bytes=96 * 1024)
    words = [
        laid_for_hopper(probe, address, matrix, dtype, span, mn)
        for address, matrix, mn in ((BASE, a, a_mn), (BASE + 32768, b, b_mn))
    ]
    text = PRODUCT.format(
        a=words[0], b=words[1], dtype=dtype, sums=SUMS, first="%rd10",
        majors=f"{a_mn:d}, {b_mn:d}", store="\n".join(OWN),
    )  # fmt: skip
    options = {"threads": 128, "shared_bytes": 96 * 1024, "schedule": schedule}
    machine = cta(text, [out, unused], **options)
    machine.shared.bytes[:] = probe.shared.bytes
    machine.run()
    assert (sums_of(out) == 2 * (a @ b[:N].T)).all()


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_products_of_an_operand_in_registers(dtype):
    """Two warpgroups, each with its own."""
    both, (_, b) = [matrices(seed)[0] for seed in (1, 2)], matrices()
    out = np.zeros((256, N // 2), np.float32)
    arguments = np.concatenate([fragments_of(a, dtype) for a in both])
    probe = cta("", shared_bytes=96 * 1024)
    word = laid_for_hopper(probe, BASE, b, dtype, 128, False)
    text = PRODUCT.format(
        a=0, b=word, dtype=dtype, sums=SUMS, first="{%r80, %r81, %r82, %r83}", majors="0",
        store="\n".join(OWN),
    )  # fmt: skip
    machine = cta(text, [out, arguments], threads=256, shared_bytes=96 * 1024)
    machine.shared.bytes[:] = probe.shared.bytes
    machine.run()
    for i, a in enumerate(both):
        assert (sums_of(out[128 * i : 128 * i + 128]) == 2 * (a @ b.T)).all()


READ = """
mov.u32 %r298, %tid.x;
mov.b64 %rd11, {b}; setp.eq.u32 %p2, %r298, 12345;
shl.b32 %r1, %r298, 4; add.s32 %r1, %r1, %r299; mov.b32 %r2, 0;
st.shared.v4.b32 [%r1], {{%r2, %r2, %r2, %r2}};
fence.proxy.async.shared::cta;
bar.sync 0;
wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16
  {{{sums}}}, {{%r2, %r2, %r2, %r2}}, %rd11, %p2, 1, 1, 0;
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
bar.sync 0;
st.shared.v4.b32 [%r1], {{%r2, %r2, %r2, %r2}};
"""
WAIT, COMMIT = "wgmma.wait_group.sync.aligned 0;", "wgmma.commit_group.sync.aligned;"
FENCE = "fence.proxy.async.shared::cta;"
ALONE = READ.split("bar.sync 0;\nst.shared")[0]


@pytest.mark.parametrize("schedule", ["lazy", "random", "eager"])
@pytest.mark.parametrize(
    "body, message",
    [
        (READ, ""),
        (READ.replace(WAIT, ""), "race"),
        (READ.replace(COMMIT, ""), "race"),
        (READ.replace(WAIT, "wgmma.wait_group.sync.aligned 1;"), "race"),
        (READ.replace(FENCE, ""), "wgmma reads shared memory .* without fence.proxy.async"),
        (ALONE.replace("bar.sync 0;", ""), "race: .* is not ordered after the access by"),
        (ALONE.replace(WAIT, ""), "products are in flight when the last warp ends"),
    ],
    ids=["right", "wait", "commit", "a group too few", "fence", "barrier", "in flight"],
)
def test_what_a_product_reads_is_in_flight_until_it_is_waited_for(body, message, schedule):
    text = body.format(b=descriptor(BASE, 16, 1024, 128) & ~(3 << 46), sums=SUMS)
    if not message:
        execute(text, threads=128, schedule=schedule)
        return
    with pytest.raises(EmulatorError, match=message):
        execute(text, threads=128, schedule=schedule)


@pytest.mark.parametrize(
    "opcode",
    [
        "wgmma.mma_async.sync.aligned.m64n16k8.f32.tf32.tf32 {%r1}, %rd1, %rd2, %p1, 1, 1;",
        "wgmma.mma_async.sync.aligned.m64n16k16.f16.f16.f16 {%r1}, %rd1, %rd2, %p1, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%r1}, %rd1, %rd2, %p1, 1, -1, 0, 0;",
        "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1, %r2}, [%r3];",
    ],
    ids=["tf32", "f16 sums", "negated", "two matrices"],
)
def test_other_forms_are_refused(opcode):
    with pytest.raises(NotImplementedError, match="PTX line"):
        execute(opcode)


def through_shared(form: str, rows: int, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What stmatrix puts into the rows that lanes name, and what ldmatrix gets from there. rows:
    exclusive or of the offset of each lane's row."""
    stored, out = np.zeros_like(inputs), np.zeros_like(inputs)
    execute(
        f"""
        mov.u32 %r298, %tid.x;
        mad.wide.u32 %rd1, %r298, 16, %rd90; mad.wide.u32 %rd2, %r298, 16, %rd91;
        mad.wide.u32 %rd3, %r298, 16, %rd92;
        ld.global.v4.b32 {{%r1, %r2, %r3, %r4}}, [%rd1];
        shl.b32 %r10, %r298, 4; xor.b32 %r10, %r10, {rows}; add.s32 %r10, %r10, %r299;
        stmatrix.sync.aligned.m8n8.x4{form}.shared.b16 [%r10], {{%r1, %r2, %r3, %r4}};
        bar.sync 0;
        ld.shared.v4.b32 {{%r20, %r21, %r22, %r23}}, [%r10];
        st.global.v4.b32 [%rd2], {{%r20, %r21, %r22, %r23}};
        ldmatrix.sync.aligned.m8n8.x4{form}.shared.b16 {{%r30, %r31, %r32, %r33}}, [%r10];
        st.global.v4.b32 [%rd3], {{%r30, %r31, %r32, %r33}};
        """,
        [inputs, stored, out],
    )
    return stored, out


def test_matrices_are_stored_and_loaded():
    """By the PTX manual lane l holds words l % 4 of row l // 4 of each 8 x 8 matrix. The rows that
    lanes name lie here in reverse."""
    arguments = np.arange(128, dtype=np.uint32).reshape(32, 4)
    rows, out = through_shared("", 496, arguments)
    assert (out == arguments).all()
    for matrix in range(4):
        for row in range(8):
            assert (rows[8 * matrix + row] == arguments[4 * row : 4 * row + 4, matrix]).all()


def test_matrices_are_transposed():
    """By the PTX manual the word of lane l then holds rows 2 (l % 4) and the next, of column l // 4
    of the matrix in shared memory."""
    arguments = np.arange(256, dtype=np.uint16).reshape(32, 8)
    rows, out = through_shared(".trans", 0, arguments)
    assert (out == arguments).all()
    for matrix, lane, number in itertools.product(range(4), range(32), range(2)):
        row, column = 2 * (lane % 4) + number, lane // 4
        assert rows[8 * matrix + row, column] == arguments[lane, 2 * matrix + number]


def test_matrices_are_of_whole_warps():
    body = "setp.lt.u32 %p1, %r299, 0; mov.u32 %r298, %tid.x; setp.lt.u32 %p1, %r298, 16;"
    body += "@%p1 ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%r299];"
    with pytest.raises(EmulatorError, match="whole warps"):
        execute(body)
