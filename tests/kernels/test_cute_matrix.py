"""The Blackwell kernels on the emulator, feature by feature: direction, dense or jagged, head dim,
dtype, program. Tails of rows and keys, and where jagged an empty sequence, in each.
"""

import itertools

import pytest
import torch

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute.sm100.config import BOTH, SIDES

from . import test_cute_backward, test_cute_forward
from .cute_backward_cases import Case as BackwardCase
from .cute_backward_cases import check_errors, make_call
from .cute_cases import BF16, F16, RELU2, check_output
from .cute_cases import Case as ForwardCase

LENGTHS = (200, 0, 130, 1)
PROGRAMS = {
    "silu": "silu(mul(s,0.125))",
    "tanh-gelu": "gelu_tanh(mul(s,0.125))",
    "relu2": RELU2,
    "causal sigmoid, bias": (
        "a0:f[h,q_idx,kv_idx]; where(ge(q_idx,kv_idx),sigmoid(add(mul(s,0.125),a0)),0.0)"
    ),
}
NAMES = "jagged, dim, dtype, program"
ROWS = list(itertools.product((False, True), (64, 128, 256), (BF16, F16), PROGRAMS))
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(NAMES, ROWS)
def test_forward(jagged: bool, dim: int, dtype: torch.dtype, program: str):
    lengths = {"q_lengths": LENGTHS, "k_lengths": LENGTHS} if jagged else {"m": 300, "n": 200}
    aux = (torch.float32,) if "bias" in program else ()
    case = ForwardCase("m", PROGRAMS[program], d=dim, h=2, dtype=dtype, aux=aux, **lengths)
    o = case.operands()
    check_output(test_cute_forward.forward(case, o), o)


@pytest.mark.parametrize(NAMES, [row for row in ROWS if row[1] <= 128])
def test_backward(jagged: bool, dim: int, dtype: torch.dtype, program: str):
    sides = {"rows": LENGTHS, "keys": LENGTHS} if jagged else {"rows": 200, "keys": 300}
    case = BackwardCase(PROGRAMS[program], dims=(dim, dim), dtype=dtype, **sides)
    call = make_call(case)
    for kernels in (tuple(SIDES), (BOTH,)):
        check_errors(test_cute_backward.emulated(case, call, sides=kernels), case, call)
