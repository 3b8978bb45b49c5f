"""The Hopper forward kernel, on the card, against the formula in fp64."""

import dataclasses

import pytest
import torch

from tests.tolerances import error_of

pytest.importorskip("cutlass")
pytestmark = pytest.mark.cuda

from gdpa_inductor import gdpa_backend  # noqa: E402
from gdpa_inductor._compat import dynamo  # noqa: E402
from gdpa_inductor._compat.streams import current_stream  # noqa: E402
from gdpa_inductor.kernels.cute import launch  # noqa: E402
from gdpa_inductor.kernels.cute.order import longest_first  # noqa: E402
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config  # noqa: E402
from gdpa_inductor.operands import Operands  # noqa: E402
from gdpa_inductor.ops import operands_of  # noqa: E402
from tests.kernels.cute_cases import CASES, MORE, SELF, Case, eager, exact, unwritten  # noqa: E402


@pytest.fixture(autouse=True)
def hopper() -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs compute capability 9.0")


def forward(case: Case, o: Operands[torch.Tensor]) -> torch.Tensor:
    """O of a case, on the CPU, NaN where nothing was stored."""
    x = o.filled([y.cuda() if isinstance(y, torch.Tensor) else y for y in o.flat()])
    out = torch.full_like(unwritten(case, o), torch.nan).cuda()
    launch.forward(x, fast=case.fast, ctas=case.ctas, out=out)
    return out.cpu()


@pytest.mark.parametrize("case", [*CASES, *MORE], ids=lambda case: case.name)
def test_forward(case: Case) -> None:
    o = case.operands()
    wrong = error_of(forward(case, o), eager(o), exact(o), direction="forward")
    assert wrong is None, wrong


def test_neighbours_do_not_leak() -> None:
    """Sequences that are NaN from end to end leave the others as they are."""
    case = Case("neighbours", d=64, q_lengths=SELF, k_lengths=SELF)
    clean, poisoned = case.operands(), case.operands()
    for matrix in (poisoned.query, poisoned.key, poisoned.value):
        matrix[:300] = torch.nan
    kept = forward(case, clean)[300:]
    assert torch.equal(forward(case, poisoned)[300:], kept)
    assert kept.isfinite().all()


@pytest.mark.parametrize("dim", [8, 32, 40, 64, 72, 96, 128])
def test_exact_on_integers(dim: int) -> None:
    """Small integers and relu: every product is exact, so a wrong index is a gross error."""
    case = Case("integers", "relu(s)", d=dim, m=300, n=300, h=2, dtype=torch.float16)
    o = case.operands()
    for matrix in (o.query, o.key, o.value):
        matrix.copy_(torch.randint(0, 8, matrix.shape) // 7)
    assert torch.equal(forward(case, o), exact(o).to(torch.float16))


def test_rows_of_no_sequence_are_zero() -> None:
    """Before the first sequence, behind the last, past the most rows of one. The last offset is
    lower than the one before: that sequence owns nothing."""
    case = Case("gaps", h=3, q_lengths=SELF, k_lengths=SELF)
    o = case.operands()
    cu = torch.tensor([37, 100, 400, 450, 1000, 900], dtype=torch.int32)
    q, k, v = (torch.randn(2000, 3, 128).bfloat16() for _ in range(3))
    o = dataclasses.replace(o, query=q, key=k, value=v, cu_seqlens_q=cu, cu_seqlens_k=cu)
    o = dataclasses.replace(o, max_seqlen_q=200, max_seqlen_k=200)
    out = forward(case, o)
    owned = torch.zeros(2000, dtype=torch.bool)
    for first, end in ((37, 100), (100, 300), (400, 450), (450, 650)):
        owned[first:end] = True
    assert not out[~owned].any()
    assert out[owned].isfinite().all() and out[owned].any(-1).all()


@pytest.mark.parametrize("batch", [1, 7, 33, 1152, 9000])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_longest_sequences_come_first(batch: int, dtype: torch.dtype) -> None:
    lengths = torch.randint(0, 50, (batch,))
    cu = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(dtype).cuda()
    o = operands_of(*[torch.empty(int(cu[-1]), 1, 64)] * 3, [], [], "s", cu, cu, 50, 50)
    found = longest_first(o, Sm90Config("bfloat16", 64, 64, "s"), current_stream(0))
    assert found is not None
    assert torch.equal(found.cpu(), torch.argsort(lengths, descending=True, stable=True))


def test_the_same_bits_each_time() -> None:
    case = Case("bits", m=1100, n=1300, h=3, b=2, ctas=0)
    o = case.operands()
    first = forward(case, o)
    assert all(torch.equal(forward(case, o), first) for _ in range(20))


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(q @ k.mT * 0.088) @ v


def test_a_training_step() -> None:
    """Through torch.compile, in both directions."""
    torch.manual_seed(0)
    given = [torch.randn(2, 3, 300, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    direction = torch.randn_like(given[0])

    def step(function, tensors: list[torch.Tensor], g: torch.Tensor) -> list[torch.Tensor]:
        leaves = [x.detach().requires_grad_() for x in tensors]
        out = function(*leaves)
        return [out.detach(), *torch.autograd.grad(out, leaves, g)]

    dynamo.counters.clear()
    compiled = torch.compile(attend, backend=gdpa_backend, options={"gdpa.kernel": "cute"})
    fused = step(compiled, given, direction)
    assert dynamo.counters["gdpa"]["lowered_cute"] == 2
    plain = step(attend, given, direction)
    wide = step(attend, [x.double() for x in given], direction.double())
    for i, found in enumerate(zip(fused, plain, wide, strict=True)):
        wrong = error_of(*found, direction="backward" if i else "forward")
        assert wrong is None, wrong


def test_in_a_cuda_graph_and_on_a_second_stream() -> None:
    q, k, v = (torch.randn(1, 2, 300, 64, device="cuda").bfloat16() for _ in range(3))
    run = lambda: launch.forward(operands_of(q, k, v, [], [], "silu(s)"))
    expected = run()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        beside = run()
    stream.synchronize()
    assert torch.equal(beside, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    captured.fill_(float("nan"))
    graph.replay()
    assert torch.equal(captured, expected)
