"""What every test starts from: no compile caches, a seed (printed on failure), a clean Dynamo.

The environment is set before torch is imported. The graph caches are off because a cache hit skips
the pass, and with it the counters that tests read; tests of the caches switch them on themselves.
"""

import dataclasses
import gc
import logging
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

os.environ.setdefault("TORCHINDUCTOR_FX_GRAPH_CACHE", "0")
os.environ.setdefault("TORCHINDUCTOR_AUTOGRAD_CACHE", "0")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("CI", "1")  # where Inductor refuses to fall back if it may decompose

import pytest
import torch

from gdpa_inductor import direct, judge
from gdpa_inductor._compat import inductor
from gdpa_inductor.kernels.cute import certificates
from tests import costs, operands, rotation
from tests._failures import shorten


def seed_of(item: pytest.Item) -> int:
    """The seed of one test: of its name, so stable over runs; GDPA_SEED overrides it for all."""
    return int(os.environ.get("GDPA_SEED", zlib.crc32(item.nodeid.encode())))


_STARTED = pytest.StashKey[float]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_STARTED] = costs.cpu_seconds()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    if call.when == "teardown" and _STARTED in item.stash:  # `tests.costs` sums it by folder
        took = costs.cpu_seconds() - item.stash[_STARTED]
        item.user_properties.append(("cpu", f"{took:.2f}"))
    outcome = yield
    report = outcome.get_result()
    if not report.failed:
        return
    if item.config.get_verbosity() <= 0:
        shorten(report)
    if report.when == "call":
        report.sections.append(("seed", f"GDPA_SEED={seed_of(item)}"))


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest) -> int:
    seed = seed_of(request.node)
    torch.manual_seed(seed)
    operands.first_seed = seed
    return seed


@pytest.fixture
def torchs_own_loops() -> Iterator[None]:
    """Without oneDNN, whose activations have other values at infinity on some CPUs."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    yield
    torch._C._set_mkldnn_enabled(before)


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The judge remembers verdicts, as it does for users, whose caches are on: in this folder."""
    monkeypatch.setattr(inductor, "cache_folder", lambda: str(tmp_path))
    return tmp_path / "gdpa_verdicts"


def pytest_sessionstart() -> None:
    """A run under another number of threads or another instruction set is what it says it is."""
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads:
        torch.set_num_threads(int(threads))  # MKL would have no more than there are cores
    if threads and torch.get_num_threads() != int(threads):
        raise pytest.UsageError(f"{threads} threads asked for, torch has {torch.get_num_threads()}")
    capability = os.environ.get("ATEN_CPU_CAPABILITY")
    has = torch.backends.cpu.get_cpu_capability()
    if capability and capability.upper() != has:
        raise pytest.UsageError(f"the instruction set {capability} was asked for, torch uses {has}")


def pytest_collection_finish() -> None:
    """What is loaded stays, so that Python need not look through it for garbage. Dynamo collects
    what is young at every compile; all of it is looked through at every 200th collection.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 200)


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """No test changes the number of threads for those after it."""
    before = torch.get_num_threads()
    yield
    assert torch.get_num_threads() == before


def no_trace_log() -> None:
    """pytest 9.2 attaches its capture to every logger that does not propagate, torch's trace log
    among them. That one makes its texts, every graph as JSON, once it has any handler: tests take
    nearly twice the time, and a failure prints hundreds of empty lines.
    """
    trace = logging.getLogger("torch.__trace")
    if "TORCH_TRACE" not in os.environ:
        trace.propagate = True
        trace.handlers.clear()


@pytest.fixture(scope="session", autouse=True)
def no_certificate_of_this_machine() -> Iterator[None]:
    """What `gdpa prove` found on it decides no test."""
    with mock.patch.object(certificates, "FOLDER", "gdpa_certificates_of_tests"):
        yield


@pytest.fixture(scope="session", autouse=True)
def untimed_guards() -> Iterator[None]:
    """Dynamo flushes the caches and times its guards at every compile: a tenth of a small test."""
    with mock.patch("torch._dynamo.guards.profile_guard_manager", lambda *_: 0.0):
        yield


@pytest.fixture
def uncached_fakes() -> Iterator[None]:
    """Without torch's cache of what operators make of fakes. With symbolic sizes it takes half of
    a compile and finds hardly anything. `tests/patterns/test_dynamic.py` has it, as users do.
    """
    with torch._dynamo.config.patch(fake_tensor_cache_enabled=False):
        yield


@pytest.fixture(autouse=True)
def clean_dynamo() -> Iterator[None]:
    """Each test compiles afresh and counts from zero (untouched if the test never compiles)."""
    no_trace_log()  # torch.compiler.reset and set_logs bring it back
    reset_dynamo()
    yield
    reset_dynamo()


@pytest.fixture(autouse=True)
def direct_calls_are_the_formula(request: pytest.FixtureRequest) -> Iterator[None]:
    """`attention` outside of `torch.compile` is what a test compares with. Tests of what it
    compiles there are marked `direct`.
    """
    marked = request.node.get_closest_marker("direct") is not None
    kind_of = direct.kind_of if marked else lambda *_: None
    with mock.patch.object(direct, "kind_of", kind_of):
        yield


@pytest.fixture(autouse=True)
def judged_rewrites(request: pytest.FixtureRequest) -> Iterator[None]:
    """The judge lets every rewrite of a test through. What it would not is a bug of the matcher, or
    of the judge; tests of such bugs are marked `refused_by_judge`.
    """
    refused: list[judge.Verdict] = []

    def validate(*arguments: object) -> judge.Verdict | None:
        verdict = real(*arguments)
        if verdict is not None:
            refused.append(verdict)
        return verdict

    real = judge.validate
    with mock.patch.object(judge, "validate", validate):
        yield
    assert request.node.get_closest_marker("refused_by_judge") or not refused, refused


def reset_dynamo() -> None:
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()


@pytest.fixture
def no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend compiles as ever, but for Inductor's last step: its graphs run as they are. For
    tests of what is said and counted.
    """
    from functorch.compile import make_boxed_func

    monkeypatch.setattr(
        "torch._inductor.compile_fx.compile_fx_inner", lambda gm, *_, **__: make_boxed_func(gm)
    )


@pytest.fixture
def no_cpu_cost_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small regions are rewritten on a CPU too; tests/lowerings/test_choose.py has the rules."""
    from gdpa_inductor.lowerings import cpu

    monkeypatch.setattr(cpu, "BACKEND", dataclasses.replace(cpu.BACKEND, pays=()))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rotate", action="store_true", help=str(rotation.__doc__).partition("\n")[0])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--rotate"):
        out = rotation.left_out([item.nodeid for item in items], rotation.day())
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in out])
        items[:] = [item for item in items if item.nodeid not in out]
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU")
    for item in items:
        if "cuda" in item.keywords:
            item.add_marker(skip)
