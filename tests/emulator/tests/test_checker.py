"""What the checker must find: deadlocks, early reads, missing fences and waits, wrong counts.

A small pipeline by TMA is right as it stands; each fault is one change to it.
"""

import numpy as np
import pytest

from tests.emulator.faults import EmulatorError

from .harness import execute
from .test_copies import aligned, tensor_map

SCHEDULES = ["lazy", "random", "eager"]
STAGES, STEPS, ROW = 2, 6, 128  # f32 in a tile of one row of 32 elements

# Warp 0 loads tiles into a ring of two stages; warp 1 adds them up, warp 2 stores copies by TMA.
# Barriers: full at +0, +8; empty at +16, +24; ready at +32. Tiles at +1024, +2048; sum at +3072.
PIPELINE = """
mov.b64 %rd60, map0; mov.b64 %rd61, map1;
mov.u32 %r298, %tid.x; shr.u32 %r1, %r298, 5; and.b32 %r2, %r298, 31;
mov.b32 %r3, 1; mov.b32 %r4, 32;
setp.ne.u32 %p1, %r298, 0; @%p1 bra READY;
mbarrier.init.shared.b64 [%r299], %r3; mbarrier.init.shared.b64 [%r299+8], %r3;
mbarrier.init.shared.b64 [%r299+16], %r4; mbarrier.init.shared.b64 [%r299+24], %r4;
mbarrier.init.shared.b64 [%r299+32], %r4;
fence.mbarrier_init.release.cluster;                     // for TMA
READY:
bar.sync 0;                                              // initialised
mov.b32 %r10, 0;                                         // step
setp.eq.u32 %p2, %r1, 1; @%p2 bra SUM;
setp.eq.u32 %p2, %r1, 2; @%p2 bra WRITE;
setp.ne.u32 %p3, %r2, 0; @%p3 bra DONE;
LOAD:
and.b32 %r11, %r10, 1; shl.b32 %r12, %r11, 3; add.s32 %r12, %r12, %r299;
shl.b32 %r13, %r11, 10; add.s32 %r13, %r13, %r299;
shr.u32 %r14, %r10, 1; and.b32 %r14, %r14, 1; xor.b32 %r15, %r14, 1;
mbarrier.try_wait.parity.shared.b64 %p4, [%r12+16], %r15, 10000000;         // empty
mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r12], 128;
cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
  [%r13+1024], [%rd60, {0, %r10}], [%r12];
add.s32 %r10, %r10, 1; setp.lt.u32 %p5, %r10, 6; @%p5 bra LOAD;
bra DONE;
SUM:
mov.b32 %r20, 0;
AGAIN:
and.b32 %r11, %r10, 1; shl.b32 %r12, %r11, 3; add.s32 %r12, %r12, %r299;
shl.b32 %r13, %r11, 10; add.s32 %r13, %r13, %r299;
shr.u32 %r14, %r10, 1; and.b32 %r14, %r14, 1;
mbarrier.try_wait.parity.shared.b64 %p4, [%r12], %r14, 10000000;            // full
shl.b32 %r16, %r2, 2; add.s32 %r17, %r16, %r13; ld.shared.b32 %r18, [%r17+1024];
add.f32 %r20, %r20, %r18;
mbarrier.arrive.shared.b64 %rd2, [%r12+16], %r3;                            // release
add.s32 %r10, %r10, 1; setp.lt.u32 %p5, %r10, 6; @%p5 bra AGAIN;
add.s32 %r17, %r16, %r299; st.shared.b32 [%r17+3072], %r20;
fence.proxy.async.shared::cta;                                              // proxy
mbarrier.arrive.shared.b64 %rd2, [%r299+32], %r3;                           // ready
bra DONE;
WRITE:
mov.b32 %r14, 0;
mbarrier.try_wait.parity.shared.b64 %p4, [%r299+32], %r14, 10000000;        // written
@%p3 bra DONE;
setp.ne.u32 %p3, %r2, 0; @%p3 bra DONE;
cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd61, {0, 0}], [%r299+3072];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
DONE:
"""


def pipeline(text: str = PIPELINE, **options):
    source, target = aligned((STEPS, 32), "f4"), aligned((1, 32), "f4", 99)
    source[...] = np.arange(source.size).reshape(source.shape)
    maps = [tensor_map(source, (32, 1)), tensor_map(target, (32, 1))]
    machine = execute(text, [source, target], threads=96, maps=maps, **options)
    return machine, target, source.sum(0)


