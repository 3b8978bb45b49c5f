"""Schedules of our kernels for Hopper: what each role of a CTA does, in the order of its source.

gdpa_inductor/kernels/cute/sm90: forward/products.py, backward/products.py, backward/sums.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from .code import Counts
from .engine import (
    Barrier,
    Done,
    Load,
    Multiply,
    Operation,
    Run,
    Signal,
    Store,
    Stored,
    Wait,
    ring,
)

ROWS, COLS = 64, 128


@dataclass(frozen=True)
class Forward:
    """dims: the head dim, padded; tiles: query tiles of a CTA, one for each warpgroup."""

    dim: int
    tiles: int
    stages: int
    counts: dict[str, Counts]  # `code.hopper_forward`
    row_tiles: int = 8  # tiles that read the same keys

    def barriers(self) -> dict[str, Barrier]:
        # K and V take turns in a ring with an even number of buffers.
        found = ring("K", self.stages // 2, self.tiles) | ring("V", self.stages // 2, self.tiles)
        for t in range(self.tiles):
            found |= ring(f"Q{t}", 2)
            found[f"turn{t}"] = Barrier(1, 1 if t == 0 else 0)
        return found

    def roles(self, tiles: int, steps: int) -> dict[str, Iterator[Operation]]:
        roles = {f"products{t}": self.products(t, tiles, steps) for t in range(self.tiles)}
        return roles | {"loads": self.loads(tiles, steps)}

    def loads(self, tiles: int, steps: int) -> Iterator[Operation]:
        for _ in range(tiles):
            for t in range(self.tiles):
                yield from (Wait(f"-Q{t}"), Load(2 * ROWS * self.dim, f"Q{t}", 1.0))
            for name in "KV" * steps:
                yield from (Wait(f"-{name}"), Load(2 * COLS * self.dim, name, 1 / self.row_tiles))

    def products(self, t: int, tiles: int, steps: int) -> Iterator[Operation]:
        flops = 2 * ROWS * COLS * self.dim
        keys, queries = 2 * COLS * self.dim, 2 * ROWS * self.dim
        score = Multiply(flops, keys + queries, parts=self.dim // 16)
        total = Multiply(flops, keys, held=True, parts=COLS // 16)
        turn, passes = f"turn{t}", Signal(f"turn{(t + 1) % self.tiles}")
        issue, activate, convert = (Run(*self.counts[x]) for x in ("turn", "activate", "convert"))
        half = Run(*(x / 2 for x in self.counts["tile"]))
        for _ in range(tiles):
            yield from (half, Wait(f"Q{t}"), Wait("K"), Wait(turn), issue, score, passes, Done())
            yield from (Signal("-K"), activate, convert)
            for _ in range(steps - 1):
                yield from (Wait("K"), Wait(turn), issue, score, Wait("V"), total, passes, Done(1))
                yield from (Signal("-K"), activate, Done(), Signal("-V"), convert)
            yield from (Wait("V"), total, Done(), Signal("-V"), Signal(f"-Q{t}"))
            moved = 2 * ROWS * self.dim
            yield from (half, Stored(), Run(shared=moved), Store(moved))


@dataclass(frozen=True)
class Backward:
    """dim: the head dim, padded, of keys and of values; rows: of a query tile."""

    dim: int
    rows: int
    counts: dict[str, Counts]  # `code.hopper_backward`
    key_tiles: int = 8  # that meet the same queries

    def barriers(self) -> dict[str, Barrier]:
        found = ring("Q", 2, 2) | ring("O", 2, 2) | ring("S", 2, 2, 2)
        found |= ring("K", 1, 2) | ring("V", 1, 2)
        found |= {"both": Barrier(2)}
        for t in range(2):
            found |= ring(f"dQ{t}", 1) | {f"turn{t}": Barrier(1, 1 if t == 0 else 0)}
        return found

    def roles(self, tiles: int, steps: int) -> dict[str, Iterator[Operation]]:
        roles = {f"products{t}": self.products(t, tiles, steps) for t in range(2)}
        roles |= {f"sums{t}": self.sums(t, tiles, steps) for t in range(2)}
        return roles | {"loads": self.loads(tiles, steps)}

    def loads(self, tiles: int, steps: int) -> Iterator[Operation]:
        streamed = 2 * self.rows * self.dim
        for _ in range(tiles):
            for i in range(steps):
                fresh = float(i % self.key_tiles == 0)  # another key tile has loaded the others
                for own, name in ("KQ", "VO"):
                    if i == 0:
                        yield from (Wait(f"-{own}"), Load(2 * COLS * self.dim, own, 1.0))
                    yield from (Wait(f"-{name}"), Load(streamed, name, fresh))

    def sums(self, t: int, tiles: int, steps: int) -> Iterator[Operation]:
        """Adds what warpgroup t hands over."""
        for _ in range(tiles * steps):
            yield from (Wait(f"dQ{t}"), Run(30), Store(4 * ROWS * self.rows, True), Stored())
            yield from (Signal(f"-dQ{t}"), Stored(complete=True))

    def products(self, t: int, tiles: int, steps: int) -> Iterator[Operation]:
        dim, rows = self.dim, self.rows
        flops, own, streamed = 2 * ROWS * rows * dim, 2 * ROWS * dim, 2 * rows * dim
        score = Multiply(flops, own + streamed, parts=dim // 16)
        total = Multiply(flops, streamed, held=True, parts=rows // 16)
        # dQ of 64 columns, over the keys of both warpgroups.
        part = Multiply(2 * ROWS * rows * COLS, 2 * COLS * (ROWS + rows), parts=COLS // 16)
        turn, passes = f"turn{t}", Signal(f"turn{1 - t}")
        weigh, after, chain = (Run(*self.counts[x]) for x in ("weigh", "after", "chain"))
        half = Run(*(x / 2 for x in self.counts["tile"]))
        third = Counts(*(x / 3 for x in self.counts["rest"]))
        hand = (Wait(f"-dQ{t}"), Run(*third, shared=4 * ROWS * rows), Signal(f"dQ{t}"))
        for _ in range(tiles):
            yield from (Wait("K"), Wait("Q"), score, Wait("V"), Done())
            for i in range(steps):
                last = i == steps - 1
                yield from (Wait("O"), score, weigh, Wait(turn), after, total, Done(1), chain)
                yield from (Wait("-S"), Run(*third, shared=2 * ROWS * rows), total)
                yield from (Signal("S"), Done(1), Signal("-O"))
                if i:
                    yield from (Wait("S"), Run(*third), part)
                if not last:
                    yield from (Wait("Q"), score)
                yield from (passes, Done(1 if i and not last else 0), Signal("-Q"))
                if i:
                    yield from (Signal("-S"), *hand, Done())
            yield from (Wait("S"), part, Done(), Signal("-K"), Signal("-V"))
            for _ in "VK":
                yield from (Stored(), Signal("both"), Wait("both"), half, Run(shared=own))
                yield Store(own)
            yield from (*hand, Stored(), Signal("-S"))
