"""What a compiled kernel is a function of, whatever the architecture. No cutlass here.

A `KernelConfig` is the cache key: all else (lengths, batch, heads, strides) is read at run time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ...program.expr import AXES, POSITIONS
from ...program.score_mod import ScoreMod

BOX = 128  # rows of a matrix that one TMA copy brings
TILES = 2  # query tiles of a CTA in the forward, unless `KernelConfig.tiles` has another number
SHARED_MEMORY = 227 << 10  # bytes of a CTA, on sm_90 and sm_100
AUX_DTYPES = (
    "float16", "bfloat16", "float32", "float64", "bool", "uint8", "int8", "int16", "int32", "int64",
)  # fmt: skip
PACKAGE = "nvidia-cutlass-dsl"
VERSIONS = ((4, 8), (4, 9))  # of the package: from, below
LETTERS = (*AXES, "q", "k")  # of access maps
VECTOR = 8  # numbers that a thread moves at a time; every head dim is a multiple of it
LEAST_SLICE = 128  # channels of V of a launch, where one does not take them all


@dataclass(frozen=True)
class KernelConfig:
    """The fields are those of every architecture; the constants are set by its subclass.

    The architecture:
    folder            where its kernels are
    arch, gpu         its name for ptxas, and for people
    rows              of a score tile
    max_dim           the largest head dim of a forward
    max_backward_dim  the same of a backward
    rivalled          Triton is faster there on some problems
    clears            its kernels store zeros in the rows of a jagged result that no sequence owns;
                      else these are cleared ahead
    bare_ends         they leave out the mask past the ends of a sequence where zeros there do
                      instead (program/tails.py)
    cuts_keys         launches of its backward may have some of the keys each (`part`)
    in_rounds         its forward deals tiles of equal cost so that the last round is not for a few
                      CTAs (forward/rounds.py)

    The call:
    dtype             "bfloat16" or "float16"
    head_dim          of query and key as they are; tiles are padded by zero fill
    value_dim         the same of the value, or of a slice of its channels (`slice_of`)
    program           the text of the score program
    aux               dtype names of its operands
    jagged_q          the query has offsets; positions then count within the sequence
    jagged_k          the same of key and value
    offsets           dtype of cu_seqlens
    shared            which of "q", "k", "v" have a batch of one
    fast              approximate functions are used (emit.py)
    skip              key blocks are left out where the program is zero
    bounded           the operands that there may be tables of bounds of (classes.py)
    vectors           the aux operands whose keys lie side by side, at multiples of 16 bytes
    expanded          those with a stride of 0, which TMA is not asked to read

    The backward:
    stored            the aux operand whose gradient is stored, a number for each score
    ordered           dQ is added up in one order; may be False on sm_90 only
    part              "first", "middle" or "last" where launches have some of the keys each. Sums of
                      dQ go on from one to the next, and the last one converts them
    """

    folder: ClassVar[str]
    arch: ClassVar[str]
    gpu: ClassVar[str]
    rows: ClassVar[int]
    max_dim: ClassVar[int]
    max_backward_dim: ClassVar[int]
    rivalled: ClassVar[bool]
    clears: ClassVar[bool] = False
    bare_ends: ClassVar[bool] = False
    cuts_keys: ClassVar[bool] = False
    in_rounds: ClassVar[bool] = False

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
    expanded: frozenset[int] = frozenset()
    stored: int | None = None
    ordered: bool = True
    part: str = ""
    bounded: frozenset[int] = frozenset()

    def backward_kernels(
        self, ordered: bool, stored: int | None
    ) -> list[tuple["KernelConfig | str", ...]]:
        """What follows from the configuration of a call for each kernel of its backward: what
        `kept` of that architecture takes."""
        raise NotImplementedError

    @property
    def mod(self) -> ScoreMod:
        return ScoreMod.parse(self.program)

    @property
    def jagged(self) -> bool:
        return self.jagged_q or self.jagged_k

    @property
    def batch_first(self) -> bool:
        """The batches of a head are dealt one after the other: they read the same elements of an
        operand, which may be larger than the L2 cache for all heads together."""
        shared = [x.axes for x in self.mod.aux if "b" not in x.axes]
        return not self.jagged and any(axes >= {"h", *POSITIONS} for axes in shared)

    @property
    def notes(self) -> bool:
        """A backward notes which tiles of scores it has stored."""
        return self.jagged and self.stored is not None

    @property
    def tiled(self) -> int | None:
        """The operand of the program that TMA can load in tiles of scores: one 16-bit number for
        each score, in the dtype of the matrices. Of several, the first."""
        for number in sorted(self.vectors - self.expanded):
            if self.aux[number] == self.dtype and set(self.mod.aux[number].access) >= POSITIONS:
                return number
        return None

    @property
    def tiles(self) -> int:
        """Query tiles of a CTA in the forward."""
        return TILES

    @property
    def cols(self) -> int:
        """Of a score tile: the keys of a block."""
        return BOX

    @property
    def overlaid(self) -> bool:
        """O takes the room of the query tiles in shared memory, which holds no more."""
        return False

    @property
    def padded_head_dim(self) -> int:
        return _padded(self.head_dim)

    @property
    def padded_value_dim(self) -> int:
        return _padded(self.value_dim)


def unsupported(
    kind: type[KernelConfig],
    dtypes: tuple[torch.dtype, torch.dtype],
    dims: tuple[int, int],
    aux: Sequence[str],
) -> str:
    """Why the kernels of an architecture cannot run this, or "". dtypes, dims: of query and value.
    aux: dtype names."""
    if any(dtype not in (torch.bfloat16, torch.float16) for dtype in dtypes):
        return f"the CuTe kernel takes fp16 and bf16 operands, not {dtypes[0]} and {dtypes[1]}"
    if dtypes[0] != dtypes[1]:
        return f"query is {dtypes[0]}, value {dtypes[1]}; the CuTe kernel takes one"
    for size in dims:
        if not 8 <= size <= kind.max_dim or size % 8:
            most = kind.max_dim
            return f"a head dim of {size}; the CuTe kernel takes multiples of 8 up to {most}"
    strange = [dtype for dtype in aux if dtype not in AUX_DTYPES]
    return f"an operand between the products is {strange[0]}" if strange else ""


def slice_of(kind: type[KernelConfig], value_dim: int) -> int:
    """The channels of V that a launch of the forward takes: all, or of more than a kernel has room
    for the largest of equal slices. `value_dim` itself where there are none."""
    if value_dim <= kind.max_dim:
        return value_dim
    fewest, most = -(-value_dim // kind.max_dim), value_dim // LEAST_SLICE
    counts = (count for count in range(fewest, most + 1) if value_dim % (count * VECTOR) == 0)
    return value_dim // next(counts, 1)


def _padded(size: int) -> int:
    """To whole swizzle atoms of 32 elements."""
    return -(-size // 32) * 32


def whole_vectors(count: Any) -> Any:
    """Numbers, with those that fill the last vector of a row."""
    return (count + (VECTOR - 1)) // VECTOR * VECTOR
