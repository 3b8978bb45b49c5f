"""What a compiled kernel is a function of, and what it cannot do. No cutlass here.

A `Config` is the cache key: everything else (lengths, batch, heads, strides) is read at run time.
"""

from dataclasses import dataclass

from ...score_mod import ScoreMod

ROWS = COLS = 128  # a score tile: 128 lanes of tensor memory, 128 fp32 columns
MAX_DIM = 128
SHARED_MEMORY = 227 << 10
TMEM_COLUMNS = 512
VERSIONS = ((4, 8), (4, 9))  # of nvidia-cutlass-dsl: from, below


@dataclass(frozen=True)
class Config:
    """dtype: "bfloat16" or "float16". head_dim, value_dim: as they are; tiles are padded by zero fill.

    program: the text of the score program. aux: dtype names of its operands. jagged_q, jagged_k: that
    side is packed, with offsets; then positions count from the beginning of the sequence.
    shared: which of "q", "k", "v" have a batch of one. fast: approximate functions (see emit.py).
    """

    dtype: str
    head_dim: int
    value_dim: int
    program: str
    aux: tuple[str, ...] = ()
    jagged_q: bool = False
    jagged_k: bool = False
    shared: frozenset[str] = frozenset()
    fast: bool = True
    offsets: str = "int32"

    @property
    def mod(self) -> ScoreMod:
        return ScoreMod.parse(self.program)

    @property
    def padded_head_dim(self) -> int:
        return _padded(self.head_dim)

    @property
    def padded_value_dim(self) -> int:
        return _padded(self.value_dim)

    @property
    def output_stages(self) -> int:
        """Two accumulators per query tile where tensor memory has room, so that the next tile does not
        wait for the drain of this one."""
        return 2 if self.padded_value_dim <= 64 else 1

    @property
    def query_stages(self) -> int:
        return 4

    @property
    def key_stages(self) -> int:
        """As many as fit beside the query tiles, up to 6."""
        stage = 2 * COLS * max(self.padded_head_dim, self.padded_value_dim)
        room = SHARED_MEMORY - 2048 - 2 * ROWS * self.padded_head_dim * self.query_stages
        return min(6, room // stage)


def _padded(size: int) -> int:
    """To whole swizzle atoms of 32 elements."""
    return -(-size // 32) * 32
