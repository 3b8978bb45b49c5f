"""The roles of the backward: which warps they are, and who waits for whom."""

from typing import Any

from cutlass import cute

from ...barriers import Signal
from ...values import Fixed
from ..wgmma import WARPGROUP

GROUPS = 2  # warpgroups that multiply
LOADS, SUMS, CONVERSION, WARPS = 8, 9, 11, 12  # the first warp of each role; 0-7 multiply
REGISTERS = {"products": 240, "others": 24}  # 384 threads share 168 each
# Of the operands in shared memory. o: dO; s: dS; a: the operand of the program that comes in tiles;
# x: its buffers, while dV and dK are stored from there.
STAGES = {"k": 1, "v": 1, "q": 2, "o": 2, "s": 2, "a": 2, "x": 1}

# Named barriers. All but the first have one for each warpgroup.
BOTH = 1  # both warpgroups
EMPTY = 2  # dQ that was handed over may be overwritten
OWN = 4  # the threads of a warpgroup
TURNS = 6  # of `IssueTurns`
FULL = 8  # dQ is handed over, to the warp that adds it up
HANDED = WARPGROUP + 32  # threads at FULL and EMPTY


class HopperSignals(Fixed):
    """All mbarriers of a CTA, from `pointer` on.

    What is signalled, and who arrives:
    full["s"]   dS is written: each warp that multiplies
    full[·]     another operand has landed: the load warp
    empty[·]    an operand is read no more: each warp that multiplies
    landed      64 columns of sums of dQ are in shared memory: TMA

    What is counted:
    q, o, s, a  steps
    k, v, x     tiles that have steps
    landed      query tiles that the CTA converts

    `a` lies where dS and, at the end of a tile, dV and dK are written. empty["x"] says at the
    beginning of a tile that those of the tile before are gone. The tile needs its `a`, so nobody
    arrives there twice before the load warp has seen it. full["x"] is not used.
    """

    COUNT = 2 * sum(STAGES.values()) + GROUPS

    def __init__(self, pointer: Any, operands: str, columns: int) -> None:
        self.full: dict[str, Signal] = {}
        self.empty: dict[str, Signal] = {}
        for name in operands:
            stages = STAGES[name]
            self.full[name] = Signal(pointer, stages, LOADS if name == "s" else 1)
            self.empty[name] = Signal(pointer + stages, stages, LOADS)
            pointer = pointer + 2 * stages
        self.landed = [Signal(pointer + i, 1, 1) for i in range(columns)]

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
