"""Sums of the stored gradients of scores, by the kernel, on the emulator."""

import pytest
import torch

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute.backward import summation, totals
from gdpa_inductor.kernels.cute.launcher import WordLauncher
from gdpa_inductor.kernels.cute.runtime import Kernel, exported
from tests.emulator import recording, run

ARCH = "sm_100a"  # that of the emulator
WHOLE = (3, 2, 6, 16)


def launcher(*arguments) -> WordLauncher:
    return WordLauncher(Kernel(exported(summation.compiled(*arguments))), 8)


@pytest.mark.parametrize("own", [(1, 2, 6, 16), (3, 1, 6, 16), (1, 1, 6, 16), WHOLE])
@pytest.mark.parametrize("target", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("factor", [1.0, -0.5])
def test_sums_over_batches_and_heads(own, target, factor, monkeypatch):
    scores = torch.randint(-8, 9, WHOLE).bfloat16()
    guarded = torch.full((torch.Size(own).numel() + 16,), 7.0, dtype=target)
    result = guarded[8:-8].view(own)
    kinds = (str(x.dtype).removeprefix("torch.") for x in (scores, result))
    with recording():
        kernel = launcher(*kinds, factor, ARCH)
        monkeypatch.setattr(totals, "word_launcher", lambda *_: kernel)
        places = []
        run(lambda: places.append(totals.total(scores, result, factor, ARCH, 0)), [scores, guarded])
    assert places and all(places)
    dims = [d for d in range(4) if own[d] != WHOLE[d]]
    exact = scores.double().sum(dims, keepdim=True) if dims else scores.double()
    assert torch.equal(result.double(), exact * factor)
    assert (guarded[:8] == 7.0).all() and (guarded[-8:] == 7.0).all()


@pytest.mark.parametrize("own", [(1, 2, 6, 16), (1, 1, 6, 16), WHOLE])
def test_sums_whose_rows_lie_apart(own, monkeypatch):
    """They are some of the columns of a wider gradient, which keeps the others."""
    scores = torch.randint(-8, 9, WHOLE).bfloat16()
    wide = torch.full((*own[:3], 40), 7.0, dtype=torch.bfloat16)
    result = wide[..., 8:24]
    with recording():
        kernel = launcher("bfloat16", "bfloat16", 0.5, ARCH, True)
        monkeypatch.setattr(totals, "word_launcher", lambda *_: kernel)
        places = []
        run(lambda: places.append(totals.total(scores, result, 0.5, ARCH, 0)), [scores, wide])
    assert places and all(places)
    dims = [d for d in range(4) if own[d] != WHOLE[d]]
    exact = scores.double().sum(dims, keepdim=True) if dims else scores.double()
    assert torch.equal(result.double(), exact * 0.5)
    assert (wide[..., :8] == 7.0).all() and (wide[..., 24:] == 7.0).all()


def test_rows_that_lie_apart_in_several_ways_are_left_to_torch():
    """A step from row to row that is not that from head to head."""
    own = torch.empty(1, 2, 8, 16)[:, :, :6]
    assert not totals.total(torch.ones(WHOLE), own, 1.0, ARCH, 0)


@pytest.mark.parametrize("own", [(3, 1, 1, 16), (1, 2, 6, 1)], ids=str)
def test_other_sums_are_left_to_torch(own):
    assert not totals.total(torch.ones(WHOLE), torch.empty(own), 1.0, ARCH, 0)


def test_what_lies_apart_is_left_to_torch():
    scores = torch.ones(3, 2, 6, 24)[..., :16]
    assert not totals.total(scores, torch.empty(1, 2, 6, 16), 1.0, ARCH, 0)
