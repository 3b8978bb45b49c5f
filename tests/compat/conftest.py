"""Each test of a function of `_compat` runs all of its lines; see `lines`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import lines

PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
    outcome = yield
    if call.when == "call":
        item.stash[PASSED] = outcome.get_result().passed


@pytest.fixture(autouse=True)
def every_line(request: pytest.FixtureRequest) -> Iterator[None]:
    """`test_f` runs every line of `f`. Other tests, such as `test_f_of_views`, need not."""
    stem, wanted = Path(request.node.path).stem, request.node.originalname.removeprefix("test_")
    name = stem.removeprefix("test_").split("_")[0]  # test_lowering_buffers is of lowering
    module = lines.load(name) if name in lines.modules() else None
    if module is None or wanted not in lines.functions(module):
        yield
        return
    lines.forget(module)
    with lines.executed(module) as seen:
        yield
    missed = lines.lines(wanted, module) - seen if request.node.stash[PASSED] else ()
    source = Path(module.__file__ or "").read_text().splitlines()
    text = [f"{number}: {source[number - 1].strip()}" for _, number in sorted(missed)]
    assert not text, f"lines of {name}.{wanted} that its test does not run: {text}"
