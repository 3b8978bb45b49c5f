"""Which of many cases run in `make test`: the others are marked slow."""

from collections.abc import Container, Iterable
from typing import Any

import pytest


def slow_but(quick: Container[str], cases: Iterable[Any]) -> list[Any]:
    """Parameters of a test: cases by their names, or objects that have one."""
    rows = [(case, getattr(case, "name", case)) for case in cases]
    return [
        pytest.param(case, id=name, marks=[] if name in quick else pytest.mark.slow)
        for case, name in rows
    ]
