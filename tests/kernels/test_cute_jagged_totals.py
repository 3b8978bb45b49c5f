"""Sums of the scores that are stored of jagged sequences, by the kernels, on the emulator."""

import functools

import pytest
import torch

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute.backward import jagged_totals
from gdpa_inductor.kernels.cute.backward.jagged_totals import StoredScores, add_rows, add_tiles
from gdpa_inductor.kernels.cute.operands import whole_vectors
from tests.emulator import recording, run

ARCH = "sm_100a"  # that of the emulator
TILE = (16, 24)  # queries and keys
SLOTS, COUNT, BATCH, HEADS, KEY_HEADS, ROWS, COLS = 3, 2, 5, 4, 2, 40, 70
ORDER = torch.tensor([3, 0])


def stored() -> StoredScores:
    """Integers, NaN wherever a kernel has not stored."""
    tiles = -(-COLS // TILE[1])
    scores = torch.full((SLOTS, HEADS, ROWS, whole_vectors(COLS)), float("nan")).bfloat16()
    hulls = torch.zeros(SLOTS, KEY_HEADS, tiles, 2, dtype=torch.int32)
    for slot in range(COUNT):
        for head in range(KEY_HEADS):
            for tile in range(tiles):
                first, end = sorted(torch.randint(0, -(-ROWS // TILE[0]) + 1, (2,)).tolist())
                hulls[slot, head, tile] = torch.tensor([first, end])
                group = HEADS // KEY_HEADS
                part = scores[slot, head * group : (head + 1) * group]
                part = part[:, first * TILE[0] : end * TILE[0], tile * TILE[1] :][..., : TILE[1]]
                part.copy_(torch.randint(-4, 5, part.shape))
    return StoredScores(scores, hulls, ORDER, COUNT, TILE)


def exact(found: StoredScores) -> torch.Tensor:
    """[BATCH, H, M, N'], zeros where nothing is stored and for other sequences."""
    whole = torch.zeros(BATCH, *found.scores.shape[1:], dtype=torch.float64)
    whole[ORDER] = found.scores[:COUNT].double().nan_to_num()
    return whole


@pytest.fixture(autouse=True)
def recorded():
    """Kernels are compiled while they are recorded."""
    jagged_totals._launcher.cache_clear()
    with recording():
        yield
    jagged_totals._launcher.cache_clear()


def emulated(call, found: StoredScores, total: torch.Tensor) -> None:
    run(call, [found.scores, found.hulls, found.order, total], schedules=("random",))


@pytest.mark.parametrize("chunks", [ROWS, 3], ids=["rows", "chunks"])
@pytest.mark.parametrize("axes", ["", "b", "h", "bh"])
@pytest.mark.parametrize("target", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("factor", [1.0, -0.5])
def test_sums_over_sequences_and_heads(axes, target, factor, chunks):
    found = stored()
    shape = (BATCH if "b" in axes else 1, HEADS if "h" in axes else 1, chunks)
    total = torch.full((*shape, found.scores.shape[3]), 7.0, dtype=target)
    before = total.double()
    adds = target == torch.float32
    call = functools.partial(add_tiles, found, total, frozenset(axes), factor, adds, ARCH, 0)
    emulated(call, found, total)
    wanted = exact(found)
    wanted = torch.nn.functional.pad(wanted, (0, 0, 0, -ROWS % chunks))
    wanted = wanted.unflatten(2, (chunks, -1)).sum(3) * factor
    for d, axis in enumerate("bh"):
        wanted = wanted if axis in axes else wanted.sum(d, keepdim=True)
    wanted = wanted + before if adds else wanted
    owned = ORDER if "b" in axes else slice(None)
    assert torch.equal(total[owned].double(), wanted[owned])
    others = torch.ones(len(total), dtype=torch.bool)
    others[owned] = False
    assert (total[others] == 7.0).all()


@pytest.mark.parametrize("factor", [1.0, -0.5])
def test_sums_of_rows(factor):
    found = stored()
    total = torch.full((BATCH, HEADS, ROWS), 7.0)
    emulated(functools.partial(add_rows, found, total, factor, ARCH, 0), found, total)
    assert torch.equal(total[ORDER].double(), exact(found)[ORDER].sum(3) * factor)
    assert (total[[1, 2, 4]] == 7.0).all()
