"""The random bits of a score: Philox by its published numbers, rates and independence by counts."""

import math

import pytest
import torch

from gdpa_inductor.program.expr import INDEX, aux, call, const
from gdpa_inductor.program.ops import random
from gdpa_inductor.program.ops.random import is_rate, random16, threshold
from gdpa_inductor.program.score_mod import ScoreMod, ScoreModError

SEED = torch.tensor(-3141592653589793238)


def bits(*sizes: int, seed: torch.Tensor = SEED) -> torch.Tensor:
    """Of all scores [B, H, M, N]."""
    places = [
        torch.arange(n).view([-1 if d == axis else 1 for d in range(4)])
        for axis, n in enumerate(sizes)
    ]
    return random16(seed, *places)


# The known answers of Random123 for philox4x32_10: (counter, key, words).
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_is_that_of_random123(counter, key, words, monkeypatch):
    monkeypatch.setattr(random, "ROUNDS", 10)
    seed = torch.tensor([key[0], key[1]], dtype=torch.int64)
    seed = seed[0] | seed[1] << 32
    assert [int(x) for x in random._philox(seed, *map(torch.tensor, counter))] == words


def by_hand(seed: int, b: int, h: int, q: int, kv: int) -> int:
    """The same in Python's integers."""
    low = (1 << 32) - 1
    c, k = [q & ~8, kv & ~9, h, b], [seed & low, seed >> 32 & low]
    for _ in range(7):
        left, right = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [right >> 32 ^ c[1] ^ k[0], right & low, left >> 32 ^ c[3] ^ k[1], left & low]
        k = [k[0] + 0x9E3779B9 & low, k[1] + 0xBB67AE85 & low]
    return c[(q >> 3 & 1) + 2 * (kv >> 3 & 1)] >> 16 * (kv & 1) & 0xFFFF


def test_every_score_has_16_bits_of_its_own():
    got = bits(2, 3, 40, 50)
    wanted = [
        [
            [[by_hand(int(SEED), b, h, q, kv) for kv in range(50)] for q in range(40)]
            for h in range(3)
        ]
        for b in range(2)
    ]
    assert got.tolist() == wanted


def test_seeds_and_indices_all_count():
    one = bits(2, 2, 64, 64)
    for other in (SEED + 1, SEED + (1 << 32), SEED ^ (1 << 62)):
        assert (bits(2, 2, 64, 64, seed=other) == one).float().mean() < 1e-3
    for dim in range(4):
        left, right = one.narrow(dim, 0, 1), one.narrow(dim, 1, 1)
        assert (left == right).float().mean() < 0.01


def sigmas(count: float, draws: int, rate: float) -> float:
    return abs(count - draws * rate) / math.sqrt(draws * rate * (1 - rate))


@pytest.mark.parametrize("p", [0.001, 0.1, 1 / 3, 0.5, 0.9])
def test_rates(p: float):
    """Of 4 million here, of 100 million in the slow test."""
    assert is_rate(p)
    kept = int((bits(2, 2, 1024, 1024) >= threshold(p)).sum())
    assert sigmas(kept, 1 << 22, 1 - p) < 5


