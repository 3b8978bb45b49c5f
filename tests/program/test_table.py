"""The table of operations in the documentation."""

import dataclasses
import re
from pathlib import Path

import pytest

from docs.tools.operations import renewed, table
from gdpa_inductor.program import expr

PAGE = Path(__file__).parents[2] / "docs" / "score_programs.md"


def test_the_operations_of_a_program_are_documented_as_their_rows_are() -> None:
    """Else: python -m docs.tools.operations docs/score_programs.md"""
    page = PAGE.read_text()
    assert table() in page
    assert renewed(page) == page


def test_a_bar_ends_no_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three cells in each line, whatever an operation says of itself."""
    row = dataclasses.replace(expr.OPS["abs"], says="x/(1 + |x|)")
    monkeypatch.setitem(expr.OPS, "of a test", row)
    lines = table().splitlines()
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {4}
    assert lines[-1].endswith(r"| x/(1 + \|x\|) |")
