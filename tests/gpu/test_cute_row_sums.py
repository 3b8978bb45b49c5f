"""Row sums on the card, against the formula in fp64: both results, gradients, a compiled model."""

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters

pytest.importorskip("cutlass")
pytestmark = pytest.mark.cuda

from gdpa_inductor.kernels.cute.launch import forward  # noqa: E402
from tests.gpu.checks import captured, check_bits, check_step, compiled, hopper, on_card  # noqa: E402, F401
from tests.gpu.test_cute_backward import gradients, poisoned  # noqa: E402
from tests.gpu.test_cute_forward import step  # noqa: E402
from tests.kernels.cute_backward_cases import check_errors, make_call  # noqa: E402
from tests.kernels.cute_cases import SELF, Case, check_output  # noqa: E402
from tests.kernels.test_cute_row_sums import (  # noqa: E402
    ABSOLUTE,
    BIASED,
    CASES,
    CAUSAL,
    GRADIENTS,
    OF_ABSOLUTE,
    OF_ROWS,
    OF_SIGMOID,
    SIGMOID,
    check_sums,
)
from tests.kernels.test_cute_row_sums import gradients as cases  # noqa: E402

LONG = (900, 33, 700, 0, 1, 512)
JAGGED = {"h": 4, "q_lengths": LONG, "k_lengths": LONG, "ctas": 0}
MORE = (
    Case("many tiles", SIGMOID, d=64, m=1000, n=1100, b=2, h=4, ctas=0),
    Case("many tiles, D 128", SIGMOID, m=1000, n=1100, b=2, h=4, ctas=0),
    Case("many tiles, causal", CAUSAL.format("relu(s)"), d=64, m=1300, n=1300, h=4, ctas=3),
    Case("many tiles, causal, D 128", ABSOLUTE, m=1300, n=1300, b=2, h=4, ctas=0),
    Case("many tiles, bias", BIASED, m=700, n=904, h=4, ctas=0),
    Case("many tiles, jagged", ABSOLUTE, d=64, **JAGGED),
    Case("many tiles, jagged, D 128", SIGMOID, **JAGGED),
    Case("one row", SIGMOID, d=64, m=1, n=1000, h=3),
    Case("one key", SIGMOID, m=1000, n=1, h=3),
    Case("seeds", SIGMOID, d=64, b=4, m=32, shared="q", k_lengths=SELF, ctas=0),
)  # fmt: skip
WIDE = {"dims": (128, 128)}
LARGE = {
    "many tiles": cases.Case(OF_SIGMOID, 2, 4, 4, rows=1100, keys=1300),
    "many tiles, D 128": cases.Case(OF_SIGMOID, 2, 4, 2, rows=1100, keys=1300, **WIDE),
    "many tiles, causal": cases.Case(OF_ABSOLUTE, 2, 4, 4, rows=1300, keys=1300),
    "many tiles, causal, D 128": cases.Case(OF_ABSOLUTE, 2, 4, 4, rows=1300, keys=1300, **WIDE),
    "many tiles, jagged": cases.Case(OF_ROWS, heads=4, key_heads=4, rows=LONG, keys=LONG),
    "many tiles, jagged, D 128": cases.Case(
        OF_ROWS, heads=4, key_heads=4, rows=LONG, keys=LONG, **WIDE
    ),
}


@pytest.mark.parametrize("case", [*CASES, *MORE], ids=lambda case: case.name)
def test_forward(case: Case) -> None:
    o = case.operands()
    with poisoned():
        out, sums = forward(on_card(o), fast=case.fast, ctas=case.ctas)
    check_output(out.cpu(), o)
    check_sums(sums.cpu(), o)


@pytest.mark.parametrize("name", GRADIENTS | LARGE)
def test_backward(name: str) -> None:
    case = (GRADIENTS | LARGE)[name]
    call = make_call(case)
    check_errors(gradients(case, call), case, call)


def test_every_run_has_the_same_bits() -> None:
    there = on_card(MORE[0].operands())
    check_bits(lambda: forward(there))
    case = LARGE["many tiles, D 128"]
    call = make_call(case)
    check_bits(lambda: gradients(case, call))


def test_in_a_cuda_graph() -> None:
    o = MORE[3].operands()
    there = on_card(o)
    forward(there)
    graph, (out, sums) = captured(lambda: forward(there))
    for x in (out, sums):
        x.fill_(torch.nan)
    graph.replay()
    check_output(out.cpu(), o)
    check_sums(sums.cpu(), o)


MODELS = {
    "sigmoid": torch.sigmoid,
    "causal relu": lambda s: F.relu(s).tril(),
    "causal tanh": lambda s: torch.tanh(s).tril(),
}


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", MODELS)
def test_a_training_step(name: str, dim: int) -> None:
    """Both passes run on these kernels, and obey the error rule."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        weights = MODELS[name](q @ k.mT * dim**-0.5)
        return (weights @ v) / (weights.abs().sum(-1, keepdim=True) + 1)

    torch.manual_seed(0)
    *leaves, g = (torch.randn(2, 4, 600, dim, device="cuda") for _ in range(4))
    halves = [x.bfloat16() for x in (*leaves, g)]
    counters.clear()
    function = compiled(attend, kernel="cute")
    for _ in range(3):  # the second and the third are replays
        fused = step(function, halves[:3], halves[3])
        eager = step(attend, halves[:3], halves[3])
        exact = step(attend, [x.double() for x in halves[:3]], halves[3].double())
        check_step(fused, eager, exact)
    lowered = {x for x in counters["gdpa"] if x.startswith(("lowered_", "fallback"))}
    assert lowered == {"lowered_cute"}
