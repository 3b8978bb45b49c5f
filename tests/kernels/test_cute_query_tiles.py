"""Tiles of three query tiles of 64 rows, as the forward for Hopper has them, on the emulator.

It knows no product of that GPU. So a row is multiplied by a thread (`tests.gpu.rowwise`). What
decodes the work and finds the key blocks of each query tile is the kernels' own.
"""

import functools

import pytest
import torch

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute import launch
from gdpa_inductor.kernels.cute.launcher import Launcher
from gdpa_inductor.kernels.cute.runtime import Kernel, exported
from gdpa_inductor.kernels.cute.sm100.config import Sm100Config
from tests.emulator import recording, run
from tests.gpu import rowwise
from tests.tolerances import error_of

from .cute_cases import CAUSAL, SILU, Case, eager, exact, unwritten

LENGTHS = (1, 63, 64, 65, 0, 128, 129, 192, 193, 320)
WINDOW = "where(and(ge(q_idx,kv_idx),lt(sub(q_idx,kv_idx),100)),silu(s),0.0)"
CASES = (
    Case("dense", d=8, m=193, n=140, h=2, ctas=3),
    Case("dense, a round in pieces", d=8, m=400, n=140, h=2, b=2, ctas=8),
    Case("dense, only pieces", d=8, m=400, n=70, h=2, ctas=20),
    Case("causal", CAUSAL.format(SILU), d=8, m=400, n=400, ctas=2),
    Case("causal, fewer keys", CAUSAL.format(SILU), d=8, m=260, n=130, h=3, ctas=3),
    Case("window", WINDOW, d=8, m=500, n=500, ctas=3),
    Case("jagged", d=8, q_lengths=LENGTHS, k_lengths=LENGTHS[::-1], ctas=2),
    Case("jagged, causal", CAUSAL.format(SILU), d=8, q_lengths=LENGTHS, k_lengths=LENGTHS, ctas=4),
)  # fmt: skip


class ThreeTiles(Sm100Config):
    rows = 64
    tiles = 3
    in_rounds = True


@functools.cache
def launcher(config: ThreeTiles) -> Launcher:
    return Launcher(Kernel(exported(rowwise.compiled(config, config.arch))), config)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_forward(case: Case, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(launch, "launcher", launcher)
    o = case.operands()
    out, offsets = unwritten(case, o), o.cu_seqlens_k
    lengths = torch.zeros(1) if offsets is None else offsets[1:] - offsets[:-1]
    order = torch.argsort(lengths, descending=True)
    options = {"ctas": case.ctas, "stream": 0, "out": out, "order": order, "kind": ThreeTiles}
    memory = [*o.differentiable, o.cu_seqlens_q, o.cu_seqlens_k, order, out]
    with recording():
        run(
            lambda: launch.forward(o, **options),
            [x for x in memory if x is not None],
            schedules=("lazy",),
        )
    wrong = error_of(out, eager(o), exact(o), direction="forward")
    assert wrong is None, wrong
