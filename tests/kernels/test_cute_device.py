"""The Blackwell forward on a Blackwell GPU, where there is one: the cases of the emulator, and
whole models through the backend."""

import pytest
import torch

import gdpa_inductor
from tests.tolerances import error_of

from .cute_cases import CASES, MORE, SELF, Case, eager, exact

BLACKWELL = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 10
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not BLACKWELL, reason="needs a GPU of compute capability 10.x"),
]


def forward(case: Case, o) -> torch.Tensor:
    from gdpa_inductor.kernels.cute import launch

    def there(x):
        return x.cuda() if isinstance(x, torch.Tensor) else x

    return launch.forward(o.filled([there(x) for x in o.flat()]), fast=case.fast).cpu()


@pytest.mark.parametrize("case", [*CASES, *MORE], ids=lambda case: case.name)
def test_forward(case: Case):
    o = case.operands()
    wrong = error_of(forward(case, o), eager(o), exact(o), direction="forward")
    assert wrong is None, wrong


def test_equal_bits_from_run_to_run():
    case = Case("bits", d=64, h=4, q_lengths=SELF, k_lengths=SELF)
    o = case.operands()
    first = forward(case, o)
    assert all(torch.equal(forward(case, o), first) for _ in range(100))


def test_a_compiled_model_runs_on_it():
    def model(q, k, v):
        return torch.nn.functional.silu(q @ k.mT * 0.125) @ v

    q, k, v = (torch.randn(2, 4, 1024, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    got = torch.compile(model, backend=gdpa_inductor.gdpa_backend)(q, k, v)
    want = model(*(x.double() for x in (q, k, v)))
    assert torch._dynamo.utils.counters["gdpa"]["lowered_cute"] == 1
    wrong = error_of(got, model(q, k, v), want, direction="forward")
    assert wrong is None, wrong
