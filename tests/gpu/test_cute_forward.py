"""The Hopper forward kernel, on the card, against the formula in fp64."""

import dataclasses

import pytest
import torch

pytest.importorskip("cutlass")
pytestmark = pytest.mark.cuda

from gdpa_inductor import gdpa_backend  # noqa: E402
from gdpa_inductor._compat import dynamo  # noqa: E402
from gdpa_inductor._compat.device import current_stream  # noqa: E402
from gdpa_inductor.kernels.cute import launch  # noqa: E402
from gdpa_inductor.kernels.cute.launch import longest_first  # noqa: E402
from gdpa_inductor.kernels.cute.plan import plan_of  # noqa: E402
from gdpa_inductor.kernels.cute.replay import Record  # noqa: E402
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config  # noqa: E402
from gdpa_inductor.operands import Operands, gathered  # noqa: E402
from gdpa_inductor.ops import operands_of  # noqa: E402
from tests.gpu.checks import captured, check_bits, check_step, hopper, on_card  # noqa: E402, F401
from tests.kernels.cute_cases import (  # noqa: E402
    BF16,
    CASES,
    CAUSAL,
    F16,
    MORE,
    SELF,
    SILU,
    Case,
    check_gaps,
    check_integers,
    check_neighbours,
    check_output,
    unwritten,
    with_gaps,
)
from tests.kernels.cute_paged_cases import CASES as PAGED  # noqa: E402
from tests.kernels.cute_paged_cases import check_missing_page  # noqa: E402

BIASED = "a0:f[{}]; silu(add(mul(s,0.1),a0))"
HEADS, ALL = BIASED.format("h,q_idx,kv_idx"), BIASED.format("b,h,q_idx,kv_idx")
BATCH, ONE = BIASED.format("b,-,q_idx,kv_idx"), BIASED.format("-,-,q_idx,kv_idx")
CAUSAL_BIAS = "a0:f[h,q_idx,kv_idx]; " + CAUSAL.format("sigmoid(add(s,a0))")
TWO = "a0:f[h,q_idx,kv_idx]; a1:f[b,h,q_idx,kv_idx]; silu(add(add(mul(s,0.1),a0),a1))"
JAGGED = {"q_lengths": SELF, "k_lengths": SELF}

# The bias comes in tiles: its rows are multiples of 16 bytes apart.
TILED = (
    Case("heads", HEADS, m=384, n=512, h=3),
    Case("batch, heads", ALL, m=256, n=384, b=2, h=2),
    Case("batch", BATCH, m=256, n=256, b=3, h=2),
    Case("one for all", ONE, m=256, n=256, b=2, h=2),
    Case("tails", HEADS, m=200, n=328, b=2, h=2),
    Case("half a block", HEADS, m=130, n=136, h=2),
    Case("one row", HEADS, m=1, n=8, h=2),
    Case("D 64", ALL, d=64, m=200, n=1000, b=2, h=2),
    Case("D 96, fp16", ALL, d=96, m=200, n=328, b=2, dtype=F16),
    Case("D 128, Dv 64", HEADS, d=128, dv=64, m=200, n=328),
    Case("D 40, Dv 128", HEADS, d=40, dv=128, m=200, n=328),
    Case("causal", CAUSAL_BIAS, m=520, n=520, h=2),
    Case("causal, D 64", CAUSAL_BIAS, d=64, m=648, n=520, h=2),
    Case("causal, fewer rows", CAUSAL_BIAS, m=72, n=520, h=9),
    Case("grouped", HEADS, m=200, n=328, h=4, hk=2),
    Case("jagged", HEADS, h=2, **JAGGED, most=304),
    Case("jagged, by sequence", ALL, h=2, **JAGGED, most=304),
    Case("jagged, causal, D 64", CAUSAL_BIAS, d=64, h=2, **JAGGED, ctas=2, most=304),
    Case("short keys", ALL, b=4, n=192, q_lengths=SELF),
    Case("seeds", BATCH, d=64, b=4, m=32, shared="q", k_lengths=SELF, most=304),
    Case("two", TWO, m=200, n=328, b=2, h=2, aux=(BF16, torch.float32)),
    Case("two in 16 bits", TWO, m=200, n=328, b=2, h=2),
    Case("the second of two", TWO, m=200, n=328, b=2, h=2, aux=(torch.float32, BF16)),
    Case("many tiles", HEADS, m=1100, n=1304, b=3, h=2, ctas=5),
)  # fmt: skip

