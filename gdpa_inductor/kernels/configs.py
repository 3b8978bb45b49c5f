"""Which tile shapes are tried for which kernel: a small table, pruned by shared memory, never empty.

A row's first configuration is the best known; the others are benchmarked beside it. `SEARCH` is the wider list for
max-autotune. Measured with bf16 and D = 128 on an H200 (torch 2.11, Triton 3.6); other rows follow from the shared memory
that a tile takes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """rows × keys of the score tile, warps of the program, stages of the pipelined loop."""

    rows: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Shape:
    """What decides the cost of a tile. dims: head dims rounded up to powers of two; itemsize: bytes of an element."""

    head_dim: int
    value_dim: int
    itemsize: int

    @property
    def widest(self) -> int:
        return max(self.head_dim, self.value_dim)


def shared_memory(kernel: str, config: Config, shape: Shape) -> int:
    """Bytes of shared memory: resident tiles, and one copy per stage of what the loop loads."""
    both = shape.head_dim + shape.value_dim
    rows, keys = config.rows * shape.itemsize, config.keys * shape.itemsize
    weights = config.rows * config.keys * shape.itemsize
    resident, streamed = {
        "forward": (rows * shape.head_dim, keys * both),
        "rows": (rows * both + weights, keys * both),
        "keys": (keys * both + weights, rows * both),
        "tiles": (rows * both + keys * both, 0),
    }[kernel]
    return resident + config.stages * streamed


# (kernel, bytes per element, widest head dim up to): configurations, best first
_TABLE: tuple[tuple[str, int, int, tuple[Config, ...]], ...] = (
    ("forward", 2, 64, (Config(128, 64, 4, 3), Config(128, 128, 8, 3))),
    ("forward", 2, 128, (Config(128, 64, 4, 2), Config(128, 64, 4, 3), Config(128, 128, 8, 2))),
    ("forward", 2, 256, (Config(128, 64, 8, 2), Config(64, 64, 4, 2))),
    ("forward", 4, 64, (Config(64, 64, 4, 2), Config(128, 32, 4, 2))),
    ("forward", 4, 256, (Config(64, 32, 4, 2), Config(64, 64, 8, 2), Config(32, 32, 4, 1))),
    ("rows", 2, 64, (Config(128, 64, 8, 3), Config(64, 64, 4, 3))),
    ("rows", 2, 128, (Config(128, 64, 8, 3), Config(128, 64, 8, 4), Config(64, 64, 4, 3))),
    ("rows", 2, 256, (Config(64, 64, 8, 2), Config(64, 32, 4, 2))),
    ("rows", 4, 64, (Config(64, 32, 4, 2), Config(64, 64, 8, 2))),
    ("rows", 4, 256, (Config(32, 32, 4, 2), Config(32, 32, 4, 1), Config(16, 32, 4, 1))),
    ("keys", 2, 64, (Config(64, 128, 8, 3), Config(64, 64, 4, 3))),
    ("keys", 2, 128, (Config(64, 128, 8, 3), Config(64, 128, 8, 2), Config(64, 64, 4, 3))),
    ("keys", 2, 256, (Config(32, 64, 8, 2), Config(64, 64, 8, 2))),
    ("keys", 4, 64, (Config(32, 64, 4, 2), Config(64, 64, 8, 2))),
    ("keys", 4, 256, (Config(32, 32, 4, 2), Config(32, 32, 4, 1), Config(32, 16, 4, 1))),
    ("tiles", 2, 128, (Config(64, 128, 8, 2), Config(64, 64, 4, 3))),
    ("tiles", 2, 256, (Config(64, 64, 8, 1), Config(32, 32, 4, 1))),
    ("tiles", 4, 256, (Config(32, 32, 4, 1), Config(64, 64, 8, 1), Config(16, 16, 4, 1))),
)
_LAST_RESORT = Config(16, 16, 4, 1)


def _searched() -> Iterator[Config]:
    for rows, keys in itertools.product((32, 64, 128), (32, 64, 128)):
        for stages in (2, 3, 4):
            yield Config(rows, keys, 8 if rows * keys >= 8192 else 4, stages)
    yield from (Config(128, 64, 4, stages) for stages in (2, 3, 4))


def configs(kernel: str, shape: Shape, shared: int, thorough: bool) -> list[Config]:
    """What to try, best known first; `shared`: the device's shared memory per program in bytes."""
    known = next(
        row for name, size, dim, row in _TABLE if (name, size) == (kernel, shape.itemsize) and shape.widest <= dim
    )
    tried = dict.fromkeys([*known, *(_searched() if thorough else ())])
    fitting = [config for config in tried if shared_memory(kernel, config, shape) <= shared]
    return fitting or [_LAST_RESORT]
