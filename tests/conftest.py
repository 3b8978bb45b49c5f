"""What every test starts from: no compile caches, a seed (printed on failure), a clean Dynamo.

The environment is set before torch is imported. The graph caches are off because a cache hit skips
the pass, and with it the counters that tests read; tests of the caches switch them on themselves.
"""

import importlib
import os
import sys
import zlib
from collections.abc import Iterator

os.environ.setdefault("TORCHINDUCTOR_FX_GRAPH_CACHE", "0")
os.environ.setdefault("TORCHINDUCTOR_AUTOGRAD_CACHE", "0")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import pytest
import torch


def seed_of(name: str) -> int:
    """The seed of one test: of its name, so stable over runs; GDPA_SEED overrides it for all."""
    return int(os.environ.get("GDPA_SEED", zlib.crc32(name.encode())))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    outcome = yield
    report = outcome.get_result()
    if report.when == "call" and report.failed:
        report.sections.append(("seed", f"GDPA_SEED={seed_of(item.nodeid)}"))


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest) -> int:
    seed = seed_of(request.node.nodeid)
    torch.manual_seed(seed)
    return seed


@pytest.fixture(autouse=True)
def clean_dynamo() -> Iterator[None]:
    """Each test compiles afresh and counts from zero (untouched if the test never compiles)."""
    reset_dynamo()
    yield
    reset_dynamo()


def reset_dynamo() -> None:
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()


@pytest.fixture
def no_cpu_cost_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small regions are rewritten on a CPU too; tests/lowerings/test_choose.py has the rules."""
    rules = importlib.import_module("gdpa_inductor.lowerings.choose")  # not the function
    monkeypatch.setitem(rules.PAYS, "cpu", ())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU")
    for item in items:
        if "cuda" in item.keywords:
            item.add_marker(skip)
