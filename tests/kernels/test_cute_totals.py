"""Sums of the stored gradients of scores, dense and jagged, by the kernels, on the emulator."""

import functools
import itertools
from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute.backward import biases, summation
from gdpa_inductor.kernels.cute.backward.jagged_biases import StoredScores, add_rows, add_tiles
from gdpa_inductor.kernels.cute.config import StoredTiling, whole_vectors
from gdpa_inductor.kernels.cute.launcher import WordLauncher, word_launcher
from gdpa_inductor.kernels.cute.runtime import Kernel, exported
from tests.emulator import recording, run

ARCH = "sm_100a"  # that of the emulator
WHOLE = (3, 2, 6, 16)


@pytest.fixture(scope="module", autouse=True)
def recorded() -> Iterator[None]:
    """Kernels are compiled while they are recorded, each once."""
    word_launcher.cache_clear()
    with recording():
        yield
    word_launcher.cache_clear()


@functools.cache
def launcher(*arguments) -> WordLauncher:
    return WordLauncher(Kernel(exported(summation.compiled(*arguments))), 9)


OWN = [(1, 2, 6, 16), (1, 1, 6, 16), WHOLE]


@pytest.mark.parametrize(
    ("own", "apart"), [((3, 1, 6, 16), False), *itertools.product(OWN, (False, True))]
)
@pytest.mark.parametrize("target", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("factor, adds", [(1.0, False), (-0.5, False), (-0.5, True)])
def test_sums_over_batches_and_heads(own, target, factor, adds, apart, monkeypatch):
    """apart: the rows are some of the columns of a wider gradient, which keeps the others."""
    scores = torch.randint(-8, 9, WHOLE).bfloat16()

    def memory(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        if apart:
            room = torch.full((*own[:3], 32), 7.0, dtype=dtype)
            return room, room[..., 8:24], room[..., :8], room[..., 24:]
        room = torch.full((torch.Size(own).numel() + 16,), 7.0, dtype=dtype)
        return room, room[8:-8].view(own), room[:8], room[-8:]

    (room, sums, *around), (first, before, *_) = memory(target), memory(torch.float32)
    before.copy_(torch.randint(-8, 9, own))
    kinds = (str(x.dtype).removeprefix("torch.") for x in (scores, sums))
    served = []
    kernel = launcher(*kinds, factor, ARCH, apart, adds)
    monkeypatch.setattr(biases, "word_launcher", lambda *_: kernel)
    more = {"before": before} if adds else {}
    run(
        lambda: served.append(biases.total(scores, sums, factor, ARCH, 0, **more)),
        [scores, room, first],
    )
    assert served and all(served)
    dims = [d for d in range(4) if own[d] != WHOLE[d]]
    exact = scores.double().sum(dims, keepdim=True) if dims else scores.double()
    assert torch.equal(sums.double(), exact * factor + adds * before)
    assert all((x == 7.0).all() for x in around)


LEFT = {  # the scores, and what their sums would be written to
    "another step from row to row than from head to head": (
        torch.ones(WHOLE), torch.empty(1, 2, 8, 16)[:, :, :6]
    ),
    "sums over rows": (torch.ones(WHOLE), torch.empty(3, 1, 1, 16)),
    "sums over columns": (torch.ones(WHOLE), torch.empty(1, 2, 6, 1)),
    "scores that lie apart": (torch.ones(3, 2, 6, 24)[..., :16], torch.empty(1, 2, 6, 16)),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_other_sums_are_left_to_torch(name):
    assert not biases.total(*LEFT[name], 1.0, ARCH, 0)


# Of jagged sequences.
SLOTS, COUNT, BATCH, HEADS, KEY_HEADS, ROWS, COLS = 3, 2, 5, 4, 2, 40, 70
ORDER, FACTOR = torch.tensor([3, 0]), -0.5


def stored(by_keys: bool) -> StoredScores:
    """Integers, NaN wherever a kernel has not stored. by_keys: each key tile has a hull."""
    tiling = StoredTiling(16, 24, by_keys)
    scores = torch.full((SLOTS, HEADS, ROWS, whole_vectors(COLS)), float("nan")).bfloat16()
    heads, tiles = tiling.units(KEY_HEADS, HEADS, ROWS, COLS)
    hulls = torch.zeros(SLOTS, heads, tiles, 2, dtype=torch.int32)
    group, most = HEADS // heads, 1 + (-(-ROWS // 16) if by_keys else -(-COLS // 24))
    for slot, head, tile in itertools.product(range(COUNT), range(heads), range(tiles)):
        first, end = sorted(torch.randint(0, most, (2,)).tolist())
        hulls[slot, head, tile] = torch.tensor([first, end])
        spans = {"own": (tile, tile + 1), "met": (first, end)}
        rows, cols = (spans[x] for x in (("met", "own") if by_keys else ("own", "met")))
        part = scores[slot, head * group : (head + 1) * group]
        part = part[:, rows[0] * 16 : rows[1] * 16, cols[0] * 24 : cols[1] * 24]
        part.copy_(torch.randint(-4, 5, part.shape))
    return StoredScores(scores, hulls, ORDER, COUNT, tiling)


def exact(source: StoredScores) -> torch.Tensor:
    """[BATCH, H, M, N'], zeros where nothing is stored and for other sequences."""
    whole = torch.zeros(BATCH, *source.scores.shape[1:], dtype=torch.float64)
    whole[ORDER] = source.scores[:COUNT].double().nan_to_num()
    return whole


def emulated(call, source: StoredScores, total: torch.Tensor) -> None:
    run(call, [source.scores, source.hulls, source.order, total], schedules=("random",))


by_tiles = pytest.mark.parametrize("by_keys", [True, False], ids=["by keys", "by queries"])


@by_tiles
@pytest.mark.parametrize("chunks", [ROWS, 3], ids=["rows", "chunks"])
@pytest.mark.parametrize("axes", ["", "b", "h", "bh"])
@pytest.mark.parametrize("target", [torch.bfloat16, torch.float32], ids=str)
def test_sums_over_sequences_and_heads(axes, target, chunks, by_keys):
    result = stored(by_keys)
    shape = (BATCH if "b" in axes else 1, HEADS if "h" in axes else 1, chunks)
    total = torch.full((*shape, result.scores.shape[3]), 7.0, dtype=target)
    before = total.double()
    adds = target == torch.float32
    call = functools.partial(add_tiles, result, total, frozenset(axes), FACTOR, adds, ARCH, 0)
    emulated(call, result, total)
    wanted = exact(result)
    wanted = torch.nn.functional.pad(wanted, (0, 0, 0, -ROWS % chunks))
    wanted = wanted.unflatten(2, (chunks, -1)).sum(3) * FACTOR
    for d, axis in enumerate("bh"):
        wanted = wanted if axis in axes else wanted.sum(d, keepdim=True)
    wanted = wanted + before if adds else wanted
    owned = ORDER if "b" in axes else slice(None)
    assert torch.equal(total[owned].double(), wanted[owned])
    others = torch.ones(len(total), dtype=torch.bool)
    others[owned] = False
    assert (total[others] == 7.0).all()


@by_tiles
def test_sums_of_rows(by_keys):
    result = stored(by_keys)
    total = torch.full((BATCH, HEADS, ROWS), 7.0)
    emulated(functools.partial(add_rows, result, total, FACTOR, ARCH, 0), result, total)
    assert torch.equal(total[ORDER].double(), exact(result)[ORDER].sum(3) * FACTOR)
    assert (total[[1, 2, 4]] == 7.0).all()
