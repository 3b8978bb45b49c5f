"""dQ by atomic additions: only where the options admit it and torch does not forbid it."""

import dataclasses

import pytest
import torch

from .cases import ADDED, CASES

CASE = next(case for case in CASES if case.name == "added")


def source(options: str) -> str:
    return dataclasses.replace(CASE, options=options).source(CASE.tensors())


@pytest.mark.parametrize(("options", "adds"), [(ADDED, True), ("strict=True", False)])
def test_atomics_are_asked_for(options: str, adds: bool) -> None:
    assert ("tl.atomic_add" in source(options)) is adds


def test_torch_forbids_them() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert "tl.atomic_add" not in source(ADDED)
    finally:
        torch.use_deterministic_algorithms(False)
