"""Which kernel a problem gets, and the reasons of a refusal."""

import pytest
import torch

from gdpa_inductor import lowerings
from gdpa_inductor.options import Options
from gdpa_inductor.problem import Problem
from gdpa_inductor.rejection import Code
from gdpa_inductor.score_mod import ScoreMod

BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))


def problem(
    dtype=BF16, d=128, dv=None, n=1024, m=1024, device="cuda", training=True, value=None, aux=()
):  # fmt: skip
    return Problem(
        program=ScoreMod.parse("silu(s)"), device=torch.device(device), dtype=dtype,
        value_dtype=value or dtype, aux_dtypes=tuple(aux), batch=8, heads=4, key_heads=4,
        value_heads=4, rows=n, cols=m, head_dim=d, value_dim=dv or d, training=training,
    )  # fmt: skip


ACCEPTED = [
    (problem(), "triton"),
    (problem(torch.float16, n=64, m=64), "triton"),
    (problem(d=24, dv=80), "triton"),
    (problem(d=256, training=False), "triton"),
    (problem(device="cpu", dtype=F64), "cpu"),
]


@pytest.mark.parametrize("given, kernel", ACCEPTED)
def test_accepted(given: Problem, kernel: str):
    choice = lowerings.choose(given, Options())
    assert choice
    assert choice.kernel == kernel
    assert kernel in str(choice)


REFUSED = [
    (problem(F64), Code.DTYPE, "float64"),
    (problem(value=F32), Code.DTYPE, "takes one"),
    (problem(aux=(torch.complex64,)), Code.DTYPE, "complex64"),
    (problem(d=320), Code.HEAD_DIM, "320"),
    (problem(dv=512), Code.HEAD_DIM, "512"),
    (problem(device="meta"), Code.DEVICE, "meta"),
    (problem(d=256), Code.SLOWER, "training with head dim 256"),
    (problem(d=256, training=False, n=64), Code.SLOWER, "256 rows and keys"),
    (problem(F32), Code.SLOWER, "fp32 without TF32"),
]


@pytest.mark.parametrize("given, code, word", REFUSED)
def test_refused(given: Problem, code: Code, word: str):
    refusal = lowerings.choose(given, Options())
    assert not refusal
    assert refusal.code is code
    assert word in refusal.reason


@pytest.mark.parametrize("given, code, word", [row for row in REFUSED if row[1] is Code.SLOWER])
def test_profit_off_asks_only_whether_it_is_right(given: Problem, code: Code, word: str):
    assert lowerings.choose(given, Options(profit=False))


def test_tf32_follows_torch():
    given = problem(F32, d=32)
    before = torch.get_float32_matmul_precision()
    assert not lowerings.choose(given, Options())
    torch.set_float32_matmul_precision("high")
    try:
        assert lowerings.choose(given, Options())
    finally:
        torch.set_float32_matmul_precision(before)
    assert not lowerings.choose(given, Options())


def test_old_devices_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
    refusal = lowerings.choose(problem(), Options())
    assert refusal.code is Code.DEVICE
    assert "7.5" in refusal.reason


def test_no_triton_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refusal = lowerings.choose(problem(), Options())
    assert refusal.code is Code.DEVICE
    assert "Triton" in refusal.reason


def test_a_kernel_can_be_asked_for():
    assert lowerings.choose(problem(), Options(kernel="reference")).kernel == "reference"
    assert lowerings.choose(problem(), Options(kernel="triton")).kernel == "triton"
    assert lowerings.choose(problem(), Options(kernel="cpu")).code is Code.DEVICE