def changed(old: str, new: str) -> str:
    assert PIPELINE.count(old) == 1
    return PIPELINE.replace(old, new)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", range(3))
def test_the_pipeline_is_right_on_every_schedule(schedule, seed):
    machine, target, expected = pipeline(schedule=schedule, seed=seed)
    assert (target == expected).all()
    assert machine.warnings == []


EMPTY = "mbarrier.try_wait.parity.shared.b64 %p4, [%r12+16], %r15, 10000000;"
FULL = "mbarrier.try_wait.parity.shared.b64 %p4, [%r12], %r14, 10000000;"
WRITTEN = "mbarrier.try_wait.parity.shared.b64 %p4, [%r299+32], %r14, 10000000;"
FAULTS = {
    "no wait for full": (FULL, "", "race: ld.shared|deadlock"),
    "no wait for empty": (EMPTY, "", "race: TMA load|1 arrivals by warp 0, 0 pending"),
    "no wait before the store": (WRITTEN, "", "race|without fence"),
    "wrong parity of full": (FULL, FULL.replace("%r14", "%r15"), "race: ld.shared|deadlock"),
    "wrong parity of empty": (EMPTY, EMPTY.replace("%r15", "%r14"), "deadlock"),
    "no release": (
        "mbarrier.arrive.shared.b64 %rd2, [%r12+16], %r3;", "",
        "deadlock in CTA",
    ),
    "too few bytes expected": ("[%r12], 128;", "[%r12], 112;", "race|deadlock|outstanding"),
    "too many bytes expected": ("[%r12], 128;", "[%r12], 144;", "deadlock|outstanding"),
    "no proxy fence": ("fence.proxy.async.shared::cta;", "", "without fence.proxy.async"),
    "no fence after initialisation": (
        "fence.mbarrier_init.release.cluster;", "",
        "signalled by asynchronous work without fence.mbarrier_init",
    ),
    "no barrier after initialisation": ("bar.sync 0;", "", "no mbarrier was init|before its init"),
}  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_found(fault, schedule):
    old, new, message = FAULTS[fault]
    with pytest.raises(EmulatorError, match=message):
        pipeline(changed(old, new), schedule=schedule)


ONE_LANE = "setp.eq.u32 %p6, %r2, 0; @%p6 {};"  # each lane fences what it wrote itself


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_lane_does_not_fence_for_the_others(schedule):
    fence = "fence.proxy.async.shared::cta"
    with pytest.raises(EmulatorError, match=r"bulk store reads .* without fence\.proxy"):
        pipeline(changed(fence + ";", ONE_LANE.format(fence)), schedule=schedule)
    _, target, expected = pipeline(changed(fence, "fence.proxy.async"), schedule=schedule)
    assert (target == expected).all()
    with pytest.raises(EmulatorError, match="without fence"):
        pipeline(changed(fence, "fence.proxy.async.global"), schedule=schedule)


WRITTEN_FIRST = "st.shared.b32 [%r299+1024], %r3; {fence}\nREADY:"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_load_over_what_threads_wrote_needs_a_fence(schedule):
    fenced = changed("READY:", WRITTEN_FIRST.format(fence="fence.proxy.async.shared::cta;"))
    _, target, expected = pipeline(fenced, schedule=schedule)
    assert (target == expected).all()
    with pytest.raises(EmulatorError, match="a TMA load overwrites shared memory that warp 0"):
        pipeline(changed("READY:", WRITTEN_FIRST.format(fence="")), schedule=schedule)


@pytest.mark.parametrize("schedule", ["lazy", "random"])
def test_a_kernel_must_wait_for_all_that_it_began(schedule):
    with pytest.raises(EmulatorError, match="1 copies are in flight"):
        pipeline(changed("cp.async.bulk.wait_group 0;", ""), schedule=schedule)


