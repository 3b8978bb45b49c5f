"""The versions of torch that `_compat.versions` says the tests run on."""

import re
from pathlib import Path

import torch

from gdpa_inductor._compat import versions

PROJECT = (Path(__file__).parents[2] / "pyproject.toml").read_text()


def test_TESTED():
    """They are all that the package accepts."""
    first, end = map(int, re.findall(r'"torch>=2\.(\d+),<2\.(\d+)"', PROJECT)[0])
    assert versions.TESTED == tuple(f"2.{minor}" for minor in range(first, end))


def test_is_tested(monkeypatch):
    for release, tested in {"2.11.0+cpu": True, "2.13.1": True, "2.13.0a0+git1": False,
                            "2.10.0": False, "3.13.0": False}.items():  # fmt: skip
        monkeypatch.setattr(torch, "__version__", release)
        versions.is_tested.cache_clear()
        assert versions.is_tested() is tested
    versions.is_tested.cache_clear()
