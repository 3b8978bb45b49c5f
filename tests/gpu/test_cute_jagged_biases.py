"""Gradients of biases where a side is jagged, on Hopper, against the formula in fp64."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

pytest.importorskip("cutlass")
pytestmark = pytest.mark.cuda

from gdpa_inductor import lowerings  # noqa: E402
from gdpa_inductor.kernels.cute import plan  # noqa: E402
from gdpa_inductor.kernels.cute.backward import jagged_biases  # noqa: E402
from gdpa_inductor.kernels.cute.backward.launch import backward  # noqa: E402
from tests.gpu.checks import captured, check_bits, check_gradients, hopper, on_card  # noqa: E402, F401
from tests.gpu.test_cute_backward import poisoned  # noqa: E402
from tests.gpu.test_cute_biases import ADDED, BIASES  # noqa: E402
from tests.kernels.cute_backward_cases import (  # noqa: E402
    Case,
    Problem,
    make_call,
    unfused_biased,
)

MIXED = (200, 0, 130, 1, 328, 77)
OWN = {"rows": MIXED, "keys": MIXED}
FOUR = {"heads": 4, "key_heads": 4, "bias": torch.bfloat16}
WIDE = {**FOUR, "dims": (128, 128)}
SHAPES: dict[str, dict[str, Any]] = {
    "one length a sequence": {**WIDE, **OWN},
    "grouped heads, head dim 64": {**FOUR, **OWN, "key_heads": 2},
    "cut short, other lengths": {
        **WIDE, "rows": (150, 40, 0, 300), "keys": (100, 0, 50, 129), "key_heads": 1,
        "most": (260, 125),
    },
    "dense keys": {**WIDE, "rows": (150, 40, 0, 260), "keys": 140},
    "dense queries": {**FOUR, "rows": 140, "keys": (150, 40, 0, 263), "key_heads": 2},
}  # fmt: skip
PROGRAMS = {name: biased.program for name, biased in BIASES.items()} | {
    "of heads and keys": f"a0:f[-,h,-,kv_idx]; {ADDED}",
    "of heads alone": f"a0:f[-,h,-,-]; {ADDED}",
    "a scalar": f"a0:f[-,-,-,-]; {ADDED}",
    "of tokens of q": f"a0:f[q,h]; {ADDED}",
    "of tokens of k": f"a0:f[k,h]; {ADDED}",
    "of tokens of q, positions of keys": f"a0:f[q,kv_idx]; {ADDED}",
}


def make(kind: str, shape: str = "one length a sequence", **changes: Any) -> Problem:
    """bf16. What no sequence owns is NaN."""
    return make_call(Case(PROGRAMS[kind], **{**SHAPES[shape], **changes}))


def gradients(call: Problem, needs: Sequence[bool] | None = None) -> list[Tensor]:
    """On the CPU."""
    needs = needs or [x.is_floating_point() for x in (*call.matrices[:3], *call.operands.aux)]
    with poisoned():
        results = backward(call.grad_out.cuda(), on_card(call.operands), needs)
    return [x.cpu() for x in results]


@pytest.fixture(params=["one by one", "at once"])
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """How many sequences a launch has."""
    if request.param == "one by one":
        monkeypatch.setattr(jagged_biases, "ROOM", 1)
    monkeypatch.setattr(plan, "PLANS", {})  # they keep how calls were divided
    yield


def check(call: Problem, results: list[Tensor]) -> None:
    eager, exact = (unfused_biased(call, x) for x in (torch.bfloat16, torch.float64))
    assert [x.dtype for x in results] == [x.dtype for x in eager]
    check_gradients(results, eager, exact)


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", [kind for kind in PROGRAMS if "tokens" not in kind])
@pytest.mark.parametrize("wide", [False, True], ids=["16 bits", "fp32 bias"])
def test_gradients_of_biases(kind: str, shape: str, wide: bool) -> None:
    """Of a few numbers in fp32 eager's own error is a matter of luck."""
    wide = wide and kind not in ("of heads alone", "a scalar")
    call = make(kind, shape, bias=torch.float32 if wide else torch.bfloat16)
    results = gradients(call)
    check(call, results)
    assert all(map(torch.equal, results, gradients(call)))