@pytest.mark.slow
@pytest.mark.parametrize("p", [0.001, 0.1, 1 / 3])
def test_rates_of_many(p: float):
    draws = sum(
        int((bits(1, 1, 10000, 10000 // 8, seed=SEED + part) >= threshold(p)).sum())
        for part in range(8)
    )
    assert sigmas(draws, 100_000_000, 1 - p) < 5


def test_rates_that_16_bits_do_not_hold():
    assert not any(map(is_rate, (1e-9, 1e-5, 1 - 1e-9)))
    assert all(is_rate(n / 1000) for n in range(1, 1000))


def chi_square(counts: torch.Tensor, expected: float) -> float:
    """How many standard deviations the statistic is from its mean."""
    freedom = counts.numel() - 1
    value = float(((counts.double() - expected) ** 2 / expected).sum())
    return abs(value - freedom) / math.sqrt(2 * freedom)


def test_values_are_spread_evenly():
    counts = torch.bincount(bits(2, 2, 1024, 1024).flatten(), minlength=1 << 16)
    assert chi_square(counts, (1 << 22) / (1 << 16)) < 5


STEPS = [(axis, step) for axis in range(2) for step in (1, 2, 4, 7, 8, 9, 15, 16, 17, 32, 64, 128)]


@pytest.mark.parametrize(("axis", "step"), STEPS)
def test_neighbours_are_independent(axis: int, step: int):
    """Pairs of scores at a distance along an axis, by the upper and by the lower half of a byte."""
    drawn = bits(1, 2, 1024, 1024)
    size = drawn.shape[2 + axis] - step
    left, right = drawn.narrow(2 + axis, 0, size), drawn.narrow(2 + axis, step, size)
    for shift in (0, 4, 12):
        pairs = (left >> shift & 15) * 16 + (right >> shift & 15)
        counts = torch.bincount(pairs.flatten(), minlength=256)
        assert chi_square(counts, pairs.numel() / 256) < 5


@pytest.mark.parametrize("dim", [0, 1])
def test_batches_and_heads_are_independent(dim: int):
    drawn = bits(*((2, 1) if dim == 0 else (1, 2)), 1024, 1024)
    left, right = drawn.select(dim, 0), drawn.select(dim, 1)
    counts = torch.bincount(((left >> 12) * 16 + (right >> 12)).flatten(), minlength=256)
    assert chi_square(counts, (1 << 20) / 256) < 5


def test_tiles_keep_alike():
    """How many scores are kept in each tile, row and column: binomial, and no more spread."""
    kept, rate = bits(1, 1, 2048, 2048) >= threshold(0.1), 1 - threshold(0.1) / (1 << 16)
    for size in ((16, 16), (64, 64), (1, 2048), (2048, 1), (8, 8), (2, 2)):
        tiles = kept.unflatten(3, (-1, size[1])).unflatten(2, (-1, size[0])).sum((3, 5)).double()
        draws = size[0] * size[1]
        variance = ((tiles - draws * rate) ** 2).mean() / (draws * rate * (1 - rate))
        # The spread of a variance: for few draws the fourth moment is that of the binomial.
        spread = math.sqrt((2 + (1 / (rate * (1 - rate)) - 6) / draws) / tiles.numel())
        assert abs(float(variance) - 1) < 5 * spread, size


def test_a_program_draws_for_its_own_score():
    seed = aux(0, "i")
    good = "a0:i[]; mul(s,float(ge(random16(a0,b,h,q_idx,kv_idx),6554)))"
    program = ScoreMod.parse(good)
    assert str(program) == good and program.seeds == {0}
    assert call("random16", seed, *INDEX.values()).kind == "i"
    for bad in (
        good.replace("b,h", "h,b"),
        good.replace("kv_idx", "q_idx"),
        good.replace("a0,b", "1,b"),
        good.replace("i[]", "i[b]"),
    ):
        with pytest.raises(ScoreModError, match=r"random16|is no operand"):
            ScoreMod.parse(bad)
    with pytest.raises(ValueError, match="random16 takes"):
        call("random16", const(1.0), *INDEX.values())


@pytest.mark.parametrize("heads", [1, 3])
def test_compiled_code_draws_the_same_bits(heads: int):
    """A product beyond 63 bits is undefined in C++: Inductor's of torch 2.13 had others then, of
    what depends on the head alone.
    """
    places = [torch.arange(n).view([-1 if d == axis else 1 for d in range(4)])
              for axis, n in enumerate((2, heads, 40, 50))]  # fmt: skip
    compiled = torch.compile(lambda *index: random16(*index))
    assert torch.equal(compiled(SEED, *places), bits(2, heads, 40, 50))
