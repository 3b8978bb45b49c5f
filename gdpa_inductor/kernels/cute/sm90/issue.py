"""In which order warpgroups issue their products."""

from typing import Any

from cutlass import cute

from ..values import Fixed, select
from .wgmma import WARPGROUP


class IssueTurns(Fixed):
    """The warpgroups issue the products of a step one after the other, beginning with t = 0.

    So each activates its scores while the products of others run. Without turns all issue at once,
    and then all wait for the special functions. Each has a named barrier, from `first` on, where it
    meets the one before it: one waits for its turn there, the other passes it on.
    """

    def __init__(self, t: Any, tiles: int, first: int) -> None:
        self.t, self.tiles, self.first = t, tiles, first

    @cute.jit
    def start(self):
        """Before the first step."""
        if self.t == self.tiles - 1:
            self.passes()

    def wait(self) -> None:
        """Before the products of a step are issued."""
        cute.arch.barrier(barrier_id=self.first + self.t, number_of_threads=2 * WARPGROUP)

    def passes(self) -> None:
        """After they are issued."""
        if self.tiles == 2:
            other = self.first + 1 - self.t
        else:
            other = self.first + select(self.t == self.tiles - 1, 0, self.t + 1)
        cute.arch.barrier_arrive(barrier_id=other, number_of_threads=2 * WARPGROUP)

    @cute.jit
    def finish(self):
        """After the last step: t = 0 takes the last turn, which the last t has passed on."""
        if self.t == 0:
            self.wait()
