"""The Hopper backward where dQ may be added in any order, on the card, against fp64."""

import dataclasses

import pytest
import torch

pytest.importorskip("cutlass")
pytestmark = pytest.mark.cuda

from gdpa_inductor import gdpa_backend  # noqa: E402
from gdpa_inductor.kernels.cute.backward import launch  # noqa: E402
from gdpa_inductor.lowerings.cute import calls  # noqa: E402
from gdpa_inductor.program.score_mod import ScoreMod  # noqa: E402
from tests.gpu.checks import check_step, hopper  # noqa: E402, F401
from tests.gpu.test_cute_backward import LONG, WIDE, call_on_card, gradients  # noqa: E402
from tests.gpu.test_cute_forward import attend, step  # noqa: E402
from tests.kernels.cute_backward_cases import (  # noqa: E402
    CASES,
    CAUSAL,
    Case,
    check_errors,
    make_call,
    sparse_integers,
)

FORMS = {
    **LONG,
    **{
        name: CASES[name]
        for name in (
            "one tile", "tails, grouped heads", "fp16, head dims of 96 and 40", "causal sigmoid",
            "jagged", "jagged, cut short, grouped heads, 64-bit offsets", "jagged causal",
            "a mask per head, grouped heads", "shared seeds", "shared keys",
        )
    },
    "causal, grouped heads, wide": Case(CAUSAL, 2, 4, 2, rows=900, keys=700, dims=WIDE),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_gradients(name: str) -> None:
    """By as many CTAs as there are multiprocessors, and by few, that take many tiles each."""
    case = FORMS[name]
    call = make_call(case)
    for ctas in (0, case.ctas):
        check_errors(gradients(case, call, ctas, ordered=False), case, call)


@pytest.mark.parametrize("name", LONG)
def test_only_dq_differs(name: str) -> None:
    """And that in its last bits."""
    case = LONG[name]
    call = make_call(case)
    query, *rest = gradients(case, call)
    for _ in range(5):
        other, *same = gradients(case, call, ordered=False)
        assert all(map(torch.equal, rest, same))
        scale = query.abs().max() * torch.finfo(case.dtype).eps
        assert (query.float() - other.float()).abs().max() <= 2 * scale


def test_the_gradient_of_a_bias_keeps_its_bits() -> None:
    """Heads are computed some at a time; each launch clears its own sums."""
    grad, plain = call_on_card((3, 4, 300, 128), 400)
    bias = torch.randn(4, 300, 400, device="cuda").bfloat16()
    program = ScoreMod.parse("a0:f[h,q_idx,kv_idx]; silu(add(mul(s,0.088),a0))")
    o = dataclasses.replace(plain, aux=[bias], program=program)
    query, *rest = launch.backward(grad, o, (True,) * 4)
    other, *same = launch.backward(grad, o, (True,) * 4, ordered=False)
    assert all(map(torch.equal, rest, same))
    scale = query.abs().max() * torch.finfo(query.dtype).eps
    assert (query.float() - other.float()).abs().max() <= 2 * scale


@pytest.mark.parametrize("dims", [(64, 64), WIDE, (40, 96)])
def test_exact_on_integers(dims: tuple[int, int]) -> None:
    """Sums of integers are the same in any order: a part that is lost or added twice is seen."""
    case = Case("relu(s)", 2, 4, 2, rows=900, keys=1300, dims=dims)
    call = sparse_integers(case)
    first = gradients(case, call)
    assert all(x.any() for x in first)
    for ctas in (0, 0, 0, 7):
        assert all(map(torch.equal, gradients(case, call, ctas, ordered=False), first))


def test_the_sums_are_complete_when_they_are_converted() -> None:
    """On a full card, where additions take long. What is read too early is NaN or too small."""
    grad, o = call_on_card((16, 4, 2048, 128), 2048)
    first = launch.backward(grad, o, (True,) * 3)
    for _ in range(20):
        poison = torch.full((1 << 28,), float("nan"), device="cuda")
        del poison
        results = launch.backward(grad, o, (True,) * 3, ordered=False)
        for mine, theirs in zip(results, first, strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-2, atol=1e-2 * theirs.abs().max().item())


def test_the_option_reaches_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    requested = []
    backward = calls.backward

    def noted(*operands, **named):
        requested.append(named["ordered"])
        return backward(*operands, **named)

    monkeypatch.setattr(calls, "backward", noted)

    options = {"gdpa.deterministic": False, "gdpa.kernel": "cute"}
    run = torch.compile(attend, backend=gdpa_backend, options=options)
    shape = (2, 4, 700, 128)
    *tensors, grad = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    fused, eager = (step(function, tensors, grad) for function in (run, attend))
    assert requested == [False]
    check_step(fused, eager, step(attend, [x.double() for x in tensors], grad.double()))
