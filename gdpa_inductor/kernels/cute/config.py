"""What a compiled kernel is a function of, whatever the architecture. No cutlass here.

A `KernelConfig` is the cache key: all else (lengths, batch, heads, strides) is read at run time.
"""

from dataclasses import dataclass

from ...program.score_mod import ScoreMod

BOX = 128  # rows of a matrix that one TMA copy brings
AUX_DTYPES = (
    "float16", "bfloat16", "float32", "float64", "bool", "uint8", "int8", "int16", "int32", "int64",
)  # fmt: skip
VERSIONS = ((4, 8), (4, 9))  # of nvidia-cutlass-dsl: from, below


@dataclass(frozen=True)
class KernelConfig:
    """dtype: "bfloat16" or "float16". head_dim, value_dim: as they are; tiles are padded by zero
    fill.

    program: the text of the score program. aux: dtype names of its operands. jagged_q, jagged_k:
    that side is jagged, with offsets; then positions count from the beginning of the sequence.
    shared: which of "q", "k", "v" have a batch of one. fast: approximate functions (see emit.py).
    skip: leave out key blocks where the program is zero. offsets: dtype of cu_seqlens. vectors: the
    aux operands whose keys lie side by side, at multiples of 16 bytes."""

    dtype: str
    head_dim: int
    value_dim: int
    program: str
    aux: tuple[str, ...] = ()
    jagged_q: bool = False
    jagged_k: bool = False
    shared: frozenset[str] = frozenset()
    fast: bool = True
    skip: bool = True
    offsets: str = "int32"
    vectors: frozenset[int] = frozenset()

    @property
    def mod(self) -> ScoreMod:
        return ScoreMod.parse(self.program)

    @property
    def padded_head_dim(self) -> int:
        return _padded(self.head_dim)

    @property
    def padded_value_dim(self) -> int:
        return _padded(self.value_dim)


def _padded(size: int) -> int:
    """To whole swizzle atoms of 32 elements."""
    return -(-size // 32) * 32
