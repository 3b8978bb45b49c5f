"""The roles of the warps in the forward, and the mbarriers on which they wait for each other.

Products need no barriers among themselves, because the tensor core computes in the order of issue.
So S_t of the next block overwrites P_t only after O_t += P_t V has read it.
"""

from cutlass import cute

from ...barriers import Barriers, Ring, initialize
from ...forward.scheduler import STAGES
from ...values import Fixed
from ..config import COLS, TMEM_COLUMNS, Sm100Config

EPILOGUE, PRODUCTS, LOADS, SCHEDULER, WARPS = 8, 12, 13, 14, 16  # the first warp of each role
READERS = 14  # warps that read the scheduler's records
REGISTERS = {"activation": 168, "epilogue": 96, "others": 80}  # 512 threads share 65536
WARPGROUP = 128  # threads
HANDED_OVER = (3, 4)  # P_t has 4 parts: the products get three of them first, then the last
BUFFERS = 2  # of scores: S_0 and S_1
SCORES, SUMS = 0, BUFFERS * COLS  # first columns in tensor memory


class Channels(Fixed):
    """All mbarriers of a CTA, from `pointer` on. `count(config)` says how many.

                     content                        filled by       read by
    tiles            records of the scheduler       scheduler       all other roles
    queries[t]       Q_t, in shared memory          loads           products
    keys             parts of K and V, the same     loads           products
    scores           S_t, in tensor memory          products        activation
    weights[part]    a part of P_t, the same        activation      products
    sums[t]          O_t, the same                  products        epilogue

    With one query tile t is 0, but for S_t and P_t.
    """

    def __init__(self, config: Sm100Config, pointer) -> None:
        self.free, self.all = pointer, []  # type: ignore[var-annotated]
        c = config
        self.tiles = self._ring(STAGES, 1, READERS)
        self.queries = [self._ring(c.query_stages // c.tiles, 1, 1) for _ in range(c.tiles)]
        self.keys = self._ring(c.key_stages, 1, 1)
        self.sums = [self._ring(c.output_stages, 1, WARPGROUP) for _ in range(c.tiles)]
        self.scores = self._barriers(1)
        self.weights = [self._barriers(WARPGROUP) for _ in HANDED_OVER]

    @staticmethod
    def count(c: Sm100Config) -> int:
        rings = STAGES + c.query_stages + c.key_stages + c.tiles * c.output_stages
        return 2 * rings + (1 + len(HANDED_OVER)) * BUFFERS

    def _ring(self, stages: int, producers: int, consumers: int) -> Ring:
        ring = Ring(self.free, stages, producers, consumers)
        self.free = self.free + 2 * stages
        self.all.append(ring)
        return ring

    def _barriers(self, arrivals: int) -> Barriers:
        barriers = Barriers(self.free, BUFFERS, arrivals)
        self.free = self.free + BUFFERS
        self.all.append(barriers)
        return barriers

    @cute.jit
    def start(self, warp, tmem):
        """Initialise barriers and allocate tensor memory. All warps may use both after this."""
        if warp == SCHEDULER:
            initialize(self.all)
        if warp == EPILOGUE:
            cute.arch.alloc_tmem(TMEM_COLUMNS, tmem)
            cute.arch.relinquish_tmem_alloc_permit()
        cute.arch.sync_threads()


class ForwardTensorMemory(Fixed):
    """S_t, P_t and O_t in tensor memory, from column 0, `tmem`, on."""

    def __init__(self, config: Sm100Config, qk, pv, p_layout, tmem, dtype) -> None:
        self.config, self.tmem, self.dtype = config, tmem, dtype
        self.s_layout, self.o_layout = _accumulator(qk), _accumulator(pv)
        self.p_layout = pv.make_fragment_A(cute.make_tensor(tmem, p_layout.outer)).layout

    def scores(self, t):
        # t is a Python number or a register.
        return cute.make_tensor(self.tmem + scores_column(t), self.s_layout)

    def weights(self, t):
        # in the first half of the columns of S_t
        pointer = cute.recast_ptr(self.scores(t).iterator, dtype=self.dtype)
        return cute.make_tensor(pointer, self.p_layout)

    def sums(self, t, stage):
        return cute.make_tensor(self.tmem + sums_column(self.config, t, stage), self.o_layout)


def scores_column(t):
    return SCORES + COLS * t


def sums_column(config: Sm100Config, t, stage):
    width = config.sums_columns
    return SUMS + width * t + width // config.output_stages * stage


def _accumulator(product):
    shape = product.shape_mnk
    return product.make_fragment_C(product.partition_shape_C(shape[:2])).layout
