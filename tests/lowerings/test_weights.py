"""Which kernel computes P and dS of a chunk, and how chunks call CuTe's."""

import dataclasses
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from gdpa_inductor import lowerings
from gdpa_inductor.kernels.blocked.fused import StoredPass
from gdpa_inductor.kernels.cute import certificates
from gdpa_inductor.kernels.cute.weights import ctas_of
from gdpa_inductor.lowerings import chunk_costs as costs
from gdpa_inductor.lowerings.cute import rules
from gdpa_inductor.lowerings.cute.weights import Filling
from gdpa_inductor.lowerings.weights import choose, direct
from gdpa_inductor.options import Options
from gdpa_inductor.problem import Problem
from gdpa_inductor.program.score_mod import ScoreMod
from tests.kernels import cute_recorders
from tests.kernels.cute_recorders import CTAS, STREAM, matrix, words
from tests.kernels.test_chunk_product import stored

CUDA = torch.device("cuda", 0)
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
SILU = "silu(mul(s,0.0625))"
CAUSAL = "where(ge(q_idx,kv_idx),silu(s),0.0)"
BIAS = "a0:f[h,q_idx,kv_idx]; silu(add(s,a0))"
MASK = "a0:b[b,q_idx,kv_idx]; where(a0,silu(s),0.0)"
ROWS = "a0:f[h,q_idx]; silu(add(s,a0))"
TWO = "a0:f[h,q_idx,kv_idx]; a1:f[b,q_idx,kv_idx]; silu(add(s,add(a0,a1)))"
GATE = "a0:f[h,q_idx]; mul(silu(s),a0)"

kernels = pytest.fixture(cute_recorders.recorders)


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Hopper GPU, on which CuTe DSL is installed."""
    monkeypatch.setattr(rules, "installed", lambda: "4.8.1")
    monkeypatch.setattr(certificates, "objection", lambda *_: "")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))


def problem(program: str = SILU, **changes: Any) -> Problem:
    mod = ScoreMod.parse(program)
    aux = tuple({"f": BF16, "b": torch.bool, "i": torch.int64}[x.kind] for x in mod.aux)
    made = Problem(
        program=mod, device=torch.device("cuda"), dtype=BF16, value_dtype=BF16, aux_dtypes=aux,
        batch=2, heads=4, key_heads=4, value_heads=4, rows=1024, cols=1024, head_dim=256,
        value_dim=192, training=True, needs=(True, True, True, *[False] * len(aux)),
        places=(1,) * len(aux),
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


TAKEN = {
    "silu": problem(),
    "causal": problem(CAUSAL, dtype=F16, value_dtype=F16),
    "bias": problem(BIAS),
    "bias of rows": problem(ROWS, aux_dtypes=(F32,)),
    "query or key": problem(needs=(False, True, True)),
}
LEFT = {
    "multiples of 8": problem(cols=1020),
    "no other terms": problem(GATE, needs=(True,) * 4),
    "no other terms, P alone": problem(needs=(False, False, True)),
    "that a mask tensor hides": problem(MASK),
    "one by one": problem(BIAS, aux_dtypes=(F32,)),
    "one by one, two": problem(TWO),
    "takes no row sums": problem("t0=relu(s); r=t0; t0"),
    "query is torch.bfloat16": problem(value_dtype=F16),
}


@pytest.mark.parametrize("name", TAKEN)
def test_cute_computes_p_and_ds(name: str) -> None:
    for kernel in ("auto", "cute", "chunked"):
        assert choose(TAKEN[name], kernel).kernel == "cute"
    assert choose(TAKEN[name], "triton").kernel == "triton"


@pytest.mark.parametrize("reason", LEFT)
def test_triton_computes_the_others(reason: str) -> None:
    choice = choose(LEFT[reason], "auto")
    assert choice.kernel == "triton" and reason.split(",")[0] in choice.reason


def test_a_slow_operand_is_no_obstacle_by_name() -> None:
    assert choose(LEFT["one by one"], "cute").kernel == "cute"


def test_a_certificate_that_failed_leaves_it_to_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "objection", lambda *_: "it failed")
    assert choose(problem(), "auto").kernel == "triton"
    assert choose(problem(), "cute").kernel == "cute"


def test_without_cutlass_triton_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "installed", lambda: None)
    assert choose(problem(), "auto").kernel == "triton"


def test_blackwell_has_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (10, 0))
    choice = choose(problem(), "auto")
    assert choice.kernel == "triton" and "no kernel for Blackwell" in choice.reason


def test_reports_and_estimates_know_which_kernel_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the backward is known, so is which gradients it has."""
    long = {"needs": (), "batch": 32, "rows": 2048}
    cases = {"CuTe": problem(**long), "Triton": problem(**long, cols=1020)}
    for name, case in cases.items():
        choice = lowerings.choose(case, Options(kernel="chunked", profit=False))
        assert f"launches, P and dS by {name}" in choice.reason
    before = {name: costs.estimate(case).chunked for name, case in cases.items()}
    monkeypatch.setattr(costs, "RATES", dataclasses.replace(costs.RATES, both_cute=1e20))
    after = {name: costs.estimate(case).chunked for name, case in cases.items()}
    assert after["CuTe"] < before["CuTe"] and after["Triton"] == before["Triton"]


