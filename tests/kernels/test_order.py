"""The table of tiles of a jagged side: every work tile is listed once, and nothing else."""

import pytest
import torch

from gdpa_inductor.kernels.triton.device_tables import WORK_TILE, likely_offsets, tile_order


def entries(table: torch.Tensor) -> list[tuple[int, int]]:
    return [(int(e) >> 32, int(e) & 0xFFFFFFFF) for e in table if e >= 0]


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("longest", [1 << 20, 300, 1])
@pytest.mark.parametrize("before, after", [(0, 0), (7, 0), (0, 900)])
def test_every_work_tile_is_listed_once(before: int, after: int, longest: int, few: bool):
    torch.manual_seed(0)
    for _ in range(20):
        lengths = torch.randint(0, 700, (9,)) * (torch.rand(9) > 0.3)
        offsets = torch.cat([torch.tensor([before]), before + lengths.cumsum(0)]).int()
        total = int(offsets[-1]) + after
        table = tile_order(offsets, total, longest, few)
        assert len(table) == total // WORK_TILE + 9
        listed = entries(table)
        wanted = []
        for b, length in enumerate(lengths.tolist()):
            owned = length + (before + after if b == 8 else 0)
            result = -(-min(length, longest) // WORK_TILE)
            wanted += [(b, tile) for tile in range(max(result, int(owned > 0)))]
        if not few:  # what is left over begins behind all rows that take part
            assert len(listed) == len(set(listed)) == len(table) and set(listed) >= set(wanted)
            over = set(listed) - set(wanted)
            assert all(t * WORK_TILE >= min(lengths[b], longest) for b, t in over)
        else:
            assert sorted(listed) == wanted
            assert (table[len(listed) :] == -1).all()
            firsts = [b for b, tile in listed if tile == 0]
            counts = [sum(b == c for c, _ in listed) for b in firsts]
            assert counts == sorted(counts, reverse=True)


def test_the_tiles_of_a_sequence_are_neighbours():
    table = tile_order(torch.tensor([0, 300, 300, 1000]), 1000, 1000, few=True)
    assert entries(table) == [*((2, t) for t in range(6)), *((0, t) for t in range(3))]


@pytest.mark.parametrize(
    "batch, total, longest",
    [(1152, 1152 * 256, 512), (100, 100 * 90, 128), (7, 70, 1000), (3, 0, 5)],
)
def test_likely_lengths_lie_around_the_mean(batch: int, total: int, longest: int):
    offsets = likely_offsets(batch, total, longest, "cpu")
    lengths, mean = offsets.diff(), max(1, total // batch)
    assert len(lengths) == batch and int(offsets[0]) == 0 and int(offsets[-1]) <= total
    assert 0 <= int(lengths.min()) and int(lengths.max()) <= longest
    if batch > 50:
        spread = min(mean, longest - mean)
        assert abs(lengths.double().mean() - mean) < 0.02 * mean + 1
        assert int(lengths.max()) - int(lengths.min()) > 1.9 * spread


def test_full_sequences_are_alike():
    assert (likely_offsets(40, 40 * 256, 256, "cpu").diff() == 256).all()
