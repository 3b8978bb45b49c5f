"""The CuTe kernels through `torch.compile`, run after run: the first one of a form records what the
later ones replay (kernels/cute/replay.py)."""

import threading
from functools import partial

import pytest
import torch
from torch._dynamo.utils import counters

from benchmarks.cases import Case as BenchCase
from benchmarks.jagged import formula, offsets
from gdpa_inductor.kernels.cute.architectures import config_of
from gdpa_inductor.lowerings.cute import calls
from tests.gpu import checks
from tests.gpu.programs import CASES, LAYOUTS, Case
from tests.gpu.test_kernels import breach, check_cuda_graphs

pytest.importorskip("cutlass")

from tests.gpu.test_cute_forward import step

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        not torch.cuda.is_available() or config_of(torch.device("cuda", 0)) is None,
        reason="the CuTe kernels are for other GPUs",
    ),
]

HSTU = BenchCase("silu", "causal", 8, 4, 256, 64, "bfloat16", "cuda", fill=0.5)
WIDE = {"d": 128, "e": 128}
OFTEN = ["causal", "window", "one projection", "shared heads", "head dim 128", "bias"]
STATIC = {name: CASES[name] for name in OFTEN} | LAYOUTS


compiled = partial(checks.compiled, kernel="cute")  # whatever is faster


@pytest.fixture(autouse=True)
def cute_alone():
    """Every region was lowered to these kernels, forward and backward."""
    counters.clear()
    yield
    results = {name for name in counters["gdpa"] if name.startswith(("lowered_", "fallback"))}
    assert results - {"lowered_varlen"} == {"lowered_cute"}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", STATIC)
def test_the_error_rule_in_every_run(name: str, dynamic: bool) -> None:
    """The operands of each run are others, and lie elsewhere."""
    case = STATIC[name]
    function, remaining = compiled(case.function, dynamic=dynamic), []
    for run in range(4):
        remaining.append(torch.empty(1 << (12 + run), device="cuda"))  # moves what follows
        assert not breach(case, function, torch.bfloat16)


@pytest.mark.parametrize("name", ["causal", "shared heads", "head dim 128"])
def test_the_error_rule_in_cuda_graphs(name: str) -> None:
    check_cuda_graphs(CASES[name], kernel="cute")


def test_batches_of_any_rows_share_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many rows there are is of the call, on whatever stream it runs."""
    firsts: list[calls.Site] = []
    run_first = calls.Site._run

    def counted(site: calls.Site, *operands, **known):
        firsts.append(site)
        return run_first(site, *operands, **known)

    monkeypatch.setattr(calls.Site, "_run", counted)
    attend = formula(HSTU)
    function, drawn = compiled(attend), torch.Generator().manual_seed(7)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    for run in range(6):
        counts = torch.randint(0, HSTU.length, (HSTU.batch,), generator=drawn)
        ends, total = offsets(counts).long().cuda(), int(counts.sum())
        shape = (total, HSTU.heads, HSTU.head_dim)
        operands = [
            torch.randn(shape, generator=drawn).to("cuda", torch.bfloat16) for _ in range(4)
        ]
        *leaves, g = operands

        def run_compiled(*matrices: torch.Tensor, ends=ends) -> torch.Tensor:
            for x in matrices:
                torch._dynamo.maybe_mark_dynamic(x, 0)
            return function(*matrices, ends)

        doubles = [x.double() for x in leaves]
        exact = step(lambda *x, ends=ends: attend(*x, ends), doubles, g.double())
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[run % 2]):
            results = step(run_compiled, leaves, g)
        torch.cuda.synchronize()
        for one, other in zip(results, exact, strict=True):
            assert (one - other).norm() < 0.01 * other.norm(), run
    assert len(firsts) == len(set(firsts)) == 2  # a forward, and a backward


def test_operands_off_16_bytes_between_others() -> None:
    function = compiled(CASES["causal"].function)
    room = torch.randn(3, 2 * 4 * 96 * 64 + 8, device="cuda", dtype=torch.bfloat16)
    for offset in (0, 1, 0, 4, 8, 0):
        operands = [x[offset : offset + 2 * 4 * 96 * 64].view(2, 4, 96, 64) for x in room]
        expected = CASES["causal"].function(*(x.double() for x in operands))
        off = (function(*operands) - expected).norm() / expected.norm()
        assert off < 0.01, offset


def test_threads_on_streams_of_their_own() -> None:
    """A launcher holds the words of one call at a time."""
    case: Case = CASES["causal"]
    function, failed = compiled(case.function), []
    shape = (2, 4, 320, 128)
    operands = [
        [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)] for _ in "ab"
    ]

    expected = [step(function, tensors, g) for *tensors, g in operands]
    torch.cuda.synchronize()

    def work(number: int) -> None:
        stream, (*tensors, g) = torch.cuda.Stream(), operands[number]
        with torch.cuda.stream(stream):
            results = [step(function, tensors, g) for _ in range(50)]
        stream.synchronize()
        if not all(all(map(torch.equal, one, expected[number])) for one in results):
            failed.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads) and not failed
