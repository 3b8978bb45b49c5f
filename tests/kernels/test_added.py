"""dQ by atomic additions: only where the options admit it and torch does not forbid it."""

import dataclasses

import pytest
import torch

from .cases import ADDED, CASES
from .render import wrapper

CASE = next(case for case in CASES if case.name == "added")


def source(case, options: str) -> str:
    case = dataclasses.replace(case, options=options)
    return wrapper(case.function(), case.tensors(), case.capability, case.choice)


@pytest.mark.parametrize(("options", "adds"), [(ADDED, True), ("strict=True", False)])
def test_atomics_are_asked_for(options: str, adds: bool) -> None:
    assert ("tl.atomic_add" in source(CASE, options)) is adds


def test_torch_forbids_them() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert "tl.atomic_add" not in source(CASE, ADDED)
    finally:
        torch.use_deterministic_algorithms(False)
