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
        found = ring("K", self.stages, self.tiles)
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
            for _ in range(2 * steps):
                yield from (Wait("-K"), Load(2 * COLS * self.dim, "K", 1 / self.row_tiles))

    def products(self, t: int, tiles: int, steps: int) -> Iterator[Operation]:
        flops = 2 * ROWS * COLS * self.dim
        keys, queries = 2 * COLS * self.dim, 2 * ROWS * self.dim
        score = Multiply(flops, keys + queries, parts=self.dim // 16)
        total = Multiply(flops, keys, held=True, parts=COLS // 16)
        turn, passes = f"turn{t}", Signal(f"turn{(t + 1) % self.tiles}")
        issue, activate, convert = (Run(*self.counts[x]) for x in ("issue", "activate", "convert"))
        for _ in range(tiles):
            yield from (Wait(f"Q{t}"), Wait("K"), Wait(turn), issue, score, passes, Done())
            yield from (Signal("-K"), activate, convert)
            for _ in range(steps - 1):
                # K of the next block comes after V of this one.
                yield from (Wait("K"), Wait("K"), Wait(turn), issue, score, total, passes, Done(1))
                yield from (Signal("-K"), activate, Done(), Signal("-K"), convert)
            yield from (Wait("K"), total, Done(), Signal("-K"), Signal(f"-Q{t}"))
            moved = 2 * ROWS * self.dim
            yield from (Stored(), Run(self.dim, shared=moved), Store(moved))


@dataclass(frozen=True)
class Backward:
    """dim: the head dim, padded, of keys and of values; rows: of a query tile."""

    dim: int
    rows: int
    counts: dict[str, Counts]  # `code.hopper_backward`
    key_tiles: int = 8  # that meet the same queries

    def barriers(self) -> dict[str, Barrier]:
        found = ring("Q", 2, 2) | ring("O", 2, 2) | ring("KV", 1, 2) | ring("S", 2, 2, 2)
        found |= {"both": Barrier(2)}
        for t in range(2):
            found |= ring(f"dQ{t}", 1) | {f"turn{t}": Barrier(1, 1 if t == 0 else 0)}
        return found

    def roles(self, tiles: int, steps: int) -> dict[str, Iterator[Operation]]:
        roles = {f"products{t}": self.products(t, tiles, steps) for t in range(2)}
        roles |= {f"sums{t}": self.sums(t, tiles, steps) for t in range(2)}
        return roles | {"loads": self.loads(tiles, steps)}

    def loads(self, tiles: int, steps: int) -> Iterator[Operation]:
        streamed, fresh = 2 * self.rows * self.dim, 1 / self.key_tiles
        for _ in range(tiles):
            yield from (Wait("-KV"), Load(2 * 2 * COLS * self.dim, "KV", 1.0))
            for _ in range(steps):
                yield from (Wait("-Q"), Load(streamed, "Q", fresh))
                yield from (Wait("-O"), Load(streamed, "O", fresh))

    def sums(self, t: int, tiles: int, steps: int) -> Iterator[Operation]:
        """Adds what warpgroup t hands over."""
        for _ in range(tiles * steps):
            yield from (Wait(f"dQ{t}"), Run(30), Store(4 * ROWS * self.rows, 0.0), Stored())
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
        third = Counts(*(x / 3 for x in self.counts["rest"]))
        hand = (Wait(f"-dQ{t}"), Run(*third, shared=4 * ROWS * rows), Signal(f"dQ{t}"))
        for _ in range(tiles):
            yield from (Wait("KV"), Wait("Q"), score, Done())
            for i in range(steps):
                last = i == steps - 1
                yield from (Wait("O"), score, weigh, Wait(turn), after, total, Done(1), chain)
                yield from (Wait("-S"), Run(*third, shared=2 * ROWS * rows), total)
                yield from (Signal("S"), Done(1), Signal("-O"))
                if i:
                    yield from (Wait("S"), Run(*third), part)
                if not last:
                    yield from (Wait("Q"), score)
                yield from (passes, Done(0 if last else 1), Signal("-Q"))
                if i:
                    yield from (Signal("-S"), *hand, Done())
                else:
                    yield Done()
            yield from (Wait("S"), part, Done(), Signal("-KV"))
            store = Store(own)
            yield from (Run(dim, shared=own), store, Stored(), Run(dim, shared=own), store)
            yield from (*hand, Stored(), Signal("-S"))
