"""The roles of the forward: which warps they are, and who waits for whom."""

from typing import Any

from cutlass import cute

from ...barriers import Ring
from ...config import TILES
from ...forward.scheduler import STAGES
from ...values import Fixed
from ..config import Sm90Config
from ..wgmma import WARPGROUP

LOADS, SCHEDULER, GAPS, WARPS = 8, 9, 10, 12  # the first warp of each role; 0-7 multiply
REGISTERS = {"products": 232, "others": 40}  # 384 threads share 65536
READERS = 9  # warps that read the scheduler's records

# Named barriers, one for each warpgroup.
OWN = 1  # its threads
TURN = 3  # it may issue its products


class HopperChannels(Fixed):
    """All mbarriers of a CTA, from `pointer` on; `count(config)` says how many.

                     what is handed over            who fills it    who reads it
    tiles            records of the scheduler       scheduler       all other roles
    queries[t]       Q_t, in shared memory          loads           warpgroup t
    keys             K and V in turn, the same      loads           both warpgroups
    bias[t]          half tiles of the bias, same   loads           warpgroup t
    """

    def __init__(self, config: Sm90Config, pointer: Any) -> None:
        stages = config.query_stages // TILES
        self.tiles = Ring(pointer, STAGES, 1, READERS)
        pointer = pointer + 2 * STAGES
        self._queries, self._stages = pointer, stages
        self.queries = [self.queries_of(t) for t in range(TILES)]
        pointer = pointer + 2 * stages * TILES
        self.keys = Ring(pointer, config.key_stages, 1, LOADS)
        self._bias, self._bias_stages = pointer + 2 * config.key_stages, config.bias_stages
        self.bias = [self.bias_of(t) for t in range(TILES if config.bias_stages else 0)]

    def queries_of(self, t: Any) -> Ring:
        """queries[t]. t: a Python number, or one known at run time."""
        return Ring(self._queries + 2 * self._stages * t, self._stages, 1, LOADS // TILES)

    def bias_of(self, t: Any) -> Ring:
        """bias[t], in the same way."""
        first = self._bias + 2 * self._bias_stages * t
        return Ring(first, self._bias_stages, 1, LOADS // TILES)

    @staticmethod
    def count(c: Sm90Config) -> int:
        return 2 * (STAGES + c.query_stages + c.key_stages + TILES * c.bias_stages)

    @cute.jit
    def start(self, warp):
        """Barriers are there for all warps after this."""
        if warp == SCHEDULER:
            with cute.arch.elect_one():
                for channel in (self.tiles, *self.queries, self.keys, *self.bias):
                    channel.init()
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()


def together(t: Any) -> None:
    """The threads of warpgroup t wait for each other."""
    cute.arch.barrier(barrier_id=OWN + t, number_of_threads=WARPGROUP)


class IssueTurns(Fixed):
    """The warpgroups issue the products of a key block one after the other, beginning with t = 0.

    So each activates its scores while the products of the other run. Without turns both issue at
    once, and then both wait for the special functions.
    """

    def __init__(self, t: Any) -> None:
        self.t = t

    @cute.jit
    def start(self):
        """Before the first key block."""
        if self.t == 1:
            self.passes()

    def wait(self) -> None:
        """Before the products of a key block are issued."""
        cute.arch.barrier(barrier_id=TURN + self.t, number_of_threads=TILES * WARPGROUP)

    def passes(self) -> None:
        """After they are issued."""
        other, threads = TURN + 1 - self.t, TILES * WARPGROUP
        cute.arch.barrier_arrive(barrier_id=other, number_of_threads=threads)

    @cute.jit
    def finish(self):
        """After the last key block: t = 0 takes the last turn, which t = 1 has passed on."""
        if self.t == 0:
            self.wait()
