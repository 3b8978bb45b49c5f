"""The roles of the warps in the backward, and the barriers on which they wait for each other."""

from cutlass import cute

from ...barriers import Signal, initialize
from ...values import Fixed
from ..wgmma import WARPGROUP

GROUPS = 2  # warpgroups that multiply
LOADS, SUMS, CONVERSION, WARPS = 8, 9, 11, 12  # the first warp of each role; 0-7 multiply
REGISTERS = {"products": 240, "others": 24}  # of a thread; 384 threads have 168 each on average
# Buffers in shared memory. o: dO. s: dS. a: an aux operand that TMA loads. x: the buffers of `a`
# as a whole, since dV and dK are stored from the same memory.
STAGES = {"k": 1, "v": 1, "q": 2, "o": 2, "s": 2, "a": 2, "x": 1}

# Named barriers. Each but the first has two numbers, one for each warpgroup.
BOTH = 1  # both warpgroups meet
EMPTY = 2  # dQ that was handed over may be overwritten
OWN = 4  # the threads of a warpgroup meet
TURNS = 6  # used by `IssueTurns`
FULL = 8  # dQ is handed over to the warp that adds it
HANDED = WARPGROUP + 32  # how many threads meet at FULL and EMPTY


class HopperSignals(Fixed):
    """All mbarriers of a CTA, from `pointer` on.

    What a signal means, and who arrives:
    full["s"]   dS is written. Each warp that multiplies arrives.
    full[·]     Another operand has landed. The load warp arrives, and TMA counts bytes.
    empty[·]    An operand is no longer read. Each warp that multiplies arrives.
    landed      64 columns of sums of dQ are in shared memory. TMA counts bytes.

    What the number of a signal counts:
    q, o, s, a  Steps.
    k, v, x     Tiles that have steps.
    landed      Query tiles that the CTA converts.

    `a` uses the memory of dS. At the end of a tile, dV and dK use this memory too. empty["x"] says
    at the beginning of a tile that dV and dK of the tile before are stored. A tile cannot go on
    without its `a`, so nobody arrives there twice before the load warp has seen it. full["x"] is
    not used.
    """

    COUNT = 2 * sum(STAGES.values()) + GROUPS

    def __init__(self, pointer, operands: str, columns: int) -> None:
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
        if warp == LOADS:
            initialize((*self.full.values(), *self.empty.values(), *self.landed))
        cute.arch.sync_threads()


def together(group) -> None:
    cute.arch.barrier(barrier_id=OWN + group, number_of_threads=WARPGROUP)


def both() -> None:
    cute.arch.barrier(barrier_id=BOTH, number_of_threads=GROUPS * WARPGROUP)
