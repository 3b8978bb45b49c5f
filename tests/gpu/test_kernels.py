"""The kernels on a GPU, through `torch.compile`: the error rule, equal bits, CUDA graphs."""

import pytest
import torch
import torch.nn.functional as F

from tests._judge import difference, noise_of, results
from tests.activations import ACTIVATIONS
from tests.gpu.checks import check_bits, compiled
from tests.gpu.programs import CASES, Case, of_activation
from tests.operands import make_operands, recast

pytestmark = pytest.mark.cuda
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])


def operands_of(case: Case, dtype: torch.dtype) -> dict[str, object]:
    made = make_operands(case.specs, case.all_sizes, dtype=dtype)
    return {
        name: x.detach().cuda().requires_grad_(x.requires_grad) if torch.is_tensor(x) else x
        for name, x in made.items()
    }


def breach(case: Case, function, dtype: torch.dtype) -> str:
    """How `function` breaks the error rule on the operands of the case, or ""."""
    operands = operands_of(case, dtype)
    eager = results(case.function, recast(operands, dtype))
    exact = results(case.function, recast(operands, torch.float64))
    fused = results(function, recast(operands, dtype))
    fault = difference(fused, eager, exact)
    if fault:
        noise = noise_of(case.function, operands, exact, torch.finfo(dtype).eps)
        fault = difference(fused, eager, exact, noise=noise)
    return fault


@by_dtype
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_error_rule_of_activations(name: str, dtype: torch.dtype) -> None:
    case = of_activation(name)
    assert not breach(case, compiled(case.function), dtype)


@by_dtype
@pytest.mark.parametrize("name", CASES)
def test_error_rule_of_operands(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    assert not breach(case, compiled(case.function), dtype)


@pytest.mark.parametrize("name", ["causal", "bias", "head dim 40"])
def test_error_rule_with_tf32(name: str) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        case = CASES[name]
        assert not breach(case, compiled(case.function), torch.float32)
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("name", ["causal", "learned scales", "bias", "shared heads"])
def test_error_rule_with_varying_sizes(name: str) -> None:
    case = CASES[name]
    function = compiled(case.function, dynamic=True)
    for m, n in ((300, 200), (128, 256), (515, 77)):
        sized = Case(case.function, case.specs, {**case.sizes, "m": m, "n": n})
        assert not breach(sized, function, torch.bfloat16)


def bits(function, operands) -> list[torch.Tensor]:
    outcome = results(function, recast(operands, torch.bfloat16))
    return [*outcome.outputs.values(), *outcome.gradients.values()]


@pytest.mark.parametrize(
    "name", ["causal", "bias", "learned scales", "shared heads", "shared queries"]
)
def test_equal_bits_in_1000_runs(name: str) -> None:
    case = CASES[name]
    operands, function = operands_of(case, torch.bfloat16), compiled(case.function)
    check_bits(lambda: bits(function, operands), 1000)


def check_cuda_graphs(case: Case, **options: str) -> None:
    """mode="reduce-overhead": recorded in the second call, replayed from the third on."""
    function = compiled(case.function, mode="reduce-overhead", **options)
    for _ in range(5):
        torch.compiler.cudagraph_mark_step_begin()
        assert not breach(case, function, torch.bfloat16)
    assert torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] == 0


@pytest.mark.parametrize("name", ["causal", "bias"])
def test_cuda_graphs(name: str) -> None:
    check_cuda_graphs(CASES[name])


def test_max_autotune() -> None:
    case = CASES["causal"]
    function = compiled(case.function, mode="max-autotune-no-cudagraphs")
    assert not breach(case, function, torch.bfloat16)


