"""The versions of torch that `_compat.versions` says the tests run on."""

import re
from pathlib import Path

import pytest
import torch

from gdpa_inductor._compat import versions

PROJECT = (Path(__file__).parents[2] / "pyproject.toml").read_text()


def test_TESTED():
    """They are all that the package accepts."""
    first, end = map(int, re.findall(r'"torch>=2\.(\d+),<2\.(\d+)"', PROJECT)[0])
    assert versions.TESTED == tuple(f"2.{minor}" for minor in range(first, end))


def test_is_tested(monkeypatch):
    """Releases of the matrix; no others, and no builds of its source."""
    tested = ("2.11.0+cpu", "2.11.0+cu130", "2.13.1", "2.15.0")
    others = ("2.13.0a0+git1", "2.15.0.dev20261101+cpu", "2.9.1", "2.10.0", "2.99.0", "3.13.0")
    for release in (*tested, *others):
        monkeypatch.setattr(torch, "__version__", release)
        versions.is_tested.cache_clear()
        assert versions.is_tested() is (release in tested)
    versions.is_tested.cache_clear()


def test_version_of():
    assert versions.version_of("pytest") == pytest.__version__
    assert versions.version_of("no-such-distribution") is None
