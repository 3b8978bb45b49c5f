"""Sums of the stored gradients of scores, by the kernel, on the emulator."""

import itertools

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


OWN = [(1, 2, 6, 16), (1, 1, 6, 16), WHOLE]


@pytest.mark.parametrize(
    ("own", "apart"), [((3, 1, 6, 16), False), *itertools.product(OWN, (False, True))]
)
@pytest.mark.parametrize("target", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("factor", [1.0, -0.5])
def test_sums_over_batches_and_heads(own, target, factor, apart, monkeypatch):
    """apart: the rows are some of the columns of a wider gradient, which keeps the others."""
    scores = torch.randint(-8, 9, WHOLE).bfloat16()
    if apart:
        room = torch.full((*own[:3], 32), 7.0, dtype=target)
        sums, around = room[..., 8:24], (room[..., :8], room[..., 24:])
    else:
        room = torch.full((torch.Size(own).numel() + 16,), 7.0, dtype=target)
        sums, around = room[8:-8].view(own), (room[:8], room[-8:])
    kinds = (str(x.dtype).removeprefix("torch.") for x in (scores, sums))
    served = []
    with recording():
        kernel = launcher(*kinds, factor, ARCH, apart)
        monkeypatch.setattr(totals, "word_launcher", lambda *_: kernel)
        run(lambda: served.append(totals.total(scores, sums, factor, ARCH, 0)), [scores, room])
    assert served and all(served)
    dims = [d for d in range(4) if own[d] != WHOLE[d]]
    exact = scores.double().sum(dims, keepdim=True) if dims else scores.double()
    assert torch.equal(sums.double(), exact * factor)
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
    assert not totals.total(*LEFT[name], 1.0, ARCH, 0)
