"""What the tests of a folder take is summed, and held against what it may take."""

from pathlib import Path

from tests import costs

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


def test_a_folder_that_takes_more_is_named(monkeypatch):
    monkeypatch.setattr(costs, "budgets", lambda: {"tests/patterns": 2.0, "tests/*.py": 1.0})
    found = {"tests/patterns": 3.0, "tests/*.py": 1.0}
    assert costs.table(found, 1.0)[1] == ["tests/patterns"]
    assert costs.table(found, 2.0)[1] == []  # on a machine that is half as fast
    assert costs.table({"tests/new": 0.1}, 1.0)[1] == ["tests/new"]


def test_every_folder_has_a_budget():
    tests = Path(__file__).parent
    folders = {f"tests/{x.parent.name}" for x in tests.glob("*/test_*.py")} | {"tests/*.py"}
    assert folders == set(costs.budgets())
