"""The Blackwell backward on a Blackwell GPU, where there is one: the cases of the emulator."""

import pytest
import torch

from tests.tolerances import error_of

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute.backward.launch import backward

from .cute_backward_cases import CASES, Case, Problem, make_call, unfused

BLACKWELL = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 10
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not BLACKWELL, reason="needs a GPU of compute capability 10.x"),
]


def gradients(case: Case, call: Problem) -> list[torch.Tensor]:
    o = call.operands
    there = o.filled([x.cuda() if isinstance(x, torch.Tensor) else x for x in o.flat()])
    found = backward(call.grad_out.cuda(), there, (True, True, True), fast=case.fast)
    return [x.cpu() for x in found]


@pytest.mark.parametrize("name", CASES)
def test_gradients_obey_the_error_rule(name):
    case = CASES[name]
    call = make_call(case)
    exact, eager = unfused(case, call, torch.float64), unfused(case, call, case.dtype)
    for letter, mine, theirs, truth in zip("qkv", gradients(case, call), eager, exact):
        assert not (fault := error_of(mine, theirs, truth, direction="backward")), (letter, fault)


def test_equal_bits_from_run_to_run():
    case = Case(batch=4, heads=8, key_heads=2, rows=1000, keys=1300)
    call = make_call(case)
    first = gradients(case, call)
    for _ in range(100):
        assert all(torch.equal(x, y) for x, y in zip(gradients(case, call), first))
