"""The mutation tool, on the small pipeline of test_checker, which has all that it mutates."""

import numpy as np
import pytest

from tests.emulator import EmulatorError, ptx
from tests.emulator.machine import SCHEDULES, Block, Cta
from tests.emulator.memory import GlobalMemory
from tests.emulator.mutants import Mutants, masking
from tests.emulator.translate import Translator

from .harness import MAP_BYTES, kernel_text, map_bytes
from .test_checker import PIPELINE, STEPS
from .test_clusters import EXCHANGE
from .test_copies import aligned, tensor_map

# Lanes past the 20th hold nothing: a tail mask on the sum, another on a plain store.
MASKED = PIPELINE.replace(
    "st.shared.b32 [%r17+3072], %r20;",
    """
    setp.lt.s32 %p6, %r2, 20; selp.f32 %r20, %r20, 0f00000000, %p6;
    st.shared.b32 [%r17+3072], %r20;
    mad.wide.u32 %rd5, %r2, 4, %rd92; setp.ge.s32 %p7, %r2, 24; not.pred %p8, %p7;
    @%p8 st.global.b32 [%rd5], %r20;
    """,
)


class Subject:
    """The pipeline with its mutants; `run` gives its two outputs."""

    def __init__(self) -> None:
        self.source, self.target = aligned((STEPS, 32), "f4"), aligned((1, 32), "f4")
        self.plain = aligned((32,), "f4")
        self.source[...] = np.arange(self.source.size).reshape(self.source.shape) + 1
        self.arrays = [self.source, self.target, self.plain]
        self.maps = [tensor_map(a, (32, 1)) for a in self.arrays[:2]]
        self.mutants = Mutants()
        kernel = ptx.parse(kernel_text(MASKED, 3, 2))["test"]
        self.kernel = kernel
        self.mutants.add(kernel)
        self.translator = Translator(kernel, mutants=self.mutants)

    def run(self, schedule: str) -> bytes:
        self.target[...] = self.plain[...] = -1
        raw = b"".join(a.ctypes.data.to_bytes(8, "little") for a in self.arrays)
        for i in range(2):
            raw += bytes(-len(raw) % 64) + map_bytes(i + 1).ljust(MAP_BYTES, b"\0")
        memory = GlobalMemory([a.reshape(-1).view(np.uint8) for a in self.arrays])
        known = {map_bytes(i + 1): m for i, m in enumerate(self.maps)}
        block = Block((0, 0, 0), (1, 1, 1), (96, 1, 1), 8192)
        Cta(self.translator, block, memory, raw, known, schedule).run()
        return self.target.tobytes() + self.plain.tobytes()


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject()


def test_every_kind_of_change_is_made(subject):
    kinds = {mutant.kind for mutant in subject.mutants.all}
    assert kinds == {
        "wait", "phase", "bytes", "count", "arrive", "fence", "barrier", "drain", "mask",
    }  # fmt: skip


def test_only_comparisons_that_mask_are_masks(subject):
    """Not those of loops, nor those that choose a role."""
    result = masking(subject.kernel)
    texts = [i.operands for block in subject.kernel.blocks for i in block if id(i) in result]
    assert texts == [["%p6", "%r2", "20"], ["%p7", "%r2", "24"]]


def test_no_mutant_is_selected_at_first(subject):
    sums = subject.source.sum(0) * (np.arange(32) < 20)
    expected = np.where(np.arange(32) < 24, sums, -1).astype("f4")
    for schedule in SCHEDULES:
        result = np.frombuffer(subject.run(schedule), "f4")
        assert (result == np.concatenate([sums, expected])).all()


def test_every_mutant_of_a_tight_pipeline_is_caught(subject):
    good = subject.run("lazy")
    survivors = []
    for mutant in subject.mutants.all:
        subject.mutants.selected = mutant.number
        caught = False
        for schedule in SCHEDULES:
            try:
                caught |= subject.run(schedule) != good
            except EmulatorError:
                caught = True
        if not caught:
            survivors.append(mutant.kind)
    subject.mutants.selected = 0
    assert survivors == []
    numbers = {mutant.number for mutant in subject.mutants.all}
    assert subject.mutants.reached == numbers | set(subject.mutants.ends.values())


def test_only_the_end_follows_no_wait_of_the_pipeline(subject):
    """To end a warp in place of any of its waits is a fault, or gives another result."""
    good = subject.run("lazy")
    for number in subject.mutants.ends.values():
        subject.mutants.selected = number
        try:
            assert subject.run("lazy") != good
        except EmulatorError:
            pass
    subject.mutants.selected = 0
    assert subject.run("lazy") == good
    assert subject.run("lazy") == good


def test_mutants_of_a_cluster_are_caught():
    """Another CTA in place of the peer, and no wait for the cluster."""
    out = np.zeros((2, 32), np.int32)
    kernel, mutants = ptx.parse(kernel_text(EXCHANGE, 1, 0))["test"], Mutants(("peer", "barrier"))
    mutants.add(kernel)
    translator = Translator(kernel, mutants=mutants)
    memory = GlobalMemory([out.reshape(-1).view(np.uint8)])
    block = Block((0, 0, 0), (2, 1, 1), (32, 1, 1), 8192, 2)
    found = []
    for mutant in mutants.all:
        mutants.selected = mutant.number
        with pytest.raises(EmulatorError):
            for seed in range(20):  # that a CTA ends too early shows on some schedules only
                raw = out.ctypes.data.to_bytes(8, "little")
                Cta(translator, block, memory, raw, {}, "random", seed).run()
        found.append(mutant.kind)
    assert sorted(found) == ["barrier", "barrier", "peer", "peer"]
