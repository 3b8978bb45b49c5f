"""Which kernel a problem gets, and the reasons of a refusal."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from gdpa_inductor import lowerings
from gdpa_inductor.lowerings import chunk_costs as cost
from gdpa_inductor.options import Options
from gdpa_inductor.problem import Problem
from gdpa_inductor.program.score_mod import ScoreMod
from gdpa_inductor.rejection import Code

CAUSAL = "where(ge(q_idx,kv_idx),silu(s),0.0)"
JAGGED = {"jagged_query": True, "jagged_key": True}
BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))


def problem(
    dtype=BF16, d=128, dv=None, m=1024, n=1024, device="cuda", training=True, value=None, aux=(),
    program="silu(s)", **others,
):  # fmt: skip
    return Problem(
        program=ScoreMod.parse(program), device=torch.device(device), dtype=dtype,
        value_dtype=value or dtype, aux_dtypes=tuple(aux), batch=8, heads=4, key_heads=4,
        value_heads=4, rows=m, cols=n, head_dim=d, value_dim=dv or d, training=training,
        **others,
    )  # fmt: skip


ACCEPTED = [
    (problem(m=512), "triton"),
    (problem(torch.float16, m=64, n=64), "triton"),
    (problem(d=24, dv=80), "triton"),
    (problem(d=256, m=512, training=False), "triton"),
    (problem(m=1, n=4096, training=False), "triton"),
    (problem(m=1, n=4096, jagged_key=True), "triton"),
    (problem(device="cpu", dtype=F64), "cpu"),
    (problem(device="cpu", dtype=torch.float16, m=64, n=64), "cpu"),
    # Of 8 samples and 4 heads: 32 MiB, 18, of which a causal mask leaves half out, and 512.
    (problem(device="cpu", dtype=F32, m=512, n=512), "cpu"),
    (problem(device="cpu", dtype=F32, m=384, n=384, training=False), "cpu"),
    (problem(device="cpu", dtype=F32, m=384, n=384, program=CAUSAL), "cpu"),
    (problem(device="cpu", m=2896, n=2912), "cpu"),
    (problem(device="cpu", dtype=F32, m=33, n=33, **JAGGED), "cpu"),
    (problem(device="cpu", dtype=F32, m=8, n=8, training=False, **JAGGED), "cpu"),
]


@pytest.mark.parametrize("case, kernel", ACCEPTED)
def test_accepted(case: Problem, kernel: str):
    choice = lowerings.choose(case, Options())
    assert choice
    assert choice.kernel == kernel
    assert kernel in str(choice)


# No fused kernel takes these, or pays on them.
LEFT = [
    problem(dv=1024),
    problem(d=320),
    problem(F32),
    problem(F32, d=64, dv=256),
    problem(F64, training=False, m=4096, n=4096),
    problem(dv=512, m=1 << 20, n=1 << 20),  # a list of all chunks would not end
]


TABLE = "a0:f[t]; silu(add(s,lookup(a0,sub(q_idx,kv_idx))))"


def test_chunks_on_a_gpu_add_no_gradients_of_tables():
    """Their additions have no fixed order there. A forward and a CPU are fine."""
    table = {"dtype": F64, "aux": (F64,), "program": TABLE, "places": (9,)}
    refusal = lowerings.choose(problem(**table), Options(kernel="chunked", profit=False))
    assert not refusal and refusal.code is Code.LOWERING
    assert "gradient of a looked-up table" in refusal.reason
    for others in ({"training": False}, {"device": "cpu"}):
        choice = lowerings.choose(
            problem(**table, **others), Options(kernel="chunked", profit=False)
        )
        assert choice.kernel == "chunked"


def test_a_table_is_no_operand_that_is_stored_for_all_scores():
    program = "a0:f[h,t]; a1:f[h]; mul(a1,silu(add(s,lookup(a0,sub(q_idx,kv_idx)))))"
    case = problem(aux=(F32, F32), program=program, places=(9, 1))
    assert case.aux_bytes(0) == 4 * 9 * 4 and case.aux_bytes(1) == 4 * 4
    assert case.stored_aux() == []


@pytest.mark.parametrize("case", LEFT)
def test_chunks_can_be_asked_for_by_name(case: Problem):
    choice = lowerings.choose(case, Options(kernel="chunked", profit=False))
    assert choice
    assert choice.kernel == "chunked"
    assert " launches" in str(choice)


@pytest.mark.parametrize("case", [problem(F64), problem(d=320), problem(F32, d=256)])
def test_without_profit_chunks_take_what_no_kernel_takes(case: Problem):
    assert not lowerings.choose(case, Options())
    assert lowerings.choose(case, Options(profit=False)).kernel == "chunked"


@pytest.mark.parametrize("length", [1024, 2048, 4096, 8192])
@pytest.mark.parametrize("width, least", [(1024, 4096), (1536, 2048)])
def test_long_inference_with_wide_values_goes_in_chunks(length: int, width: int, least: int):
    """Else the CPU needs longer for its launches than stock Inductor needs for all. So it does in
    training."""
    case = problem(dv=width, m=length, n=length, training=False)
    choice = lowerings.choose(case, Options())
    assert bool(choice) is (length >= least)
    assert not choice or choice.kernel == "chunked"
    assert not lowerings.choose(replace(case, training=True), Options())


def test_training_with_a_crowded_table_goes_in_chunks():
    """Stock adds the gradient of each bias element to a small table, one after the other."""
    case = problem(
        dv=1024, m=4096, n=4096, aux=(F32,), program="a0:f[q_idx,kv_idx]; silu(add(s,a0))"
    )
    assert not lowerings.choose(case, Options())
    crowded = replace(case, crowded=4 * 4096 * 4096)
    assert lowerings.choose(crowded, Options()).kernel == "chunked"


def test_chunks_of_sizes_that_vary_are_left_to_who_asks():
    """Each call plans them anew."""
    wide = problem(dv=1032, m=4096, n=4096, training=False)  # CuTe's slices are of equal width
    varying = replace(wide, rows=symbolic(4096))
    assert lowerings.choose(wide, Options()).kernel == "chunked"
    assert not lowerings.choose(varying, Options())
    assert lowerings.choose(varying, Options(profit=False)).kernel == "chunked"


def symbolic(size: int) -> torch.SymInt:
    source = torch._dynamo.source.ConstantSource("size")
    env = torch.fx.experimental.symbolic_shapes.ShapeEnv()
    return env.create_symintnode(env.create_symbol(size, source), hint=size)


@pytest.mark.parametrize("device", ["xpu", "mps"])
def test_other_gpus_take_chunks_by_name_only(device: str):
    """They have not been run there."""
    case = problem(dv=1024, m=4096, n=4096, device=device, training=False)
    assert lowerings.choose(case, Options(profit=False)).code is Code.DEVICE
    assert lowerings.choose(case, Options(kernel="chunked")).kernel == "chunked"


REFUSED = [
    (problem(F64), Code.DTYPE, "float64"),
    (problem(value=F32), Code.DTYPE, "takes one"),
    (problem(aux=(torch.complex64,)), Code.DTYPE, "complex64"),
    (problem(program="a0:f[t]; add(s,lookup(a0,int(s)))", aux=(F32,)), Code.LOWERING, "score"),
    (problem(d=320), Code.HEAD_DIM, "320"),
    (problem(dv=512), Code.HEAD_DIM, "512"),
    (problem(device="meta"), Code.DEVICE, "meta"),
    (problem(d=256), Code.SLOWER, "training with head dim 256"),
    (problem(d=256, training=False, m=64), Code.SLOWER, "256 rows and keys"),
    (problem(m=1, n=4096), Code.TOO_SMALL, "one query row"),
    (problem(F32, m=1, n=1 << 20, device="cpu", training=False), Code.TOO_SMALL, "one query row"),
    (problem(F32), Code.SLOWER, "fp32 without TF32"),
    (problem(F32, d=136), Code.HEAD_DIM_LARGE, "minutes to compile"),
    (problem(F32, d=64, dv=256), Code.HEAD_DIM_LARGE, "a head dim of 256"),
    (problem(F32, m=511, n=512, device="cpu"), Code.SLOWER, "pays from 32 MiB"),
    (problem(F32, m=256, n=256, device="cpu", training=False), Code.SLOWER, "the scores are 8 MiB"),
    (problem(F32, m=256, n=256, device="cpu", program=CAUSAL), Code.SLOWER, "from 16 MiB"),
    (problem(m=2048, n=2047, device="cpu"), Code.SLOWER, "from 256 MiB"),
    (problem(F32, m=32, n=32, device="cpu", **JAGGED), Code.SLOWER, "from 33 rows"),
    (problem(F32, dv=512, device="cpu"), Code.HEAD_DIM_LARGE, "a head dim of 512"),
]


@pytest.mark.parametrize("case, code, word", REFUSED)
def test_refused(case: Problem, code: Code, word: str):
    refusal = lowerings.choose(case, Options())
    assert not refusal
    assert refusal.code is code
    assert word in refusal.reason


@pytest.mark.parametrize("case, code, word", [row for row in REFUSED if row[1] is Code.SLOWER])
def test_profit_off_asks_only_whether_it_is_right(case: Problem, code: Code, word: str):
    assert lowerings.choose(case, Options(profit=False))


def test_a_little_slower_is_rewritten_for_memory(monkeypatch: pytest.MonkeyPatch):
    wide = problem(F32, dv=512, device="cpu")
    assert lowerings.choose(wide, Options(profit="memory")).kernel == "cpu"
    for ratio, profit, chosen in (
        (0.97, True, True), (1.0, True, False), (1.19, "memory", True), (1.21, "memory", False)
    ):  # fmt: skip
        monkeypatch.setattr(cost, "estimate", lambda _, ratio=ratio: cost.Estimate(1.0, ratio, 9))
        choice = lowerings.choose(problem(F64), Options(profit=profit))
        assert bool(choice) is chosen
        assert not chosen or choice.kernel == "chunked"


def test_an_estimate_grows_with_the_launches(monkeypatch: pytest.MonkeyPatch):
    case = problem(dv=1024, m=4096, n=4096, training=False)
    assert lowerings.choose(case, Options())
    monkeypatch.setattr(cost, "RATES", replace(cost.RATES, launch=1e-3))
    assert not lowerings.choose(case, Options())


@pytest.mark.parametrize("sizes", [{"m": 0}, {"n": 0}, {"m": 0, "d": 128, "dv": 1024}], ids=str)
@pytest.mark.parametrize("profit", [True, "memory", False])
@pytest.mark.parametrize("training", [False, True])
def test_calls_without_scores_can_be_lowered(sizes: dict, profit, training: bool):
    """The rewrite leaves these alone; an exported program may hold one."""
    case = problem(training=training, **sizes)
    lowerings.choose(case, Options(profit=profit))
    choice = lowerings.choose(case, Options(kernel="chunked", profit=False))
    assert choice.kernel == "chunked" and "about " in choice.reason


def test_jagged_sides_without_a_bound_are_not_padded():
    case = problem(dv=512, m=4096, n=4096, total_rows=4096, total_cols=4096, **JAGGED)
    refusal = lowerings.choose(case, Options(kernel="chunked"))
    assert refusal.code is Code.LOWERING
    assert "without a bound" in refusal.reason


def test_triton_takes_no_wide_heads_in_full_precision_without_profit_either():
    """It would compile for minutes."""
    off = Options(profit=False)
    assert lowerings.choose(problem(F32, d=256), off).kernel == "chunked"
    assert lowerings.choose(problem(F32, d=128), off).kernel == "triton"
    assert lowerings.choose(problem(BF16, d=256, m=512), off).kernel == "triton"
    with tf32():
        assert lowerings.choose(problem(F32, d=256), off).kernel == "triton"


@contextlib.contextmanager
def tf32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


def test_tf32_follows_torch():
    case = problem(F32, d=32)
    assert not lowerings.choose(case, Options())
    with tf32():
        assert lowerings.choose(case, Options())
    assert not lowerings.choose(case, Options())


def test_pages_are_neither_rounded_nor_copied():
    case = problem(F32, d=32, training=False, page=16)
    assert lowerings.choose(case, Options(profit=False)).kernel == "triton"
    with tf32():
        refusal = lowerings.choose(case, Options())
        assert not refusal and "rounded to TF32" in refusal.reason
        assert lowerings.choose(replace(case, page=None), Options())
    cpu = replace(case, device=torch.device("cpu"))
    assert lowerings.choose(cpu, Options()).kernel == "cpu"


@pytest.mark.parametrize(
    "place, value, word",
    [
        ("torch.cuda.get_device_capability", (7, 5), "7.5"),
        ("importlib.util.find_spec", None, "Triton"),
    ],
    ids=["an old device", "no Triton"],
)
def test_devices_are_refused(place: str, value, word: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(place, lambda *_: value)
    refusal = lowerings.choose(problem(m=512), Options())
    assert refusal.code is Code.DEVICE
    assert word in refusal.reason


def test_a_kernel_can_be_asked_for():
    assert lowerings.choose(problem(), Options(kernel="reference")).kernel == "reference"
    assert lowerings.choose(problem(), Options(kernel="triton")).kernel == "triton"
    assert lowerings.choose(problem(), Options(kernel="cpu")).code is Code.DEVICE
