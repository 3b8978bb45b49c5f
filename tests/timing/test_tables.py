"""The errors of the model are those that its page states."""

import json
from pathlib import Path

from gdpa_inductor.proving.cases import SHAPES, predicted

from . import __main__ as command
from . import tables

DOCS = Path(command.ROOT) / "docs"


def rms(rows: list[tables.Row]) -> float:
    return (sum(x.error**2 for x in rows) / len(rows)) ** 0.5


def test_pages_have_the_tables():
    for (page, name), make in command.TABLES.items():
        assert f"<!-- {name} -->\n{make()}\n<!-- end of {name} -->" in (DOCS / page).read_text()


def test_predictions_are_kept():
    assert command.PREDICTIONS.read_text() == tables.prediction_file()
    kept = json.loads(tables.prediction_file())["predictions"]
    assert len(kept) == 16
    for capability in ("10.0", "10.3"):
        shapes = [f"{family}, {case.name}" for family, case in SHAPES]
        found = [shape for shape in shapes if predicted(shape, capability)]
        assert found == [shape for shape in shapes if "dense" in shape]
    assert not predicted(shapes[0], "9.0")


def test_hopper_within_what_the_page_says():
    rows = list(tables.hopper_rows())
    held = [x for x in rows if x.use == "held back"]
    assert len(held) >= len(rows) / 2
    assert rms(held) < 0.07
    assert sum(abs(x.error) <= 0.10 for x in held) >= 0.8 * len(held)


def test_the_clock_is_predicted_too():
    assert rms(list(tables.hopper_rows(lasting=True))) < 0.09


def test_blackwell_within_what_the_page_says():
    rows = list(tables.published_rows())
    held = [x for x in rows if x.use == "held back"]
    assert len(held) >= len(rows) / 2
    others = [x for x in held if x.kernel != "GDPA backward"]
    assert rms(others) < 0.11
    assert sum(abs(x.error) <= 0.15 for x in others) >= 0.8 * len(others)
