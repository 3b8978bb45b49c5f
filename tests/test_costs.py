"""What the tests of a folder take is summed."""

from pathlib import Path

import pytest

from tests import costs

TESTS = Path(__file__).parent

REPORT = """<testsuites><testsuite>
<testcase classname="tests.patterns.test_x" name="a"><properties><property name="cpu" value="2.5"/>
</properties></testcase>
<testcase classname="tests.patterns.host.test_y" name="b"><properties>
<property name="cpu" value="0.5"/></properties></testcase>
<testcase classname="tests.test_z" name="c"><properties><property name="cpu" value="1.0"/>
</properties></testcase>
<testcase classname="tests.gpu.test_w" name="d"/>
</testsuite></testsuites>"""


def test_seconds_are_summed_by_folder(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    assert costs.by_folder(report) == {"tests/patterns": 3.0, "tests/*.py": 1.0, "tests/gpu": 0.0}


def test_seconds_are_those_of_a_usual_machine():
    """Half of what a machine takes on which the loop takes two."""
    shown = costs.table({"tests/patterns": 3.0, "tests/*.py": 1.0}, 2.0).splitlines()
    words = [" ".join(line.split()) for line in shown]
    assert words == ["tests/patterns 2 CPU s", "tests/*.py 0 CPU s", "all 2 CPU s"]


def test_a_folder_above_its_budget_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "BUDGETS", {"tests/patterns": 2, "tests/gpu": 1})
    seconds = {"tests/patterns": 5.0, "tests/gpu": 1.5, "tests/new": 3.0}
    assert costs.over(seconds, 2.0) == [
        f"{folder} took 2 CPU s; its budget is {budget}"
        for folder, budget in (("tests/patterns", 2), ("tests/new", 0))
    ]


def test_every_folder_has_a_budget() -> None:
    files = [path.relative_to(TESTS) for path in TESTS.glob("*/**/test_*.py")]
    folders = {f"tests/{path.parts[0]}" for path in files}
    assert {*costs.BUDGETS} == folders | {"tests/*.py"}


def test_the_loop_takes_time():
    assert costs.loop(1) > 0.1