# At head dim 64 a CTA has three query tiles of 64 rows.
ROWS = (1, 63, 64, 65, 128, 129, 192, 193, 320, 400, 1000)
EIGHTH = "silu(mul(s,0.125))"  # a power of two, which queries are multiplied by
TARGETS = "a0:i[b]; where(or(eq(q_idx,kv_idx),and(gt(q_idx,kv_idx),lt(kv_idx,a0))),silu(s),0.0)"
WINDOW = "where(and(ge(q_idx,kv_idx),lt(sub(q_idx,kv_idx),100)),silu(s),0.0)"
THREE = (
    *(Case(f"{m} rows", d=64, m=m, n=600, h=4, hk=2, ctas=3) for m in ROWS),
    *(Case(f"{m} rows, causal", CAUSAL.format(SILU), d=64, m=m, n=m, h=3) for m in ROWS),
    *(
        Case(f"{m} rows, bias", HEADS, d=64, m=m, n=520, h=2, hk=1)
        for m in ROWS
    ),
    Case("a CTA for all", d=64, m=1000, n=1100, b=2, h=4, ctas=1),
    Case("two CTAs, fp16", d=64, m=1000, n=520, h=4, hk=1, dtype=F16, ctas=2),
    Case("a CTA a tile", d=64, m=1000, n=1100, b=2, h=4, ctas=0),
    Case("more CTAs than tiles", d=64, m=193, n=70, h=2, ctas=132),
    Case("head dims 32, 64", d=32, dv=64, m=400, n=400, h=2),
    Case("head dims 64, 8", d=64, dv=8, m=400, n=400, h=2),
    Case("one key", d=64, m=1000, n=1, h=3, ctas=2),
    Case("scaled queries", EIGHTH, d=64, m=1000, n=1100, h=4, hk=2, ctas=3),
    Case("scaled queries, causal", CAUSAL.format(EIGHTH), d=64, m=1000, n=1000, h=3, ctas=0),
    Case("scaled queries, jagged", EIGHTH, d=64, h=2, q_lengths=ROWS, k_lengths=ROWS, ctas=3),
    Case("tanh-gelu", "gelu_tanh(mul(s,0.125))", d=64, m=1000, n=1100, h=2, ctas=3),
    Case("mish", "mish(mul(s,0.125))", d=64, m=300, n=300, h=4),
    Case("softplus, scaled", "mul(softplus(s,1.0,20.0),div(1.0,float(i0)))", d=64, m=300, n=300,
         h=4, scalars=(300,)),
    Case("targets", TARGETS, d=64, h=4, q_lengths=SELF, k_lengths=SELF),
    Case("causal, many CTAs", CAUSAL.format(SILU), d=64, m=1000, n=1000, b=2, h=4, ctas=0),
    Case("causal, fewer keys", CAUSAL.format(SILU), d=64, m=1000, n=300, h=2),
    Case("causal, fewer rows", CAUSAL.format(SILU), d=64, m=300, n=1000, h=2),
    Case("causal, 66 units", CAUSAL.format(SILU), d=64, m=400, n=400, h=66, ctas=7),
    Case("window", WINDOW, d=64, m=1000, n=1000, h=2, ctas=2),
    Case("jagged", d=64, h=4, hk=2, q_lengths=ROWS, k_lengths=ROWS, ctas=4),
    Case("jagged, other keys", d=64, h=2, q_lengths=ROWS, k_lengths=ROWS[::-1], ctas=0),
    Case("jagged, causal", CAUSAL.format(SILU), d=64, h=2, q_lengths=ROWS, k_lengths=ROWS),
    Case("jagged, most 193", d=64, h=2, q_lengths=ROWS, k_lengths=ROWS, most=193, ctas=2),
    Case("jagged, bias", HEADS, d=64, h=2, q_lengths=ROWS, k_lengths=ROWS, ctas=3),
    Case("jagged keys", d=64, b=11, m=400, h=2, k_lengths=ROWS, ctas=5),
)  # fmt: skip


def forward(case: Case, o: Operands[torch.Tensor]) -> torch.Tensor:
    """O of a case, on the CPU, NaN where nothing was stored."""
    out = torch.full_like(unwritten(o), torch.nan).cuda()
    launch.forward(on_card(o), fast=case.fast, ctas=case.ctas, out=out)
    return out.cpu()


def check_forward(case: Case, o: Operands[torch.Tensor]) -> None:
    check_output(forward(case, o), o)


@pytest.mark.parametrize("case", [*CASES, *MORE], ids=lambda case: case.name)
def test_forward(case: Case) -> None:
    check_forward(case, case.operands())


@pytest.mark.parametrize("case", PAGED, ids=lambda case: case.name)
def test_keys_in_pages(case: Case) -> None:
    o = case.operands()
    check_output(forward(case, o), gathered(o))


@pytest.mark.parametrize("page", [16, 128])
def test_a_page_that_is_not_there_is_nan(page: int) -> None:
    check_missing_page(forward, page, -1)


