"""The roles of the backward: which warps they are, and who waits for whom."""

from typing import Any

from cutlass import cute

from ...barriers import Signal
from ...values import Fixed
from ..wgmma import WARPGROUP

GROUPS = 2  # warpgroups that multiply
LOADS, SUMS, CONVERSION, WARPS = 8, 9, 10, 12  # the first warp of each role; 0-7 multiply
CONVERTERS = WARPS - CONVERSION
REGISTERS = {"products": 240, "others": 24}  # 384 threads share 168 each
# Of the operands in shared memory. o: dO; a: the operand of the program that comes in tiles; x: its
# buffers, while dV and dK are stored from there.
STAGES = {"k": 1, "v": 1, "q": 2, "o": 2, "a": 2, "x": 1}

# Named barriers. The last three have one for each warpgroup.
BOTH = 1  # both warpgroups
FULL = 2  # dQ is handed over, to the warp that adds it up
EMPTY = 4  # and may be overwritten
OWN = 6  # the threads of a warpgroup
HANDED = WARPGROUP + 32  # threads at FULL and EMPTY


class HopperSignals(Fixed):
    """All mbarriers of a CTA, from `pointer` on.

    full[x]      operand x has landed: the load warp
    empty[x]     it is read no more: each warp that multiplies
    landed       sums of dQ are in shared memory, for each warp that converts: TMA

    q, o and a are counted in steps, k, v and x in tiles that have steps, the last in query tiles
    that the CTA converts. a lies where dS and, at the end of a tile, dV and dK are written. At the
    beginning of a tile empty[x] says that those of the tile before are gone. The tile needs its a,
    so nobody arrives there twice before the load warp has seen it. full[x] is not used.
    """

    COUNT = 2 * sum(STAGES.values()) + CONVERTERS

    def __init__(self, pointer: Any, operands: str, converters: int) -> None:
        self.full: dict[str, Signal] = {}
        self.empty: dict[str, Signal] = {}
        for name in operands:
            stages = STAGES[name]
            self.full[name] = Signal(pointer, stages, 1)
            self.empty[name] = Signal(pointer + stages, stages, LOADS)
            pointer = pointer + 2 * stages
        self.landed = [Signal(pointer + i, 1, 1) for i in range(converters)]

    @cute.jit
    def start(self, warp):
        """Barriers are there for all warps after this."""
        if warp == LOADS:
            with cute.arch.elect_one():
                for signal in (*self.full.values(), *self.empty.values(), *self.landed):
                    signal.init()
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()


def together(group: Any) -> None:
    """The threads of a warpgroup wait for each other."""
    cute.arch.barrier(barrier_id=OWN + group, number_of_threads=WARPGROUP)


def both() -> None:
    """All threads that multiply wait for each other."""
    cute.arch.barrier(barrier_id=BOTH, number_of_threads=GROUPS * WARPGROUP)
