"""The versions of torch that the tests run on, and of what is installed."""

from __future__ import annotations

import functools
import importlib.metadata

import torch

TESTED = ("2.11", "2.12", "2.13", "2.14", "2.15")


@functools.cache
def is_tested() -> bool:
    """True if the tests run on the installed release of torch. Builds of its source are not it."""
    release = torch.__version__.split("+")[0].split(".")
    return ".".join(release[:2]) in TESTED and all(part.isdigit() for part in release)


def version_of(distribution: str) -> str | None:
    """The version of a distribution that is installed, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