@pytest.mark.parametrize("case", TILED, ids=lambda case: case.name)
def test_a_bias_in_tiles(case: Case) -> None:
    o = case.operands()
    assert plan_of(o, True, True, Sm90Config).config.tiled is not None
    check_forward(case, o)


@pytest.mark.parametrize("case", THREE, ids=lambda case: case.name)
def test_three_query_tiles(case: Case) -> None:
    o = case.operands()
    assert plan_of(o, True, True, Sm90Config).config.tiles == 3
    check_forward(case, o)


def test_an_expanded_bias() -> None:
    """Its stride is 0, which TMA is not asked for."""
    case = Case("expanded", ALL, m=200, n=328, b=2, h=2)
    o = case.operands()
    o = dataclasses.replace(o, aux=[o.aux[0][:1].expand(2, -1, -1, -1)])
    assert plan_of(o, True, True, Sm90Config).config.tiled is None
    check_forward(case, o)


def test_a_bias_past_the_ends_of_a_sequence_is_not_seen() -> None:
    case = Case("ends", ALL, h=2, **JAGGED, most=304)
    clean, poisoned = case.operands(), case.operands()
    for bias, rows in zip(poisoned.aux[0], SELF, strict=True):
        bias[:, rows:] = torch.nan
        bias[:, :, rows:] = torch.nan
    assert torch.equal(forward(case, poisoned)[: sum(SELF)], forward(case, clean)[: sum(SELF)])


@pytest.mark.parametrize("dim", [8, 32, 64, 96, 128])
def test_a_bias_is_exact_on_integers(dim: int) -> None:
    """Each number of the bias has to meet its own score."""
    check_integers(forward, "a0:f[h,q_idx,kv_idx]; relu(add(s,a0))", d=dim, m=300, n=296)


def test_neighbours_do_not_leak() -> None:
    check_neighbours(forward, 64)


@pytest.mark.parametrize("dim", [8, 32, 40, 64, 72, 96, 128])
def test_exact_on_integers(dim: int) -> None:
    check_integers(forward, d=dim, m=300, n=300)


def test_rows_of_no_sequence_are_zero() -> None:
    case = Case("gaps", h=3, q_lengths=SELF, k_lengths=SELF)
    o, owned = with_gaps(case)
    check_gaps(forward(case, o), owned)


@pytest.mark.parametrize("batch", [1, 7, 33, 1152, 9000])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_longest_sequences_come_first(batch: int, dtype: torch.dtype) -> None:
    lengths = torch.randint(0, 50, (batch,))
    cu = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(dtype).cuda()
    o = operands_of(*[torch.empty(int(cu[-1]), 1, 64)] * 3, [], [], "s", cu, cu, 50, 50)
    config = Sm90Config("bfloat16", 64, 64, "s")
    results = longest_first(o, config, current_stream(0), Record(fails=True))
    assert results is not None
    *order, taken = results.tolist()
    assert order == torch.argsort(lengths, descending=True, stable=True).tolist() and taken == 0


def test_the_same_bits_each_time() -> None:
    same_bits(Case("bits", m=1100, n=1300, h=3, b=2, ctas=0))
    same_bits(Case("bits of three", d=64, m=1100, n=1300, h=3, b=2, ctas=0))
    same_bits(Case("bits of a bias", HEADS, m=1100, n=1304, h=3, b=2, ctas=0))


def same_bits(case: Case) -> None:
    o = case.operands()
    check_bits(lambda: [forward(case, o)])


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(q @ k.mT * 0.088) @ v


def step(function, tensors: list[torch.Tensor], g: torch.Tensor) -> list[torch.Tensor]:
    """O and the gradients of query, key and value."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, g)]


def test_a_training_step() -> None:
    """Through torch.compile, in both directions."""
    torch.manual_seed(0)
    inputs = [torch.randn(2, 3, 300, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    direction = torch.randn_like(inputs[0])

    dynamo.counters.clear()
    compiled = torch.compile(attend, backend=gdpa_backend, options={"gdpa.kernel": "cute"})
    fused = step(compiled, inputs, direction)
    assert dynamo.counters["gdpa"]["lowered_cute"] == 2
    plain = step(attend, inputs, direction)
    wide = step(attend, [x.double() for x in inputs], direction.double())
    check_step(fused, plain, wide)


def test_in_a_cuda_graph_and_on_a_second_stream() -> None:
    q, k, v = (torch.randn(1, 2, 300, 64, device="cuda").bfloat16() for _ in range(3))
    run = lambda: launch.forward(operands_of(q, k, v, [], [], "silu(s)"))
    expected = run()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        beside = run()
    stream.synchronize()
    assert torch.equal(beside, expected)
    graph, results = captured(run)
    results.fill_(float("nan"))
    graph.replay()
    assert torch.equal(results, expected)
