"""Clusters: memory of another CTA, its barriers, tiles for several CTAs, and what goes wrong."""

import numpy as np
import pytest

from tests.emulator.faults import EmulatorError
from tests.emulator.recording import shared_out

from .harness import execute
from .test_copies import aligned, tensor_map

SCHEDULES = ["lazy", "random", "eager"]
STEPS = 5

# Each lane gives 16 bytes to that lane of the other CTA, and adds up what it is given. Barriers:
# full at +0, room at +8. What is given lies at +1024.
EXCHANGE = """
mov.u32 %r298, %tid.x; mov.u32 %r1, %cluster_ctarank; xor.b32 %r2, %r1, 1;
mov.b32 %r3, 1; mov.b32 %r10, 0; mov.b32 %r20, 0;
setp.ne.u32 %p1, %r298, 0; @%p1 bra READY;
mbarrier.init.shared.b64 [%r299], %r3; mbarrier.init.shared.b64 [%r299+8], %r3;
fence.mbarrier_init.release.cluster;
READY:
barrier.cluster.arrive; barrier.cluster.wait;                               // begin
shl.b32 %r4, %r298, 4; add.s32 %r4, %r4, %r299; add.s32 %r4, %r4, 1024;
mapa.shared::cluster.u32 %r5, %r4, %r2;
mapa.shared::cluster.u32 %r6, %r299, %r2;                                   // peer
STEP:
and.b32 %r11, %r10, 1; xor.b32 %r12, %r11, 1;
@%p1 bra GIVE;
mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r299], 512;
GIVE:
mbarrier.try_wait.parity.shared.b64 %p2, [%r299+8], %r12, 10000000;         // room
mad.lo.s32 %r13, %r1, 1000, %r298; mad.lo.s32 %r13, %r10, 100, %r13;
st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%r5], {%r13, %r1, %r10, %r298}, [%r6];
mbarrier.try_wait.parity.shared.b64 %p2, [%r299], %r11, 10000000;           // full
ld.shared.v4.b32 {%r14, %r15, %r16, %r17}, [%r4];
add.s32 %r20, %r20, %r14;
@%p1 bra NEXT;
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6+8], %r3;        // read
NEXT:
add.s32 %r10, %r10, 1; setp.lt.u32 %p3, %r10, 5; @%p3 bra STEP;
mov.u32 %r21, %ctaid.x; mad.lo.s32 %r21, %r21, 32, %r298;
mad.wide.u32 %rd2, %r21, 4, %rd90; st.global.b32 [%rd2], %r20;
barrier.cluster.arrive; barrier.cluster.wait;                               // end
"""
BEGIN, END = (
    f"barrier.cluster.arrive; barrier.cluster.wait;                               // {x}"
    for x in ("begin", "end")
)


def changed(old: str, new: str) -> str:
    assert EXCHANGE.count(old) == 1
    return EXCHANGE.replace(old, new)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", range(3))
def test_a_cluster_exchanges_on_every_schedule(schedule, seed):
    out = np.zeros((2, 32), np.int32)
    machine = execute(EXCHANGE, [out], cluster=2, schedule=schedule, seed=seed)
    lanes, steps = np.arange(32), STEPS * 100 * (STEPS - 1) // 2
    expected = np.stack([STEPS * (1000 * other + lanes) + steps for other in (1, 0)])
    assert (out == expected).all()
    assert machine.warnings == []


FAULTS = {
    "no wait for room": (
        "mbarrier.try_wait.parity.shared.b64 %p2, [%r299+8], %r12, 10000000;", "",
        "race|pending|deadlock",
    ),
    "no wait for full": (
        "mbarrier.try_wait.parity.shared.b64 %p2, [%r299], %r11, 10000000;", "",
        "race|pending|deadlock",
    ),
    "the own barrier is told": ("[%r6+8], %r3;", "[%r299+8], %r3;", "race|pending|deadlock"),
    "too few bytes expected": ("[%r299], 512;", "[%r299], 496;", "race|deadlock|outstanding"),
    "no barrier in the beginning": (BEGIN, "", "no mbarrier was init|before its init"),
    "a barrier of the CTA only": (BEGIN, "bar.sync 0;", "no mbarrier was init|before its init"),
    "a CTA that there is not": ("%r299, %r2;", "%r299, 2;", "a CTA that the cluster lacks"),
}  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_a_cluster_are_found(fault, schedule):
    old, new, message = FAULTS[fault]
    with pytest.raises(EmulatorError, match=message):
        execute(changed(old, new), [np.zeros((2, 32), np.int32)], cluster=2, schedule=schedule)


def test_nobody_reaches_a_cta_that_has_ended():
    """One CTA ends while the other still tells its barrier."""
    with pytest.raises(EmulatorError, match="of the cluster has ended"):
        for seed in range(20):
            out = np.zeros((2, 32), np.int32)
            execute(changed(END, ""), [out], cluster=2, schedule="random", seed=seed)


# Each CTA loads a row of the tile for both. The barrier lies at +0, the tile at +1024.
CAST = """
mov.b64 %rd60, map0; mov.u32 %r298, %tid.x; mov.u32 %r1, %cluster_ctarank; mov.b32 %r3, 1;
setp.ne.u32 %p1, %r298, 0; @%p1 bra READY;
mbarrier.init.shared.b64 [%r299], %r3; fence.mbarrier_init.release.cluster;
READY:
barrier.cluster.arrive; barrier.cluster.wait;
@%p1 bra WAIT;
mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r299], 256;
mov.b16 %rs1, {ctas}; mad.lo.s32 %r4, %r1, 128, %r299;
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster
  [%r4+1024], [%rd60, {{0, %r1}}], [%r299], %rs1;
WAIT:
mov.b32 %r5, 0;
mbarrier.try_wait.parity.shared.b64 %p2, [%r299], %r5, 10000000;
shl.b32 %r6, %r298, 3; add.s32 %r7, %r6, %r299; ld.shared.v2.b32 {{%r8, %r9}}, [%r7+1024];
mov.u32 %r10, %ctaid.x; mad.lo.s32 %r10, %r10, 256, %r6;
mad.wide.u32 %rd2, %r10, 1, %rd91; st.global.v2.b32 [%rd2], {{%r8, %r9}};
barrier.cluster.arrive; barrier.cluster.wait;
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_tile_comes_for_all_ctas_of_a_cluster(schedule):
    source, out = aligned((2, 32), "i4"), np.zeros((2, 64), np.int32)
    source[...] = np.arange(64).reshape(2, 32) + 1
    options = {"maps": [tensor_map(source, (32, 1))], "cluster": 2, "schedule": schedule}
    execute(CAST.format(ctas=3), [source, out], **options)
    assert (out == source.reshape(-1)).all()
    with pytest.raises(EmulatorError, match="deadlock"):
        execute(CAST.format(ctas=1), [source, out], **options)
    with pytest.raises(EmulatorError, match="a CTA that the cluster lacks"):
        execute(CAST.format(ctas=7), [source, out], **options)


@pytest.mark.parametrize(
    ("box", "ctas", "part"),
    [((64, 64, 1, 1), 2, (64, 32, 1, 1)), ((64, 8), 4, (64, 2)), ((64, 1, 2), 4, (32, 1, 1))],
)
def test_a_box_is_shared_out_from_its_outermost_dimension(box, ctas, part):
    assert shared_out(box, ctas) == part