def test_autocast_training() -> None:
    def step(x, weight):
        with torch.autocast("cuda", torch.bfloat16):
            q, k, v = (t.unflatten(-1, (4, 64)).transpose(1, 2) for t in (x @ weight).chunk(3, -1))
            return (F.silu(q @ k.mT * 0.01) @ v).to(x.dtype)

    case = Case(step, {"x": "b n 256", "weight": "256 768"})
    operands = operands_of(case, torch.float32)
    eager = results(step, recast(operands, torch.float32))
    exact = results(step, recast(operands, torch.float64))
    fused = results(compiled(step), recast(operands, torch.float32))
    noise = noise_of(step, operands, exact, torch.finfo(torch.bfloat16).eps)
    assert not difference(fused, eager, exact, noise=noise)


def test_offsets_past_two_to_the_31() -> None:
    """The heads of a [1, 2, 4096, 64] operand, 2³¹ elements apart."""
    far = torch.empty(2**31 + 4096 * 64, device="cuda", dtype=torch.bfloat16)
    view = far.as_strided((1, 2, 4096, 64), (0, 2**31, 64, 1))
    view.copy_(torch.randn(1, 2, 4096, 64, device="cuda"))
    k, v = (torch.randn(1, 2, 128, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    function = CASES["head dim 128"].function
    with torch.no_grad():
        torch.testing.assert_close(
            compiled(function)(view, k, v), compiled(function)(view.clone(), k, v), rtol=0, atol=0
        )


def test_nan_beside_the_operands_is_not_read() -> None:
    """Every operand is the middle of a buffer of NaN."""
    case = CASES["mask"]
    operands = operands_of(case, torch.bfloat16)
    poisoned = {}
    for name, x in operands.items():
        buffer = torch.full((x.numel() + 8192,), float("nan"), device="cuda").to(x.dtype)
        inner = buffer[4096:-4096].view(x.shape)
        inner.copy_(x.detach())
        poisoned[name] = inner
    function = compiled(case.function)
    with torch.no_grad():
        clean = {name: x.detach() for name, x in operands.items()}
        torch.testing.assert_close(function(**poisoned), function(**clean), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["silu", "gelu_tanh", "sigmoid", "relu", "hardswish"])
def test_infinities_are_where_eager_has_them(name: str) -> None:
    """What the kernels load past the ends as zeros adds nothing, 0 · inf neither. Eager in fp32, as
    bf16 would round a score of -2.997 to where the slope of hardswish is 0."""
    case = of_activation(name)
    function = compiled(case.function)
    for infinite in ("q", "k", "v"):
        operands = operands_of(case, torch.bfloat16)
        with torch.no_grad():
            operands[infinite][:, :, 5, 0] = torch.inf
        eager = results(case.function, recast(operands, torch.float32))
        fused = results(function, recast(operands, torch.bfloat16))
        for of in ("outputs", "gradients"):
            for key, wanted in getattr(eager, of).items():
                outcome = getattr(fused, of)[key]
                assert torch.equal(outcome.isfinite(), wanted.isfinite()), (infinite, key)


@pytest.mark.parametrize(
    "name", ["silu", "gelu_tanh", "gelu", "sigmoid", "tanh", "mish", "softplus"]
)
def test_numerics_rule_of_fast_forms(name: str) -> None:
    """|act - exact| ≤ 2⁻¹⁰ max(1, |x|) on scores in [-30, 30]: q = x, k = 1, v = 1, and a second
    key whose value is zero."""
    act = ACTIVATIONS[name].function

    def function(q, k, v):
        return act(q @ k.mT) @ v

    x = torch.linspace(-30, 30, 16384, device="cuda").to(torch.bfloat16)
    q = torch.zeros(1, 1, 16384, 16, device="cuda", dtype=torch.bfloat16)
    q[..., 0] = x
    one = torch.zeros(1, 1, 2, 16, device="cuda", dtype=torch.bfloat16)
    one[0, 0, 0, 0] = 1
    with torch.no_grad():
        got = compiled(function)(q, one, one)[0, 0, :, 0].double()
    exact = act(x.double())
    # The weight and the output are rounded to bf16 besides.
    bound = 2**-10 * x.double().abs().clamp(min=1) + 2**-8 * exact.abs()
    assert ((got - exact).abs() <= bound).all()
