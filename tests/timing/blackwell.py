"""Schedules of kernels for Blackwell: ours, and forwards of the same kind with a softmax.

Ours are gdpa_inductor/kernels/cute/sm100. `Forward` with `softmax` is FlashAttention-4's, by
flash_attn/cute/flash_fwd_sm100.py: a warpgroup more corrects the sums, and stores them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from .code import Counts
from .engine import (
    Barrier,
    Commit,
    Load,
    Multiply,
    Operation,
    Run,
    Signal,
    Sleep,
    Store,
    Stored,
    Wait,
    ring,
)

ROWS = COLS = 128
SPLIT = (3, 4)  # parts of P after which products may begin
PANEL = 64  # channels of a part of K


@dataclass(frozen=True)
class Forward:
    """Two query tiles of 128 rows, all keys in blocks of 128.

    early: V is free after its products, and not only after the scores that follow.
    pair: two CTAs multiply together, so each reads half of the keys from its shared memory.
    start: clocks until a CTA that is no longer persistent has replaced the one before.
    """

    dim: int
    counts: dict[str, Counts]  # `code.blackwell_forward`
    stages: int  # of K and V
    outputs: int = 1  # buffers of sums
    softmax: bool = False
    early: bool = False
    pair: bool = False
    row_tiles: int = 8  # tiles that read the same keys
    start: float = 0.0
    queries: int = 2  # buffers of a query tile
    query_tiles: ClassVar[int] = 2

    def barriers(self) -> dict[str, Barrier]:
        found = ring("K", self.stages)
        for t in range(2):
            if t < self.query_tiles:
                found |= ring(f"Q{t}", self.queries) | ring(f"O{t}", self.outputs)
            arrivals = 2 if self.softmax else 1
            found |= {f"S{t}": Barrier(), f"P{t}0": Barrier(arrivals), f"P{t}1": Barrier()}
            found |= {f"max{t}": Barrier()}
        return found

    def roles(self, tiles: int, steps: int) -> dict[str, Iterator[Operation]]:
        roles = {f"activation{t}": self.activation(t, tiles, steps) for t in range(2)}
        roles |= {"products": self.products(tiles, steps), "loads": self.loads(tiles, steps)}
        return roles | {"epilogue": self.epilogue(tiles, steps)}

    def loads(self, tiles: int, steps: int) -> Iterator[Operation]:
        keys = 2 * COLS * self.dim / (2 if self.pair else 1)
        for _ in range(tiles):
            for t in range(2):
                yield from (Wait(f"-Q{t}"), Load(2 * ROWS * self.dim, f"Q{t}", 1.0))
            for _ in range(2 * steps):
                yield from (Wait("-K"), Load(keys, "K", 1 / self.row_tiles))

    def products(self, tiles: int, steps: int) -> Iterator[Operation]:
        flops, half = 2 * ROWS * COLS * self.dim, 2 if self.pair else 1
        queries, keys = 2 * ROWS * self.dim, 2 * COLS * self.dim / half
        score = Multiply(flops, queries + keys, parts=self.dim // 16)
        shares = (SPLIT[0] / 4, 1 - SPLIT[0] / 4)
        sums = [Multiply(flops * x, keys * x, parts=round(8 * x), into="O") for x in shares]
        for number in range(tiles * steps + 1):
            block = number % steps
            if number:
                yield Wait("K")  # V of the block before
            for t in range(2):
                if number:
                    if (number - 1) % steps == 0:
                        yield Wait(f"-O{t}")
                    yield from (Wait(f"P{t}0"), sums[0], Wait(f"P{t}1"), sums[1])
                    if block == 0:
                        yield Commit(f"O{t}")
                    if t and self.early:
                        yield Commit("-K")
                if number < tiles * steps:
                    if t == 0:
                        yield Wait("K")
                    if block == 0:
                        yield Wait(f"Q{t}")
                    yield from (score, Commit(f"S{t}"))
            if number and not self.early:
                yield Commit("-K")
            if number < tiles * steps:
                yield Commit("-K")
                if block == steps - 1:
                    yield from (Commit("-Q0"), Commit("-Q1"))

    def activation(self, t: int, tiles: int, steps: int) -> Iterator[Operation]:
        part = 4 * ROWS * COLS / 4
        runs = [Run(*x, tmem=1.5 * part) for x in self.counts.values()]
        first, apart = (0, 1) if self.query_tiles == 2 else (t, 2)  # one tile: in turn
        for _ in range(first, tiles * steps, apart):
            yield from (Wait(f"S{t}"), Sleep(0), runs[0])
            if self.softmax:
                yield Signal(f"max{t}")
            for i in (1, 2, 3):
                if i == SPLIT[0]:
                    yield Signal(f"P{t}0")
                yield runs[i]
            yield from (Signal(f"P{t}1"), *runs[4:])

    def epilogue(self, tiles: int, steps: int) -> Iterator[Operation]:
        size = ROWS * self.dim
        read = Run(2 * self.dim, tmem=4 * size, shared=2 * size, alu=self.dim)
        for _ in range(tiles):
            if self.softmax:
                for _ in range(steps):
                    for t in range(2):
                        yield from (Wait(f"max{t}"), Run(12), Signal(f"P{t}0"))
            for t in range(self.query_tiles):
                yield from (Wait(f"O{t}"), read, Signal(f"-O{t}"), Store(2 * size))
            yield Sleep(self.start)


@dataclass(frozen=True)
class WideForward(Forward):
    """One query tile. K and V come in parts, and key blocks have the buffers of scores in turn."""

    query_tiles: ClassVar[int] = 1

    def loads(self, tiles: int, steps: int) -> Iterator[Operation]:
        fresh = 1 / self.row_tiles
        for _ in range(tiles):
            yield from (Wait("-Q0"), Load(2 * ROWS * self.dim, "Q0", 1.0))
            for block in range(steps + 1):
                for _ in range(self.dim // PANEL if block < steps else 0):
                    yield from (Wait("-K"), Load(2 * COLS * PANEL, "K", fresh))
                for _ in range(4 if block else 0):
                    yield from (Wait("-K"), Load(2 * COLS / 4 * self.dim, "K", fresh))

    def products(self, tiles: int, steps: int) -> Iterator[Operation]:
        score = Multiply(2 * ROWS * COLS * PANEL, 2 * (ROWS + COLS) * PANEL, parts=4)
        total = Multiply(2 * ROWS * COLS / 4 * self.dim, 2 * COLS / 4 * self.dim, parts=2)
        for tile in range(tiles):
            for block in range(steps + 1):
                t = (tile * steps + block) % 2
                if block == 0:
                    yield Wait("Q0")
                for part in range(self.dim // PANEL if block < steps else 0):
                    yield from (Wait("K"), replace(score, joined=part > 0), Commit("-K"))
                if block < steps:
                    yield Commit(f"S{t}")
                if block == steps - 1:
                    yield Commit("-Q0")
                if block == 1:
                    yield Wait("-O0")
                for part in range(4 if block else 0):
                    if part in (0, SPLIT[0]):
                        yield Wait(f"P{1 - t}{part // SPLIT[0]}")
                    yield from (Wait("K"), replace(total, joined=part > 0), Commit("-K"))
            yield Commit("O0")


@dataclass(frozen=True)
class Backward:
    """One side of our backward. The keys side sums dK and dV, the rows side dQ."""

    dim: int
    keys: bool
    counts: dict[str, Counts]  # `code.blackwell_backward`
    key_tiles: int = 8  # that meet the same streamed tiles

    @property
    def buffers(self) -> int:
        """Of scores in tensor memory."""
        return min(2, (512 - self.dim * (2 if self.keys else 1)) // COLS - 1)

    def barriers(self) -> dict[str, Barrier]:
        tile = 2 * ROWS * self.dim
        stages = min(3, (225 * 1024 - 3 * tile) // (2 * tile))
        found = ring("A", stages + 1) | ring("B", stages)
        found |= {"ownA": Barrier(), "ownB": Barrier(), "-own": Barrier(1, 1)}
        found |= {"S": Barrier(), "dP": Barrier(), "dS": Barrier(2), "sums": Barrier()}
        return found | {"P0": Barrier(2), "P1": Barrier(2)}

    def roles(self, tiles: int, steps: int) -> dict[str, Iterator[Operation]]:
        roles = {f"activation{t}": self.activation(tiles, steps) for t in range(2)}
        return roles | {"products": self.products(tiles, steps), "loads": self.loads(tiles, steps)}

    def loads(self, tiles: int, steps: int) -> Iterator[Operation]:
        size, fresh = 2 * ROWS * self.dim, 1 / self.key_tiles
        for _ in range(tiles):
            yield Wait("-own")
            for i in range(steps):
                for own, name in (("ownA", "A"), ("ownB", "B")):
                    if i == 0:
                        yield Load(size, own, 1.0)
                    yield from (Wait(f"-{name}"), Load(size, name, fresh))

    def products(self, tiles: int, steps: int) -> Iterator[Operation]:
        flops, size = 2 * ROWS * COLS * self.dim, 2 * ROWS * self.dim
        score = Multiply(flops, 2 * size, parts=self.dim // 16)
        total = Multiply(flops, size)
        part = Multiply(flops / 2, size / 2, parts=4, into="B")
        for _ in range(tiles):
            yield Wait("ownA")
            for i in range(steps + 1):
                scores = (Wait("A"), score, Commit("S")) if i < steps else ()
                weights = (Wait("P0"), part, Wait("P1"), part, Commit("-B")) if i else ()
                if not self.keys:
                    weights = ()
                yield from (*scores, *weights) if self.buffers > 1 else (*weights, *scores)
                if i:
                    yield from (Wait("dS"), total, Commit("-A"))
                if i == 0:
                    yield Wait("ownB")
                if i < steps:
                    yield from (Wait("B"), score, Commit("dP"))
                    if not self.keys:
                        yield Commit("-B")
                if i == steps - 1:
                    yield Commit("-own")
            yield Commit("sums")

    def activation(self, tiles: int, steps: int) -> Iterator[Operation]:
        size = 4 * ROWS * COLS / 2  # of scores of a warpgroup
        first, second, chain = self.counts["weigh0"], self.counts["weigh1"], self.counts["chain"]
        sums = (2 if self.keys else 1) * ROWS * self.dim / 2
        for _ in range(tiles):
            for _ in range(steps):
                yield from (Wait("S"), Run(*first, tmem=1.25 * size))
                if self.keys:
                    yield Signal("P0")
                yield Run(*second, tmem=0.25 * size)
                if self.keys:
                    yield Signal("P1")
                yield from (Wait("dP"), Run(*chain, tmem=1.5 * size), Signal("dS"))
            yield from (Wait("sums"), Run(sums / 64, tmem=4 * sums, alu=sums / 64))
            yield Store(2 * sums)


@dataclass(frozen=True)
class PairBackward:
    """Our backward by a pair of CTAs that own 256 keys: one of the two, as both do the same."""

    dim: int
    counts: dict[str, Counts]  # `code.blackwell_backward`
    key_tiles: int = 4  # that meet the same streamed tiles

    def barriers(self) -> dict[str, Barrier]:
        names = ("A", "B", "C", "D", "own", "ownD", "dQ", "copies")
        found = {key: barrier for name in names for key, barrier in ring(name, 1).items()}
        found |= {"ownB": Barrier(), "S": Barrier(), "dP": Barrier(), "dS": Barrier(2)}
        return found | {"P0": Barrier(2), "P1": Barrier(2), "sums": Barrier()}

    def roles(self, tiles: int, steps: int) -> dict[str, Iterator[Operation]]:
        roles = {f"activation{t}": self.activation(tiles, steps) for t in range(2)}
        roles |= {"products": self.products(tiles, steps), "loads": self.loads(tiles, steps)}
        return roles | {"copies": self.copies(tiles * steps), "adds": self.adds(tiles * steps)}

    def loads(self, tiles: int, steps: int) -> Iterator[Operation]:
        size, fresh = 2 * ROWS * self.dim, 1 / self.key_tiles
        for _ in range(tiles):
            yield Wait("-own")
            for i in range(steps):
                for own, name in (("own", "A"), ("ownB", "B"), ("ownD", "C"), ("", "D")):
                    if i == 0 and own:
                        if own == "ownD":
                            yield Wait("-ownD")
                        yield Load(size, own, 1.0)
                    yield from (Wait(f"-{name}"), Load(size / 2, name, fresh))

    def products(self, tiles: int, steps: int) -> Iterator[Operation]:
        flops, size = 2 * ROWS * COLS * self.dim, 2 * ROWS * self.dim
        score = Multiply(flops, 1.5 * size, parts=self.dim // 16)
        total, query = Multiply(flops, size / 2), Multiply(flops, size + 2 * ROWS * COLS, parts=16)
        part = Multiply(flops / 2, size / 4, parts=4, into="B")
        for _ in range(tiles):
            yield Wait("own")
            for i in range(steps + 1):
                if i:
                    yield from (Wait("P0"), Wait("C"), part, Wait("P1"), part, Commit("-C"))
                if i < steps:
                    yield from (Wait("A"), score, Commit("S"), Commit("-A"))
                if i == 1:
                    yield Wait("ownD")
                if i:
                    yield from (Wait("dS"), query, Commit("dQ"))
                    if i == steps:
                        yield Commit("-ownD")
                    yield from (Wait("D"), total, Commit("-D"))
                if i == 0:
                    yield Wait("ownB")
                if i < steps:
                    yield from (Wait("B"), Wait("-dQ"), score, Commit("dP"), Commit("-B"))
                if i == steps - 1:
                    yield Commit("-own")
            yield Commit("sums")

    def activation(self, tiles: int, steps: int) -> Iterator[Operation]:
        # dS is written once, half of it to the other CTA.
        written = 2 * ROWS * COLS / 2
        size = 4 * ROWS * COLS / 2
        first, second, chain = self.counts["weigh0"], self.counts["weigh1"], self.counts["chain"]
        sums = 2 * ROWS * self.dim / 2
        for _ in range(tiles):
            for _ in range(steps):
                yield from (Wait("S"), Run(*first, tmem=1.25 * size), Signal("P0"))
                yield from (Run(*second, tmem=0.25 * size), Signal("P1"), Wait("dP"))
                yield from (Run(*chain, tmem=1.5 * size, shared=written), Signal("dS"))
            yield from (Wait("sums"), Run(sums / 64, tmem=4 * sums, alu=sums / 64))
            yield Store(2 * sums)

    def copies(self, steps: int) -> Iterator[Operation]:
        """dQ of half of the rows, from tensor memory to shared memory."""
        size = 4 * ROWS / 2 * self.dim
        for _ in range(steps):
            yield from (Wait("dQ"), Wait("-copies"), Run(self.dim / 2, tmem=size, shared=size))
            yield from (Signal("-dQ"), Signal("copies"))

    def adds(self, steps: int) -> Iterator[Operation]:
        for _ in range(steps):
            yield from (Wait("copies"), Store(4 * ROWS / 2 * self.dim, True), Stored())
            yield from (Signal("-copies"), Stored(complete=True))


@dataclass(frozen=True)
class FiveProducts:
    """A backward of FlashAttention-4's kind, one CTA: flash_bwd_sm100.py of it and of Meta's GDPA.

    A CTA owns 128 keys. dQ has the room of dP in tensor memory, and a warpgroup adds it to sums in
    memory, so many bytes a number.
    """

    dim: int
    counts: dict[str, Counts]  # `code.blackwell_backward`
    sums: int = 4
    key_tiles: int = 8
    start: float = 0.0

    def barriers(self) -> dict[str, Barrier]:
        found = ring("Q", 2) | ring("O", 1) | ring("dQ", 1) | ring("own", 1)
        return found | {x: Barrier(2) for x in ("P", "dS")} | {x: Barrier() for x in ("S", "dP")}

    def roles(self, tiles: int, steps: int) -> dict[str, Iterator[Operation]]:
        roles = {f"activation{t}": self.activation(tiles, steps) for t in range(2)}
        roles |= {"products": self.products(tiles, steps), "loads": self.loads(tiles, steps)}
        return roles | {"sums": self.reduction(tiles, steps)}

    def loads(self, tiles: int, steps: int) -> Iterator[Operation]:
        size, fresh = 2 * ROWS * self.dim, 1 / self.key_tiles
        for _ in range(tiles):
            yield from (Wait("-own"), Load(2 * size, "own", 1.0))
            for _ in range(steps):
                yield from (Wait("-Q"), Load(size, "Q", fresh), Wait("-O"), Load(size, "O", fresh))

    def products(self, tiles: int, steps: int) -> Iterator[Operation]:
        flops, size = 2 * ROWS * COLS * self.dim, 2 * ROWS * self.dim
        score = Multiply(flops, 2 * size, parts=self.dim // 16)
        total, part = Multiply(flops, size), Multiply(flops, size + 2 * ROWS * COLS)
        for _ in range(tiles):
            yield Wait("own")
            for i in range(steps + 1):
                if i < steps:
                    yield from (Wait("Q"), score, Commit("S"))
                if i:
                    yield from (Wait("dS"), part, Commit("dQ"), total, Commit("-Q"))
                if i < steps:
                    yield from (Wait("O"), Wait("-dQ"), score, Commit("dP"))
                    yield from (Wait("P"), total, Commit("-O"))
            yield Commit("-own")

    def activation(self, tiles: int, steps: int) -> Iterator[Operation]:
        size = 4 * ROWS * COLS / 2
        weigh = [Run(*self.counts["weigh0"], tmem=1.25 * size), Run(*self.counts["weigh1"])]
        chain = Run(*self.counts["chain"], tmem=1.25 * size, shared=size / 2)
        store = Run(self.dim, tmem=4 * ROWS * self.dim, shared=2 * ROWS * self.dim)
        for _ in range(tiles):
            for _ in range(steps):
                yield from (Wait("S"), *weigh, Signal("P"), Wait("dP"), chain, Signal("dS"))
            yield from (store, Store(2 * ROWS * self.dim), Sleep(self.start))

    def reduction(self, tiles: int, steps: int) -> Iterator[Operation]:
        size = ROWS * self.dim
        for _ in range(tiles * steps):
            yield from (Wait("dQ"), Run(self.dim, tmem=4 * size), Signal("-dQ"), Stored())
            yield from (Run(self.dim / 4, shared=self.sums * size), Store(self.sums * size, True))
