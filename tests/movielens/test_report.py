"""What the demo prints."""

import io

import pytest

from examples.movielens import report
from examples.movielens.worker import Run


def result(contender: str, losses: list[float]) -> Run:
    return Run(contender, losses, 1.0, 2.0, None, 1e-7, 1e-6, {"HR@10": 0.1})


def test_difference_is_the_worst_step_relative():
    found = report.difference(result("gdpa", [1.0, 2.2, 4.0]), result("eager", [1.0, 2.0, 4.0]))
    assert found == pytest.approx(0.1)


def test_difference_is_over_the_steps_of_both():
    assert report.difference(result("gdpa", [1.0]), result("eager", [1.0, 2.0])) == 0
    assert report.difference(result("gdpa", [1.0, 2.0, 9.0]), result("eager", [1.0, 1.0])) == 1


def test_a_contender_whose_time_was_over_has_no_metrics():
    late = result("eager", [1.0])
    late.metrics = {}
    first, _, second, third = report.summary([late, result("gdpa", [1.0])]).splitlines()
    assert "HR@10" in first and "n/a" in second.replace("n/a", "", 1) and "0.1000" in third


def test_plot_places_the_ends_and_marks_meetings():
    drawn = report.plot({"eager": [4.0, 3.0, 0.0], "gdpa": [4.0, 1.0, 0.0]}, columns=3, rows=5)
    rows = [line.split("│")[1] for line in drawn.splitlines()[:5]]
    assert rows == ["*", " e", "", " g", "  *"]


def test_smooth_takes_means_and_bears_fewer_values_than_columns():
    assert report.smooth([1.0, 3.0, 5.0, 7.0], 2) == [2.0, 6.0]
    assert report.smooth([1.0, 3.0], 5) == [1.0, 3.0]


def test_table_aligns_columns():
    drawn = report.table(["", "ms"], [["eager", "10.0"], ["x", "2"]])
    assert drawn.splitlines() == ["         ms", "-----  ----", "eager  10.0", "x         2"]


def test_progress_off_a_terminal_prints_tenths():
    stream = io.StringIO()
    bar = report.Progress("eager", 40, stream)
    for step in range(41):
        bar.update(step)
    assert len(stream.getvalue().splitlines()) == 11
