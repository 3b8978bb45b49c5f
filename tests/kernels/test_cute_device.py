"""The Blackwell kernels on a Blackwell GPU, where there is one: the cases of the emulator, and a
whole model through the backend."""

from collections.abc import Callable

import pytest
import torch

import gdpa_inductor
from gdpa_inductor.operands import Operands
from tests.tolerances import error_of

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute import launch
from gdpa_inductor.kernels.cute.backward.launch import backward
from tests.gpu.checks import on_card

from . import cute_backward_cases
from .cute_backward_cases import Problem, check_errors, make_call
from .cute_cases import CASES, MORE, SELF, Case, check_output

BLACKWELL = torch.cuda.is_available() and torch.cuda.get_device_capability() in ((10, 0), (10, 3))
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not BLACKWELL, reason="needs compute capability 10.0 or 10.3"),
]


def forward(case: Case, o: Operands[torch.Tensor]) -> torch.Tensor:
    return launch.forward(on_card(o), fast=case.fast).cpu()


def gradients(case: cute_backward_cases.Case, call: Problem) -> list[torch.Tensor]:
    operands = on_card(call.operands)
    return [x.cpu() for x in backward(call.grad_out.cuda(), operands, (True,) * 3, fast=case.fast)]


@pytest.mark.parametrize("case", [*CASES, *MORE], ids=lambda case: case.name)
def test_forward(case: Case):
    o = case.operands()
    check_output(forward(case, o), o)


@pytest.mark.parametrize("name", cute_backward_cases.CASES)
def test_gradients(name: str):
    case = cute_backward_cases.CASES[name]
    call = make_call(case)
    check_errors(gradients(case, call), case, call)


def outputs() -> list[torch.Tensor]:
    case = Case("bits", d=64, h=4, q_lengths=SELF, k_lengths=SELF)
    return [forward(case, case.operands())]


def all_gradients() -> list[torch.Tensor]:
    case = cute_backward_cases.Case(batch=4, heads=8, key_heads=2, rows=1000, keys=1300)
    return gradients(case, make_call(case))


@pytest.mark.parametrize("run", [outputs, all_gradients])
def test_equal_bits_from_run_to_run(run: Callable[[], list[torch.Tensor]]):
    first = run()
    for _ in range(100):
        assert all(torch.equal(x, y) for x, y in zip(run(), first, strict=True))


def test_a_compiled_model_runs_on_it():
    def model(q, k, v):
        return torch.nn.functional.silu(q @ k.mT * 0.125) @ v

    q, k, v = (torch.randn(2, 4, 1024, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    by_name = {"gdpa.kernel": "cute"}  # without a certificate
    fused = torch.compile(model, backend=gdpa_inductor.gdpa_backend, options=by_name)(q, k, v)
    truth = model(*(x.double() for x in (q, k, v)))
    assert torch._dynamo.utils.counters["gdpa"]["lowered_cute"] == 1
    wrong = error_of(fused, model(q, k, v), truth, direction="forward")
    assert wrong is None, wrong
