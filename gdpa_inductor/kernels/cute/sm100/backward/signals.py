"""mbarriers by the number of the completion that is waited for.

A `Signal` has `stages` slots. Its users count steps from 0; step i is the (i // stages)-th
completion of slot i % stages, so nobody keeps phases. What each signal of the backward says is in
`backward.SIGNALS`.
"""

from typing import Any

from cutlass import Constexpr, Int32, Uint32, cute
from cutlass.cute.nvgpu import tcgen05


class Signal:
    """`stages` mbarriers at `pointer` in shared memory, each completed by `arrivals` arrivals."""

    def __init__(self, pointer: Any, stages: int, arrivals: int) -> None:
        self.pointer, self.stages, self.arrivals = pointer, stages, arrivals

    def initialize(self) -> None:
        """By one thread, before a barrier of the whole CTA."""
        for stage in range(self.stages):
            cute.arch.mbarrier_init(self.pointer + stage, self.arrivals)

    def index(self, step: Any) -> Any:
        """Steps are never negative: an unsigned remainder needs no care for signs."""
        return Int32(Uint32(step) % self.stages) if self.stages > 1 else 0

    def slot(self, step: Any) -> Any:
        """The mbarrier of a step."""
        return self.pointer + self.index(step)

    def _parity(self, step: Any) -> Any:
        return Int32(Uint32(step) // self.stages & 1 if self.stages > 1 else step & 1)

    def wait(self, step: Any) -> None:
        """Until step `step` has been signalled."""
        cute.arch.mbarrier_wait(self.slot(step), self._parity(step))

    def wait_before(self, step: Any) -> None:
        """Until the step that had this slot before has been signalled; the first had none."""
        cute.arch.mbarrier_wait(self.slot(step), self._parity(step) ^ 1)

    @cute.jit
    def arrive(self, step):
        """Once for the whole calling warp."""
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(self.slot(step))

    @cute.jit
    def expect(self, step, size: Constexpr):
        """Arrive, and expect `size` bytes by TMA; by one warp."""
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(self.slot(step), size)

    @cute.jit
    def commit(self, step):
        """Arrive when every product issued so far is done; by the warp of products."""
        with cute.arch.elect_one():
            tcgen05.commit(self.slot(step))
