"""A result is read where all that it depends on is the same; so is a kernel that is read."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute import launch, plan
from tests.emulator import disk_cache
from tests.emulator.recording import LEDGER
from tests.kernels.cute_cases import Case, check_output
from tests.kernels.test_cute_forward import forward


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv("PTX_CACHE", raising=False)
    monkeypatch.setattr(disk_cache, "_folder", lambda: tmp_path)
    return tmp_path


def test_only_the_same_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []

    def times(*parts: object) -> int:
        disk_cache.cached(lambda: results.append(parts), *parts)
        return len(results)

    assert [times("a"), times("a"), times("b"), times("a", "b"), times("b")] == [1, 1, 2, 3, 3]
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    assert [times("a"), times("a")] == [4, 4]
    monkeypatch.setenv("PTX_CACHE", "0")
    assert times("a") == 5
    monkeypatch.delenv("PTX_CACHE")
    monkeypatch.setattr(disk_cache, "SURROUNDINGS", "another source")
    assert times("a") == 6


def test_it_depends_on_what_kernels_and_the_emulator_are_made_of() -> None:
    sources = {str(path.relative_to(disk_cache.PACKAGE.parent)) for path in disk_cache._sources()}
    assert sources >= {
        "gdpa_inductor/kernels/cute/sm90/forward/kernel.py", "gdpa_inductor/program/expr.py",
        "gdpa_inductor/operands.py", "tests/emulator/recording.py", "tests/emulator/runtime.c",
    }  # fmt: skip


def test_a_kernel_that_is_read_is_the_one_that_was_compiled(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another process: what this one has recorded of it is forgotten."""
    case = Case("cached", d=8, m=20, n=20, ctas=1)
    o, before = case.operands(), (set(LEDGER.ptx), set(LEDGER.shapes))
    monkeypatch.setattr(plan, "PLANS", {})
    launch.compiled.cache_clear()
    launch.launcher.cache_clear()
    first = forward(case, o)
    assert len([*folder.iterdir()]) == 1
    for recorded, known in zip((LEDGER.ptx, LEDGER.shapes), before, strict=True):
        for identity in recorded.keys() - known:
            del recorded[identity]
    LEDGER.maps.clear()
    plan.PLANS.clear()
    launch.launcher.cache_clear()
    monkeypatch.setattr(launch, "compiled", pytest.fail)
    again = forward(case, o)
    assert torch.equal(again, first)
    check_output(again, o)
    launch.launcher.cache_clear()