@pytest.mark.usefixtures("room")
def test_under_the_mask_of_hstu() -> None:
    """The last 20 keys of each sequence are targets. Most tiles are left out."""
    program = (
        "a0:f[-,h,q_idx,kv_idx]; a1:i[b]; "
        "where(or(and(lt(kv_idx,a1),le(kv_idx,q_idx)),eq(kv_idx,q_idx)),"
        "silu(add(mul(s,0.125),a0)),0.0)"
    )
    call = make_call(Case(program, **SHAPES["one length a sequence"]))
    call.operands.aux[1].copy_(torch.tensor(MIXED) - 20)
    check(call, gradients(call))


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize("name", ["q", "k", "q, positions of keys"])
def test_a_bias_of_tokens(name: str) -> None:
    """Rows that no sequence owns are NaN, and have no gradient."""
    call = make(f"of tokens of {name}")
    call.operands.aux[0][-9:] = float("nan")
    results = gradients(call)
    check(call, results)
    assert not results[3][-9:].any()


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize("kind", ["of heads", "under a mask", "of queries", "of keys"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_sequence_of_nan_or_infinity_changes_no_bit_elsewhere(kind: str, value: float) -> None:
    """Past its ends it adds nothing: what lies there is zero times infinity."""
    call = make(kind)
    clean = gradients(call)
    first, end = sum(MIXED[:2]), sum(MIXED[:3])
    rows = MIXED[2]
    for x in (call.grad_out, call.operands.value):
        x[first:end] = value
    spoiled = gradients(call)
    for before, after in zip(clean[:3], spoiled[:3], strict=True):
        assert torch.equal(before[:first], after[:first])
        assert torch.equal(before[end:], after[end:])
    mine = torch.zeros(clean[3].shape, dtype=torch.bool)
    mine[slice(2, 3) if kind == "of keys" else slice(None), :, :rows, :rows] = True
    assert torch.equal(clean[3][~mine], spoiled[3][~mine])
    assert not spoiled[3][mine].isfinite().all()


def test_what_no_sequence_reaches_has_no_gradient() -> None:
    """Also where all is stored by one launch, and none of it was cleared."""
    results = gradients(make("of heads", rows=(70, 30), keys=(50, 60), most=(300, 400)))[3]
    assert (results[..., :30, :50] != 0).float().mean() > 0.9  # some sums of two cancel
    assert not results[..., 70:, :].any() and not results[..., :, 60:].any()
    assert not results[..., 30:, 50:].any()


@pytest.mark.usefixtures("room")
def test_only_the_gradient_of_a_bias() -> None:
    call = make("of positions")
    (results,) = gradients(call, (False, False, False, True))
    assert torch.equal(results, gradients(call)[3])


@pytest.mark.usefixtures("room")
def test_in_a_cuda_graph_lengths_may_change() -> None:
    """No length is read on the host."""
    call = make("of heads", rows=(300, 200, 100), keys=(300, 200, 100))
    o, grad, needs = on_card(call.operands), call.grad_out.cuda(), (True,) * 4
    backward(grad, o, needs)
    graph, results = captured(lambda: backward(grad, o, needs))
    assert o.cu_seqlens_q is not None and o.cu_seqlens_k is not None
    for lengths in ((100, 200, 300), (0, 290, 17), (300, 200, 100)):
        cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
        for offsets in (o.cu_seqlens_q, o.cu_seqlens_k):
            offsets.copy_(cu)
        for x in results:
            x.fill_(float("nan"))
        graph.replay()
        assert all(map(torch.equal, results, backward(grad, o, needs)))


def test_the_same_bits_each_time_on_a_full_card() -> None:
    """Several launches, while the memory that they store to is used again."""
    lengths = tuple(2048 - 97 * i for i in range(16))
    call = make("under a mask", rows=lengths, keys=lengths)
    assert all(x.isfinite().all() for x in gradients(call))
    check_bits(lambda: gradients(call))


def test_a_compiled_model_takes_the_kernels() -> None:
    """As large as it has to be for that; compared with Triton's gradient."""
    lowerings.register()
    lengths = tuple(2048 - 61 * i for i in range(16))
    cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32, device="cuda")
    operands = [torch.randn(sum(lengths), 8, 128, device="cuda").bfloat16() for _ in range(3)]
    operands.append(torch.randn(8, 2048, 2048, device="cuda").bfloat16())
    program, results = "a0:f[h,q_idx,kv_idx]; silu(add(mul(s,0.088),a0))", {}

    def run(options: str, query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        return torch.ops.gdpa.attention(
            query, key, value, [bias], [], program, options, cu, cu, 2048, 2048
        )

    for options, taken in (("", "cute"), ("kernel=triton", "triton")):
        torch._dynamo.reset()
        counters.clear()
        leaves = [x.clone().requires_grad_() for x in operands]
        out = torch.compile(run, fullgraph=True)(options, *leaves)
        results[taken] = torch.autograd.grad(out.float().square().sum(), leaves)
        assert counters["gdpa"][f"lowered_{taken}"] == 2
    for mine, other in zip(results["cute"], results["triton"], strict=True):
        scale = other.float().abs().max()
        assert (mine.float() - other.float()).abs().max() < 0.02 * scale
