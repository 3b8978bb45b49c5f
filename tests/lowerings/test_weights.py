"""Which kernel computes P and dS of a chunk, and how the generated code calls CuTe's."""

import dataclasses
from functools import partial
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from gdpa_inductor import lowerings
from gdpa_inductor.kernels.cute import certificates
from gdpa_inductor.kernels.cute.weights import ctas_of
from gdpa_inductor.lowerings import blocked
from gdpa_inductor.lowerings import chunk_costs as costs
from gdpa_inductor.lowerings.cute import rules
from gdpa_inductor.lowerings.cute import weights as cute
from gdpa_inductor.lowerings.weights import choose
from gdpa_inductor.options import Options
from gdpa_inductor.problem import Problem
from gdpa_inductor.program.score_mod import ScoreMod
from tests.kernels import cute_recorders, render
from tests.kernels.cute_recorders import CTAS, STREAM, matrix, recorded, words
from tests.kernels.test_chunk_product import stored

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
SILU = "silu(mul(s,0.0625))"
CAUSAL = "where(ge(q_idx,kv_idx),silu(s),0.0)"
BIAS = "a0:f[h,q_idx,kv_idx]; silu(add(s,a0))"
MASK = "a0:b[b,q_idx,kv_idx]; where(a0,silu(s),0.0)"
ROWS = "a0:f[h,q_idx]; silu(add(s,a0))"
TWO = "a0:f[h,q_idx,kv_idx]; a1:f[b,q_idx,kv_idx]; silu(add(s,add(a0,a1)))"
GATE = "a0:f[h,q_idx]; mul(silu(s),a0)"

kernels = pytest.fixture(cute_recorders.recorders)
rooms = pytest.fixture(cute_recorders.rooms)


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


@pytest.mark.parametrize(("options", "kernel"), [("", "cute"), ("kernel=triton", "triton")])
def test_the_generated_code_of_a_chunk(options: str, kernel: str) -> None:
    pytest.importorskip("triton")
    blocked.register_product()
    work, given = stored(CAUSAL, 192, 256, cut="q_idx")
    counters.clear()
    code = render.wrapper(dataclasses.replace(work, options=options), given, decomposed=True)
    assert ("weights_weights_site(True)" in code) == (kernel == "cute")
    assert len(render.kernels(code)) == (kernel == "triton")
    assert counters["gdpa"][f"weights_{kernel}"] == 1


def test_heads_that_share_keys_reach_the_kernel_expanded() -> None:
    blocked.register_product()
    work, given = stored(SILU, 192, 192)
    given[2] = given[2][:1].expand(4, -1, -1)
    code = render.wrapper(dataclasses.replace(work, options=""), given, decomposed=True)
    assert "(2, 2, 2048, 192), (0, 0, 192, 1), 0)" in code


def test_a_call_is_replayed(kernels, rooms) -> None:
    """Also with heads that are expanded: the kernel is handed one."""
    b, h, m, n = 2, 4, 40, 72
    maker = partial(cute.weights_site, True)
    site = maker()
    for number in range(3):
        q, k, v, grad = (matrix(b, h, rows, 64) for rows in (m, n, n, m))
        k = k[:, :1].expand(-1, h, -1, -1)
        args = (grad, q, k, v, [], [], SILU, [True] * 3)
        made = site(*args, fast=True, skip=True)
        found = words(kernels[1])
        assert recorded(site) == 1 and len(kernels[1].launches) == number + 1
        assert found[:6] == [x.data_ptr() for x in (q, k, v, grad, *made)]
        assert found[6:12] == [b, h, 1, h, m, n]
        assert found[-2:] == [CTAS, STREAM]
        assert [tuple(x.shape) for x in made] == [(b, h, m, n)] * 2
        cute_recorders.check_first_run(maker, args, made, kernels[1], fast=True, skip=True)


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
    q = matrix(2, 4, 1024, dim)
    site = cute.weights_site(True)
    site(q, q, q, q, [], [], program, [True] * 3, fast=True, skip=True)
    assert words(kernels[1])[-2] == (2 * 4 * -(-1024 // rows) * 16 // 16 if more else CTAS)
