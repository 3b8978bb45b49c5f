"""The order in which the warpgroups of a CTA issue their products."""

from typing import Any

from cutlass import cute

from ..values import Fixed, select
from .wgmma import WARPGROUP


class IssueTurns(Fixed):
    """Turns: in each step the warpgroups issue their products one after the other, from t = 0 on.

    So a warpgroup activates its scores while the products of others run. Without turns, all would
    issue products at once, and then all would wait for the special functions.

    Warpgroup t has the named barrier `first` + t. It waits there for its turn, and the warpgroup
    before it arrives there to pass the turn on.
    """

    def __init__(self, t: Any, tiles: int, first: int) -> None:
        self.t, self.tiles, self.first = t, tiles, first

    @cute.jit
    def start(self):
        """Call it before the first step."""
        if self.t == self.tiles - 1:
            self.passes()

    def wait(self) -> None:
        """Wait for the turn, before the products of a step are issued."""
        cute.arch.barrier(barrier_id=self.first + self.t, number_of_threads=2 * WARPGROUP)

    def passes(self) -> None:
        """Pass the turn on, after they are issued."""
        if self.tiles == 2:
            other = self.first + 1 - self.t
        else:
            other = self.first + select(self.t == self.tiles - 1, 0, self.t + 1)
        cute.arch.barrier_arrive(barrier_id=other, number_of_threads=2 * WARPGROUP)

    @cute.jit
    def finish(self):
        """Call it after the last step. t = 0 takes the last turn, so that no arrival is left."""
        if self.t == 0:
            self.wait()
