"""Which tests of large families run on a day."""

from collections import Counter
from pathlib import Path

import pytest

from tests import rotation

ROOT = Path(__file__).parents[1]
FAMILY = [f"tests/a.py::test_x[{number}]" for number in range(40)]
NAMES = [*FAMILY, "tests/a.py::test_alone", "tests/b.py::test_x[0]", "tests/b.py::test_x[1]"]


@pytest.fixture
def one_in_four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "ONE_IN", {"tests/a.py": 4})


def test_all_run_in_as_many_days_as_are_said(one_in_four) -> None:
    """The first case of a function on every day, another on one of them."""
    days = Counter(
        name for day in range(100, 104) for name in {*NAMES} - rotation.left_out(NAMES, day)
    )
    always = {FAMILY[0], *NAMES[40:]}
    assert days == {name: 4 if name in always else 1 for name in NAMES}


def test_a_day_runs_its_share(one_in_four) -> None:
    """In small families too: 39 cases in four shares."""
    assert {39 - len(rotation.left_out(NAMES, day)) for day in range(4)} == {9, 10}


def test_the_day_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_DAY", "17")
    assert rotation.day() == 17


def test_families_are_files_that_there_are() -> None:
    assert rotation.ONE_IN
    for name, one_in in rotation.ONE_IN.items():
        assert (ROOT / name).is_file() and one_in > 1, name


def test_what_proves_the_rest_is_in_no_family() -> None:
    whole = ("tests/adversary/test_", "tests/judge/", "tests/compat/", "tests/program/")
    assert not [name for name in rotation.ONE_IN if name.startswith(whole)]