@pytest.mark.parametrize("dim", [192, 256])
@pytest.mark.parametrize(("rows", "pays"), [(1024, False), (2048, True), (8192, True)])
def test_training_pays_from_2048_tokens_on(dim: int, rows: int, pays: bool) -> None:
    """As calls of 32,768 tokens: below, the CPU takes longer to launch chunks than the GPU."""
    sizes = {"batch": 32768 // rows, "rows": rows, "cols": rows}
    case = problem(needs=(), **sizes, head_dim=dim, value_dim=dim)
    assert bool(lowerings.choose(case, Options())) == pays
    assert lowerings.choose(case, Options(profit=False))
    assert not lowerings.choose(dataclasses.replace(case, cols=rows - 4), Options())  # Triton's
    assert not lowerings.choose(dataclasses.replace(case, key_heads=1, value_heads=1), Options())
    biased = problem(BIAS, needs=(), **sizes, head_dim=dim, value_dim=dim)
    assert not lowerings.choose(biased, Options()), "the sums of its gradient cost more"


@pytest.mark.parametrize("side", ["rows", "cols"])
def test_short_sides_were_not_measured(side: str) -> None:
    """As those of pooling: a tile of 128 queries would be half empty."""
    sizes = {"batch": 256, "rows": 8192, "cols": 8192, side: 64}
    case = problem(needs=(), **sizes)
    assert not lowerings.choose(case, Options())
    assert lowerings.choose(case, Options(profit="memory"))


@pytest.mark.parametrize(("options", "kernel"), [("", "cute"), ("kernel=triton", "triton")])
def test_a_chunk_calls_the_kernel_that_was_chosen(options: str, kernel: str) -> None:
    chunk, given = stored(CAUSAL, 192, 256, cut="q_idx")
    counters.clear()
    found = direct(dataclasses.replace(chunk, options=options), given[:4], given[4:], CUDA)
    assert isinstance(found, Filling) == (kernel == "cute")
    assert (found is None) == (kernel == "triton")
    assert counters["gdpa"][f"weights_{kernel}"] == 1


def test_devices_without_kernels_compute_the_formula() -> None:
    chunk, given = stored(CAUSAL, 192, 256, cut="q_idx")
    assert direct(chunk, given[:4], given[4:], torch.device("cpu")) is None


def filling(program: str = SILU, heads: int = 4) -> Filling:
    return Filling(StoredPass(ScoreMod.parse(program), (True,) * 3, heads, ""))


def units(rows: int, dim: int = 64, count: int = 8) -> torch.Tensor:
    return matrix(count, rows, dim)


def test_a_chunk_is_replayed(kernels) -> None:
    """Into the memory that it is given. Of heads that are expanded the kernel is handed one."""
    m, n = 40, 72
    kernel = filling()
    for number in range(3):
        q, grad, k = units(m), units(m), units(n, count=1).expand(8, -1, -1)
        v, made = units(n), [matrix(2, 4, m, n) for _ in range(2)]
        kernel(q, k, v, grad, *made)
        assert kernel.replay is not None and len(kernels[1].launches) == number + 1
        found = words(kernels[1])
        assert found[:6] == [x.data_ptr() for x in (q, k, v, grad, *made)]
        assert found[6:12] == [2, 4, 1, 4, m, n]
        assert found[-2:] == [CTAS, STREAM]


def test_a_chunk_in_a_misaligned_place_runs_anew(kernels) -> None:
    """It may have to copy, which no replay does."""
    kernel = filling()
    made = [matrix(2, 4, 40, 72) for _ in range(2)]
    moved = torch.zeros(8 * 40 * 64 + 1, dtype=BF16)[1:].view(8, 40, 64)
    for query in (units(40), moved, units(40), moved):
        kernel(query, units(72), units(72), units(40), *made)
        assert words(kernels[1])[0] % 16 == 0
        assert (words(kernels[1])[0] == query.data_ptr()) == (query is not moved)


@pytest.mark.parametrize(
    ("tiles", "across", "ctas"),
    [
        (8 * 16 * 32, 32, 128),  # 8 heads of 2048: a CTA has all keys of its queries
        (32 * 8 * 16, 16, 128),  # 32 heads of 1024: of two times 128 queries
        (32 * 128, 128, 128),  # 4096 queries and 8192 keys: a quarter of the keys
        (4 * 132, 4, 132),
        (7 * 1000, 1000, 132),  # all keys of some queries would be too few CTAs
        (5, 5, 132),
    ],
)
def test_few_ctas_come_to_other_queries(tiles: int, across: int, ctas: int) -> None:
    assert ctas_of(tiles, across, 132) == ctas


@pytest.mark.parametrize(("program", "more"), [(SILU, False), (CAUSAL, True)])
@pytest.mark.parametrize(("dim", "rows"), [(192, 192), (256, 128)])
def test_a_mask_has_more_ctas_than_run_at_once(
    dim: int, rows: int, program: str, more: bool, kernels
) -> None:
    q, made = units(1024, dim), [matrix(2, 4, 1024, 1024) for _ in range(2)]
    filling(program)(q, q, q, q, *made)
    assert words(kernels[1])[-2] == (2 * 4 * -(-1024 // rows) * 16 // 16 if more else CTAS)
