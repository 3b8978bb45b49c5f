"""The Hopper kernel of P and dS on the card, alone and in a training step."""

import random
from functools import partial

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor import config

pytest.importorskip("cutlass")
pytestmark = pytest.mark.cuda

from gdpa_inductor.kernels.blocked import block_pass, loop  # noqa: E402
from gdpa_inductor.kernels.cute.weights import weights  # noqa: E402
from gdpa_inductor.operands import Operands  # noqa: E402
from tests.gpu import checks  # noqa: E402
from tests.gpu.checks import hopper, on_card  # noqa: E402, F401
from tests.gpu.test_chunked import HEADS  # noqa: E402
from tests.gpu.test_kernels import breach  # noqa: E402
from tests.kernels.cute_cases import BF16, CAUSAL, F16, SILU, Case  # noqa: E402
from tests.kernels.cute_weights_cases import (  # noqa: E402
    BIAS,
    CASES,
    WINDOW,
    apart,
    check,
    check_integers,
    gradient_of,
    within,
)

DIMS = ((136, 136), (192, 192), (256, 256), (192, 128), (256, 64), (64, 256), (8, 136), (200, 248))
SIZES = (1, 63, 64, 65, 127, 128, 129, 640)
MORE = (
    *(Case(f"D {d}, Dv {dv}", d=d, dv=dv, m=600, n=1096, b=2, h=3, ctas=0) for d, dv in DIMS),
    *(Case(f"causal, fp16, D {d}, Dv {dv}", CAUSAL.format(SILU), d=d, dv=dv, m=1000, n=1000, h=4,
           hk=2, dtype=F16, ctas=0) for d, dv in DIMS),
    *(Case(f"{m} rows", "sigmoid(s)", d=256, m=m, n=328, h=3, ctas=5) for m in SIZES),
    *(Case(f"{n} keys", d=192, m=200, n=n, h=3, ctas=5) for n in (8, 56, 64, 72, 128, 640)),
    Case("a CTA for all", d=256, m=600, n=1096, h=2, ctas=1),
    Case("more CTAs than tiles", d=256, m=130, n=72, ctas=132),
    Case("window, many CTAs", WINDOW, d=256, m=1000, n=1000, h=4, scalars=(300,), ctas=0),
    Case("bias of heads", BIAS, d=256, m=600, n=1000, b=2, h=3, ctas=0),
)  # fmt: skip


def stored(case: Case, grad: Tensor, o: Operands[Tensor]) -> list[Tensor]:
    made = weights(grad.cuda(), on_card(o), fast=case.fast, ctas=case.ctas)
    return [x.cpu() for x in made]


@pytest.mark.parametrize("case", [*CASES, *MORE], ids=lambda case: case.name)
def test_the_error_rule(case: Case) -> None:
    check(stored, case)


@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_exact_on_integers(dims: tuple[int, int]) -> None:
    check_integers(stored, d=dims[0], dv=dims[1], m=700, n=1000, ctas=0)


PROGRAMS = (SILU, "sigmoid(s)", CAUSAL.format(SILU), CAUSAL.format("sigmoid(s)"), WINDOW, BIAS)


def drawn(seed: int) -> Case:
    """A random problem, a multiple of the tiles or not."""
    draw = random.Random(seed)
    heads, alike = draw.choice(((1, 1), (2, 2), (4, 2), (3, 1))), draw.random() < 0.5
    dim = draw.randrange(8, 257, 8)
    return Case(
        f"drawn {seed}",
        draw.choice(PROGRAMS),
        m=draw.randrange(1, 700),
        n=draw.randrange(8, 700, 8),
        d=dim,
        dv=dim if alike else draw.randrange(8, 257, 8),
        b=draw.randrange(1, 4),
        h=heads[0],
        hk=heads[1],
        dtype=draw.choice((BF16, F16)),
        scalars=(draw.randrange(1, 300),),
        view=draw.choice(("bhnd", "bnhd")),
        ctas=draw.choice((0, 1, 3, 7, 132, 300)),
    )


def test_random_problems() -> None:
    """NaN lies around every operand."""

    def of_poisoned(case: Case, grad: Tensor, o: Operands[Tensor]) -> list[Tensor]:
        made = weights(within(grad.cuda()), apart(on_card(o)), fast=case.fast, ctas=case.ctas)
        return [x.cpu() for x in made]

    for seed in range(100):
        check(of_poisoned, drawn(seed))


@pytest.mark.parametrize("program", [SILU, CAUSAL.format(SILU)], ids=["silu", "causal"])
@pytest.mark.parametrize("dim", [192, 256])
def test_the_same_bits_each_time(dim: int, program: str) -> None:
    """A chunk of 8 heads."""
    case = Case("bits", program, d=dim, m=2048, n=2048, h=8)
    o = case.operands()
    grad, operands = gradient_of(case, o).cuda(), on_card(o)
    checks.check_bits(lambda: weights(grad, operands))


def test_a_graph_of_a_chunk() -> None:
    case = Case("graph", d=256, m=300, n=304, h=2)
    o = case.operands()
    grad, operands = gradient_of(case, o).cuda(), on_card(o)
    expected = weights(grad, operands)
    graph, results = checks.captured(lambda: weights(grad, operands))
    graph.replay()
    assert all(map(torch.equal, results, expected))


compiled = partial(checks.compiled, kernel="chunked")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("name", HEADS)
def test_training(name: str, dtype: torch.dtype) -> None:
    """It serves chunks whose keys are multiples of 8."""
    case = HEADS[name]
    served = case.sizes["m"] % 8 == 0
    counters.clear()
    for kept in (loop._RECORDINGS, block_pass.FIXED):  # of other tests: nothing would be lowered
        kept.clear()
    with config.patch(fx_graph_cache=False):
        assert not breach(case, compiled(case.function), dtype)
    found = {x: counters["gdpa"][f"weights_{x}"] for x in ("cute", "triton")}
    assert bool(found["cute"]) == served
    assert bool(found["triton"]) == (not served)


@pytest.mark.parametrize("length", [1024, 2048])
def test_long_training_at_wide_heads_goes_in_chunks(length: int) -> None:
    """By default, where the GPU takes longer than the CPU."""
    size = (32768 // length, 4, length, 256)
    given = [torch.randn(size, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    leaves = [x.requires_grad_() for x in given]
    counters.clear()
    model = torch.compile(lambda q, k, v: torch.nn.functional.silu(q @ k.mT) @ v, backend="gdpa")
    model(*leaves).sum().backward()
    found = {x: n for x, n in counters["gdpa"].items() if x.startswith("lowered_")}
    assert found == ({} if length == 1024 else {"lowered_cute": 1, "lowered_chunked": 1})
    assert all(x.grad.isfinite().all() for x in leaves)
