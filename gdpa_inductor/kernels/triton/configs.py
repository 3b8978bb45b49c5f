"""Which tile sizes are tried for which kernel: a small table, pruned by shared memory.

The first configuration of a row is the best known one. If it is not settled (`settled`), the others
are benchmarked too. max-autotune tries a wider list.

The rows of "forward", "rows" and "keys" are the best of that list on an H200 (torch 2.11, Triton
3.6). They were measured for silu at M = N = 1024 and, for D = 128, from 256 to 8192. The rows of
"five_matmul" and "tiles" were measured less often. Those of wide "tiles" follow from the shared
memory that a tile needs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Config:
    """rows × keys of the score tile, warps of a CTA, stages of the pipelined loop."""

    rows: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Shape:
    """What decides the cost of a tile."""

    head_dim: int  # this and the next are rounded up to powers of two, of "weights" to 16
    value_dim: int
    itemsize: int  # bytes of an element of the matrices
    score_bytes: int = 0  # for each score, of aux operands that vary along queries and keys
    # "skips": tiles are skipped; "short": at most SHORT keys; "jagged": sequences end anywhere;
    # "few": few queries; "tile": all queries of a sequence fit into one tile; "split": the keys are
    # cut into shares; "table": elements of a table are read for each score
    loop: frozenset[str] = frozenset()
    rows: int = 0  # the fewest that a tile may have, a power of two

    @property
    def widest(self) -> int:
        return max(self.head_dim, self.value_dim)


def shared_memory(kernel: str, config: Config, shape: Shape, capability: int = 90) -> int:
    """The most bytes of shared memory: resident tiles, and loaded tiles for each stage."""
    both = shape.head_dim + shape.value_dim
    rows, keys = config.rows * shape.itemsize, config.keys * shape.itemsize
    scores = config.rows * config.keys
    weights, operands = scores * shape.itemsize, scores * shape.score_bytes
    # With tcgen05, a loaded tile that is read both ways round takes the memory of one more stage:
    # K in "rows", Q and DO in "keys". Weights then lie in tensor memory.
    turned = rows * both if kernel == "keys" else keys * shape.head_dim
    if capability not in _TENSOR_MEMORY:
        turned = 0
    resident, streamed = {
        "forward": (rows * shape.head_dim, keys * both + operands),
        "rows": (rows * both + max(weights, turned), keys * both + operands),
        "keys": (keys * both + max(2 * weights, turned), rows * both + operands),
        "five_matmul": (keys * both + weights, rows * both + operands),
        "one_tile": (
            rows * both + 4 * config.keys * shape.widest + 3 * weights,
            keys * both + operands,
        ),
        "tiles": (rows * both + keys * both + operands, 0),
        "weights": (rows * shape.value_dim + weights, keys * both),
    }[kernel]
    return resident + config.stages * streamed + _BARRIERS


_BARRIERS = 256  # bytes of barriers for asynchronous copies and products on sm_90 and sm_100


# (kernel, bytes per element, widest head dim up to): configurations, best first
_TABLE: tuple[tuple[str, int, int, tuple[Config, ...]], ...] = (
    ("forward", 2, 64, (Config(64, 64, 4, 3), Config(128, 64, 4, 3))),
    ("forward", 2, 128, (Config(128, 64, 4, 2), Config(128, 32, 4, 4))),
    ("forward", 2, 256, (Config(128, 32, 8, 3), Config(128, 64, 8, 2))),
    ("forward", 4, 64, (Config(128, 32, 4, 2), Config(64, 64, 4, 3))),
    ("forward", 4, 256, (Config(32, 32, 4, 2), Config(32, 64, 4, 2))),
    ("rows", 2, 64, (Config(128, 64, 8, 3), Config(64, 64, 4, 3))),
    ("rows", 2, 128, (Config(128, 64, 8, 3), Config(64, 64, 4, 2))),
    ("rows", 2, 256, (Config(64, 32, 4, 3), Config(64, 64, 4, 2))),
    ("rows", 4, 64, (Config(64, 64, 4, 2), Config(64, 32, 4, 2))),
    ("rows", 4, 256, (Config(32, 64, 4, 2), Config(32, 32, 4, 2), Config(32, 32, 4, 1))),
    ("keys", 2, 64, (Config(32, 64, 4, 3), Config(64, 64, 4, 3), Config(32, 128, 8, 3))),
    ("keys", 2, 128, (Config(64, 128, 8, 3), Config(32, 64, 4, 3))),
    ("keys", 2, 256, (Config(64, 64, 8, 2), Config(32, 64, 8, 2))),
    ("keys", 4, 64, (Config(32, 64, 4, 2), Config(64, 32, 4, 2))),
    ("keys", 4, 256, (Config(64, 32, 4, 2), Config(32, 32, 4, 2), Config(32, 32, 4, 1))),
    ("five_matmul", 2, 128, (Config(64, 128, 8, 3), Config(32, 128, 8, 4))),
    ("one_tile", 2, 64, (Config(128, 64, 4, 2), Config(128, 32, 4, 3))),
    ("one_tile", 2, 128, (Config(64, 64, 4, 2), Config(64, 32, 4, 3))),
    ("tiles", 2, 128, (Config(64, 64, 4, 3), Config(64, 128, 8, 2))),
    ("tiles", 2, 256, (Config(64, 64, 8, 1), Config(32, 32, 4, 1))),
    ("tiles", 4, 256, (Config(32, 32, 4, 1), Config(64, 64, 8, 1), Config(16, 16, 4, 1))),
    # The best of docs/lab/2026-11-29-wide-training.md. Triton 3.6 issues loads at the end of a
    # step, so that with two stages the next step would wait for them.
    ("weights", 2, 192, (Config(128, 64, 8, 3), Config(128, 32, 8, 3))),
    ("weights", 2, 256, (Config(128, 32, 8, 3), Config(128, 64, 8, 2))),
    ("weights", 4, 256, (Config(32, 32, 4, 1), Config(16, 16, 4, 1))),
)
# Such rows for special inner loops. The first row counts whose words are all in `Shape.loop`. With
# few steps latency is not hidden. So more warps, stages or CTAs at a time are worth more loads.
# Configurations are timed in short runs at the full clock. That favours these rows too much if a
# loop is long and power is the limit.
_BY_LOOP: tuple[tuple[str, int, int, str, tuple[Config, ...]], ...] = (
    # Places and elements of tables take registers. (Compiled for sm_90, not timed.)
    ("forward", 2, 128, "table", (Config(128, 64, 8, 2), Config(64, 64, 4, 2))),
    ("keys", 2, 128, "table", (Config(64, 64, 8, 2), Config(32, 64, 4, 3))),
    ("forward", 2, 128, "skips short", (Config(64, 32, 4, 3), Config(128, 32, 8, 4))),
    ("forward", 2, 128, "short jagged",
     (Config(128, 32, 8, 4), Config(128, 32, 4, 4), Config(128, 64, 4, 2))),
    ("forward", 2, 128, "short", (Config(128, 64, 4, 2), Config(128, 32, 8, 4))),
    # Few rows on an H100: docs/lab/2026-11-25-serving.md
    ("forward", 2, 128, "few", (Config(32, 128, 4, 2),)),
    ("forward", 2, 128, "split", (Config(128, 64, 8, 3),)),
    # With shares dQ is fp32, and wider tiles spill.
    ("one_tile", 2, 64, "split", (Config(128, 32, 4, 3),)),
    ("one_tile", 2, 128, "split", (Config(64, 32, 4, 3),)),
    ("forward", 2, 128, "skips",
     (Config(128, 64, 4, 2), Config(128, 32, 8, 4), Config(64, 32, 4, 3))),
    ("forward", 2, 128, "tile jagged", (Config(128, 32, 4, 4), Config(128, 64, 4, 2))),
    ("rows", 2, 64, "skips", (Config(128, 64, 8, 3), Config(64, 64, 4, 3))),
    ("rows", 2, 128, "skips", (Config(64, 64, 4, 2), Config(128, 64, 8, 3))),
    ("keys", 2, 64, "skips", (Config(32, 64, 4, 3), Config(64, 64, 4, 3), Config(32, 128, 8, 3))),
    ("keys", 2, 128, "skips",
     (Config(64, 64, 4, 2), Config(64, 128, 8, 3), Config(32, 64, 4, 3))),
)  # fmt: skip
SHORT = 512  # keys
# Where the tensor core reads all operands from registers, the same tiles need more warps or fewer
# rows.
_FROM_REGISTERS: tuple[tuple[str, int, int, tuple[Config, ...]], ...] = (
    ("forward", 2, 64, (Config(64, 64, 4, 3), Config(128, 64, 8, 3))),
    ("forward", 2, 128, (Config(128, 64, 8, 2), Config(64, 64, 4, 2))),
    ("rows", 2, 128, (Config(64, 64, 4, 2), Config(64, 32, 4, 2))),
    ("keys", 2, 128, (Config(32, 64, 4, 2), Config(64, 64, 8, 2))),
    ("tiles", 2, 128, (Config(64, 64, 8, 1), Config(32, 64, 4, 1))),
)
# If none of these fits (GPUs with 99 KiB of shared memory), the first of these that fits.
_SMALLER = (Config(64, 64, 4, 2), Config(64, 32, 4, 2), Config(32, 32, 4, 2), Config(16, 16, 4, 1))


# Compute capabilities of GPUs whose tensor core reads operands from shared memory (wgmma, tcgen05).
# Consumer Blackwell, sm_120 and sm_121, has neither instruction.
_FROM_MEMORY = range(90, 120)
_TENSOR_MEMORY = range(100, 120)  # those with tcgen05
MEASURED_ON = 90  # compute capability
LIGHT = 2  # bytes of aux operands for each score, up to which the first configuration is settled
SMALL = 1 << 32  # FLOP of a product, some 15 µs of an H200


def settled(kernel: str, shape: Shape, operations: int, capability: int) -> bool:
    """Whether to take the first configuration without a benchmark, which takes seconds.

    operations: The FLOP of one product of all queries and keys.
    """
    # It is taken if it was measured, or if the kernel is so fast that the choice does not matter.
    # With an fp32 bias for each score the first was three times slower than the best, in a forward.
    measured = kernel != "tiles" or (shape.itemsize == 2 and shape.widest <= 128)
    measured &= shape.score_bytes <= LIGHT
    return (measured and capability == MEASURED_ON) or operations < SMALL


def _searched(itemsize: int) -> Iterator[Config]:
    """The list for max-autotune."""
    # Wide tiles of fp32 in full precision take minutes to compile.
    lengths = (32, 64, 128) if itemsize == 2 else (32, 64)
    for rows, keys, stages in itertools.product(lengths, lengths, (2, 3)):
        for warps in (4, 8):
            if warps == 4 or rows * keys >= 64 * 64:
                yield Config(rows, keys, warps, stages)


def configs(
    kernel: str, shape: Shape, shared: int, thorough: bool, capability: int = 90
) -> list[Config]:
    """The configurations to try, the best known first.

    shared: The bytes of shared memory that a CTA may have. capability: Such as 80 or 100.
    """
    special = tuple((*row[:3], row[4]) for row in _BY_LOOP if shape.loop.issuperset(row[3].split()))
    table = (*(special if capability in _FROM_MEMORY else _FROM_REGISTERS), *_TABLE)
    known = next(
        row
        for name, size, dim, row in table
        if (name, size) == (kernel, shape.itemsize) and shape.widest <= dim
    )
    tried = [*known, *(_searched(shape.itemsize) if thorough else ())]

    def enough(config: Config) -> Config:
        return replace(config, rows=max(config.rows, shape.rows))

    def fitting(config: Config) -> Iterator[Config]:
        """With as many stages as fit, if any do."""
        config = enough(config)
        for stages in range(config.stages, 0, -1):
            less = replace(config, stages=stages)
            if shared_memory(kernel, less, shape, capability) <= shared:
                yield less
                return

    fits = [less for config in tried for less in fitting(config)]
    return (
        list(dict.fromkeys(fits))
        or [*(less for c in _SMALLER for less in fitting(c)), enough(_SMALLER[-1])][:1]
    )
