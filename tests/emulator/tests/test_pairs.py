"""Products of two CTAs: where operands and results lie, loads and commits for both, and faults.

The CTAs of a pair compute D = A Bᵀ, A of 256 or 128 rows. Each loads half of A by TMA, for the
barrier of the leading CTA. The other CTA writes B: half to its own memory, half to that of the
leading one.
"""

import numpy as np
import pytest

from tests.emulator.descriptors import Form
from tests.emulator.faults import EmulatorError

from .harness import cta, execute
from .test_clusters import SCHEDULES
from .test_copies import aligned, tensor_map
from .test_descriptors import descriptor, form, k_major_place

N = 64
HALF, WIDTH = N // 2, {256: N, 128: N // 2}  # rows of B in a CTA; columns of D, by the rows of A
A, B = 1024, 8192  # from the beginning of shared memory, which is at 1024
# Barriers, both of the leading CTA: landed at +0, written at +8. Of each CTA: done at +16.
PAIR = """
mov.b64 %rd60, map0; mov.u32 %r298, %tid.x; mov.u32 %r1, %cluster_ctarank; mov.b32 %r3, 1;
setp.ne.u32 %p1, %r298, 0; setp.ge.u32 %p2, %r298, 32; setp.ne.u32 %p3, %r1, 0;
setp.ge.u32 %p4, %r298, {half}; mov.b32 %r5, 0; and.b32 %r6, %r299, -16777217;
@%p1 bra READY;
mbarrier.init.shared.b64 [%r299], %r3; mbarrier.init.shared.b64 [%r299+8], {half};
mbarrier.init.shared.b64 [%r299+16], %r3; fence.mbarrier_init.release.cluster;
READY:
barrier.cluster.arrive; barrier.cluster.wait;                               // begin
@%p2 bra ALLOCATED;
tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r299+24], {width};
tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;
ALLOCATED:
bar.sync 0;
ld.shared.b32 %r7, [%r299+24];
@%p1 bra LOADED;
@%p3 bra COPY;
mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r299], {bytes};
COPY:
mul.lo.u32 %r8, %r1, {rows};
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2
  [%r299+1024], [%rd60, {{0, %r8}}], [%r6];
LOADED:
@!%p3 bra MULTIPLY;
@%p4 bra WAIT;
mov.b32 %r10, 0;
WRITE:
mad.lo.u32 %r11, %r10, {half}, %r298; mad.wide.u32 %rd2, %r11, 32, %rd91;
ld.global.v4.b32 {{%r20, %r21, %r22, %r23}}, [%rd2];
ld.global.v4.b32 {{%r24, %r25, %r26, %r27}}, [%rd2+16];
mad.lo.u32 %r12, %r298, 16, %r299; mapa.shared::cluster.u32 %r13, %r12, %r10;
st.shared::cluster.v4.b32 [%r13+8192], {{%r20, %r21, %r22, %r23}};
st.shared::cluster.v4.b32 [%r13+8704], {{%r24, %r25, %r26, %r27}};
add.u32 %r10, %r10, 1; setp.lt.u32 %p5, %r10, 2; @%p5 bra WRITE;
fence.proxy.async.shared::cluster;                                          // proxy
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6+8], %r3;
bra WAIT;
MULTIPLY:
@%p1 bra WAIT;
mbarrier.try_wait.parity.shared.b64 %p6, [%r299], %r5, 10000000;            // landed
mbarrier.try_wait.parity.shared.b64 %p6, [%r299+8], %r5, 10000000;          // written
mov.b64 %rd10, {a}; mov.b64 %rd11, {b}; mov.b32 %r14, {form}; mov.b16 %rs1, 3;
setp.ne.u32 %p7, %r3, 1; setp.eq.u32 %p8, %r3, 1;
tcgen05.mma.cta_group::2.kind::f16 [%r7], %rd10, %rd11, %r14, %p7;
tcgen05.mma.cta_group::2.kind::f16 [%r7], %rd10, %rd11, %r14, %p8;
tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64
  [%r299+16], %rs1;
WAIT:
mbarrier.try_wait.parity.shared.b64 %p6, [%r299+16], %r5, 10000000;         // done
tcgen05.fence::after_thread_sync;
shr.u32 %r15, %r298, 5; shl.b32 %r15, %r15, 21; add.u32 %r15, %r15, %r7;
tcgen05.ld.sync.aligned.32x32b.x{width}.b32 {{{registers}}}, [%r15];
tcgen05.wait::ld.sync.aligned;
mov.u32 %r16, %ctaid.x; mad.lo.u32 %r16, %r16, 128, %r298;
mad.wide.u32 %rd3, %r16, {size}, %rd92;
{stores}
tcgen05.fence::before_thread_sync;
barrier.cluster.arrive; barrier.cluster.wait;                               // end
@%p2 bra FREED;
tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r7, {width};
FREED:
"""