COUNT = "mov.u32 %r298, %tid.x; setp.lt.u32 %p1, %r298, 32; selp.b32 %r1, 64, 96, %p1;"
WRONG = {  # of two warps, and what is said of it
    "an arrival too many": (
        """
        mov.b32 %r3, 1; mov.b32 %r4, 40; mov.u32 %r2, %laneid;
        setp.ne.u32 %p1, %r2, 0; @%p1 bra READY;
        mbarrier.init.shared.b64 [%r299], %r4;
        READY:
        bar.sync 0;
        mbarrier.arrive.shared.b64 %rd1, [%r299], 3;
        """,
        r"3 arrivals by warp \d, 1 pending in this phase",
    ),
    "two counts of a named barrier": (
        COUNT + "bar.sync 1, %r1;", r"bar 1: (64|96) threads expected here"
    ),
    "a count that is never reached": ("bar.sync 1, 96;", r"bar 1 \(64 of 96 threads arrived\)"),
    "a number of no named barrier": ("bar.sync 16, 64;", "bar 16"),
    "a poll that nobody answers": (
        """
        LOOP: ld.global.acquire.gpu.b32 %r1, [%rd90]; setp.eq.u32 %p1, %r1, 0; @%p1 bra LOOP;
        """,
        "waits for something it polls",
    ),
    "an uninitialised mbarrier": (
        "mov.b32 %r1, 1; mbarrier.arrive.shared.b64 %rd1, [%r299+64], %r1;",
        r"no mbarrier was initialised at shared\+0x40",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_of_barriers(name):
    text, message = WRONG[name]
    with pytest.raises(EmulatorError, match=message):
        execute(text, [np.zeros(1, np.uint32)], threads=64)


def test_a_deadlock_names_who_waits_for_what():
    with pytest.raises(EmulatorError) as caught:
        pipeline(changed("mbarrier.arrive.shared.b64 %rd2, [%r12+16], %r3;", ""))
    text = str(caught.value)
    assert text.startswith("deadlock in CTA (0, 0, 0)\n")
    assert "warp 0 at PTX line" in text
    assert "mbarrier shared+0x10 (phase 0, pending 32 of 32, 0 bytes outstanding), parity 0" in text


EXCHANGE = """
mov.u32 %r298, %tid.x; shl.b32 %r1, %r298, 4; add.s32 %r1, %r1, %r299;
xor.b32 %r2, %r298, 32; shl.b32 %r2, %r2, 4; add.s32 %r2, %r2, %r299;
st.shared.b32 [%r1], %r298;
{barrier}
ld.shared.b32 %r3, [%r2];
mad.wide.u32 %rd1, %r298, 4, %rd90; st.global.b32 [%rd1], %r3;
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_exchange_between_warps_needs_a_barrier(schedule):
    out = np.zeros(64, np.uint32)
    execute(EXCHANGE.format(barrier="bar.sync 1, 64;"), [out], threads=64, schedule=schedule)
    assert (out == np.arange(64) ^ 32).all()
    with pytest.raises(
        EmulatorError, match=r"race: (ld|st)\.shared by warps? [01].* is not ordered"
    ):
        execute(EXCHANGE.format(barrier=""), [out], threads=64, schedule=schedule)


def test_a_race_is_a_warning_where_it_may_be_harmless():
    out = np.zeros(64, np.uint32)
    machine = execute(EXCHANGE.format(barrier=""), [out], threads=64, strict=False)
    assert any("race: ld.shared" in warning for warning in machine.warnings)


def test_producers_may_arrive_without_waiting():
    text = """
    mov.u32 %r298, %tid.x; mov.b32 %r5, 7; setp.lt.u32 %p1, %r298, 32; @%p1 bra PRODUCE;
    bar.sync 2, 64;
    ld.shared.b32 %r6, [%r299]; st.global.b32 [%rd90], %r6;
    bra DONE;
    PRODUCE:
    st.shared.b32 [%r299], %r5;
    bar.arrive 2, 64;
    DONE:
    """
    for schedule in SCHEDULES:
        out = np.zeros(1, np.uint32)
        execute(text, [out], threads=64, schedule=schedule)
        assert out[0] == 7


def test_a_peek_may_fail_and_try_again():
    text = """
    mov.b32 %r1, 32; mov.u32 %r2, %laneid; mov.b32 %r4, 1; mov.b32 %r5, 0;
    setp.ne.u32 %p1, %r2, 0; @%p1 bra READY;
    mbarrier.init.shared.b64 [%r299], %r1;
    READY:
    mbarrier.arrive.shared.b64 %rd1, [%r299], %r4;
    LOOP:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r299], %r5;
    @!%p2 bra LOOP;
    st.global.b32 [%rd90], %r4;
    """
    for seed in range(4):
        out = np.zeros(1, np.uint32)
        execute(text, [out], schedule="random", seed=seed)
        assert out[0] == 1


def test_a_schedule_must_exist():
    with pytest.raises(ValueError, match="lazy, random, eager"):
        execute("", schedule="idle")
