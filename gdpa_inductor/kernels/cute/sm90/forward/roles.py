"""The roles of the warps in the forward, and the mbarriers on which they wait for each other."""

from cutlass import cute

from ...barriers import Loan, Ring, initialize
from ...forward.scheduler import STAGES
from ...values import Fixed
from ..config import Sm90Config
from ..wgmma import WARPGROUP

REGISTERS = {2: (232, 40), 3: (160, 32)}  # by number of query tiles; all threads share 65536
WARPS = 4  # of a warpgroup
OWN = 1  # named barriers: one for each warpgroup from here on, then those of `IssueTurns`


class Roles(Fixed):
    """The first warp of each role. The warps before `loads` multiply: four for each query tile.

    readers: How many warps read the scheduler's records. registers: (of a thread that multiplies,
    of any other thread).
    """

    def __init__(self, tiles: int) -> None:
        self.tiles, self.loads = tiles, WARPS * tiles
        self.scheduler = self.readers = self.loads + 1
        self.gaps, self.warps = self.loads + 2, self.loads + 4  # one warp has no role
        self.registers = REGISTERS[tiles]


class HopperChannels(Fixed):
    """All mbarriers of a CTA, from `pointer` on. `count(config)` says how many.

    Each is a ring of buffers in shared memory:

                     content                        filled by       read by
    tiles            records of the scheduler       scheduler       all other roles
    queries[t]       Q_t                            loads           warpgroup t
    keys             K and V in turn                loads           all warpgroups
    bias[t]          half tiles of the bias         loads           warpgroup t

    If O uses the memory of Q_t (`overlaid`), warpgroup t owns it. It lends the memory to the load
    warp for each tile that has keys.
    """

    def __init__(self, config: Sm90Config, pointer) -> None:
        tiles, stages = config.tiles, config.query_stages // config.tiles
        self.roles = Roles(tiles)
        self.tiles = Ring(pointer, STAGES, 1, self.roles.readers)
        pointer = pointer + 2 * STAGES
        self._queries, self._stages = pointer, stages
        self._kind = Loan if config.overlaid else Ring
        self.queries = [self.queries_of(t) for t in range(tiles)]
        pointer = pointer + 2 * stages * tiles
        self.keys = Ring(pointer, config.key_stages, 1, self.roles.loads)
        self._bias, self._bias_stages = pointer + 2 * config.key_stages, config.bias_stages
        self.bias = [self.bias_of(t) for t in range(tiles if config.bias_stages else 0)]

    def queries_of(self, t) -> Ring:  # t is a Python number or a register, here and below
        return self._kind(self._queries + 2 * self._stages * t, self._stages, 1, WARPS)

    def bias_of(self, t) -> Ring:
        first = self._bias + 2 * self._bias_stages * t
        return Ring(first, self._bias_stages, 1, WARPS)

    @staticmethod
    def count(c: Sm90Config) -> int:
        return 2 * (STAGES + c.query_stages + c.key_stages + c.tiles * c.bias_stages)

    @cute.jit
    def start(self, warp):
        if warp == self.roles.scheduler:
            initialize((self.tiles, *self.queries, self.keys, *self.bias))
        cute.arch.sync_threads()


def together(t) -> None:
    """The threads of warpgroup t wait for each other."""
    cute.arch.barrier(barrier_id=OWN + t, number_of_threads=WARPGROUP)