def text_of(m: int) -> str:
    """The kernel for m rows of A."""
    width, rows = WIDTH[m], m // 2
    return PAIR.format(
        half=HALF, width=width, rows=rows, bytes=m * 32, size=4 * width,
        a=descriptor(1024 + A, 16, 256, 32), b=descriptor(1024 + B, HALF * 16, 128, 16),
        form=form(m, N, "bf16", "bf16", False, False),
        registers=", ".join(f"%r{100 + i}" for i in range(width)),
        stores="\n".join(f"st.global.b32 [%rd3+{4 * i}], %r{100 + i};" for i in range(width)),
    )  # fmt: skip


def operands(m: int) -> tuple[np.ndarray, ...]:
    """A, B as the kernel reads it, and D, twice A Bᵀ."""
    generator = np.random.default_rng(m)
    a, b = (generator.integers(-8, 9, (rows, 16)).astype(np.float32) for rows in (m, N))
    halves = [aligned(x.shape, "u2") for x in (a, b)]
    for half, x in zip(halves, (a, b)):
        half[...] = x.view(np.uint32) >> 16
    assert all(k_major_place(r, 0, 16, HALF) == 16 * r for r in range(HALF))
    return *halves, 2 * a @ b.T


def compute(m: int, text: str, **options) -> tuple[np.ndarray, np.ndarray]:
    """(what each lane of both CTAs has, D)."""
    a, b, expected = operands(m)
    out = aligned((2, 128, WIDTH[m]), "f4", np.nan)
    maps = [tensor_map(a, (16, m // 2), 32)]
    arrays = [a, b, out]
    execute(text, arrays, maps=maps, cluster=2, threads=128, **options)
    return out, expected


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", range(2))
def test_256_rows_are_halved_by_cta(schedule, seed):
    out, expected = compute(256, text_of(256), schedule=schedule, seed=seed)
    for row in range(256):
        assert (out[row // 128, row % 128] == expected[row]).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_of_128_rows_each_cta_has_64_in_two_halves(schedule):
    out, expected = compute(128, text_of(128), schedule=schedule)
    for row in range(128):
        for column in range(N):
            lane = row % 64 + 64 * (column // HALF)
            assert out[row // 64, lane, column % HALF] == expected[row, column]


BEGIN, LANDED, WRITTEN, DONE, PROXY = (
    next(line for line in PAIR.splitlines() if line.endswith("// " + name))
    for name in ("begin", "landed", "written", "done", "proxy")
)
LOAD_GROUP, MASK = "complete_tx::bytes.cta_group::2", "and.b32 %r6, %r299, -16777217;"
FAULTS = {
    "no barrier in the beginning": (BEGIN, "", "no mbarrier was init|before its init"),
    "no wait for loads": (LANDED, "", "race: tcgen05.mma"),
    "no wait for what threads write": (WRITTEN, "", "race: tcgen05.mma|without fence"),
    "no fence of the proxies": (PROXY, "", "wrote without fence.proxy.async"),
    "no wait for the product": (DONE, "", "race: tcgen05"),
    "each waits for its own loads": (MASK, "mov.b32 %r6, %r299;", "deadlock|outstanding|pending"),
    "a load of one CTA": (LOAD_GROUP, LOAD_GROUP[:-14], "signals another CTA, and is of no pair"),
    "half of the bytes expected": ("[%r299], 8192;", "[%r299], 4096;", "race|pending|outstanding"),
    "a commit for one CTA": ("mov.b16 %rs1, 3;", "mov.b16 %rs1, 1;", "deadlock"),
    "a commit for a third CTA": ("mov.b16 %rs1, 3;", "mov.b16 %rs1, 7;", "that the cluster lacks"),
    "one allocation": ("@%p2 bra ALLOCATED;", "@%p2 bra ALLOCATED; @%p3 bra ALLOCATED;",
                       "not allocated|deadlock"),
    "one release": ("@%p2 bra FREED;", "@%p2 bra FREED; @%p3 bra FREED;", "still allocated"),
    "the other CTA multiplies": (
        "@!%p3 bra MULTIPLY;", "@%p3 bra MULTIPLY;", "issued by the CTA of even rank|deadlock"
    ),
    "a release of one CTA": (
        "dealloc.cta_group::2", "dealloc.cta_group::1", "of one CTA and of a pair in one kernel"
    ),
}  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_a_pair_are_found(fault, schedule):
    old, new, message = FAULTS[fault]
    text = text_of(256)
    assert text.count(old) == 1
    with pytest.raises(EmulatorError, match=message):
        compute(256, text.replace(old, new), schedule=schedule)


def test_nobody_multiplies_with_a_cta_that_has_ended():
    """The other CTA waits for nothing, and ends."""
    text = text_of(256).replace("bra WAIT;\nMULTIPLY", "bra FREED;\nMULTIPLY")
    text = text.replace("@%p4 bra WAIT;", "@%p4 bra FREED;")
    with pytest.raises(EmulatorError, match="CTA 1 of the cluster has ended"):
        compute(256, text, schedule="eager")


def test_a_pair_has_a_kernel_of_its_own_shapes():
    assert Form.decode(form(256, 32, "f16", "f16", False, False), True).m == 256
    for m, n in ((64, 32), (128, 16), (256, 48)):
        with pytest.raises(ValueError, match=f"shape {m} x {n}"):
            Form.decode(form(m, n, "f16", "f16", False, False), True)
    with pytest.raises(ValueError, match="shape 256 x 32"):
        Form.decode(form(256, 32, "f16", "f16", False, False))


def test_128_rows_of_a_pair_take_a_from_shared_memory():
    from tests.emulator.tensor import Product

    machine = cta("", cluster=2)
    what = form(128, 32, "bf16", "bf16", False, False)
    word = descriptor(1024, 256, 128, 16)
    with pytest.raises(NotImplementedError, match="elsewhere than in shared memory"):
        Product(machine.tensors, 0, 64, word, what, False, True)


UNAWAITED = """
mov.u32 %r298, %tid.x; setp.ne.u32 %p1, %r298, 0; mov.u32 %r1, %cluster_ctarank; mov.b32 %r3, 1;
mov.b16 %rs1, {ctas}; @%p1 bra READY;
mbarrier.init.shared.b64 [%r299], %r3; fence.mbarrier_init.release.cluster;
READY:
barrier.cluster.arrive; barrier.cluster.wait;
setp.ne.u32 %p2, %r1, 0; @%p1 bra DONE; @%p2 bra DONE;
tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64
  [%r299], %rs1;
DONE:
"""


def test_a_cta_may_end_before_its_own_commit_but_not_before_that_of_another():
    """NVIDIA's forward, which is right on hardware, does the former."""
    execute(UNAWAITED.format(ctas=1), cluster=2)
    with pytest.raises(EmulatorError, match="CTA 1 of the cluster has ended"):
        execute(UNAWAITED.format(ctas=2), cluster=2)
