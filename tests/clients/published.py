"""Files of generative-recommenders as they are published, and fbgemm in any precision.

The repository has no package on PyPI: a file is fetched when a test runs, or read from the folder
that HSTU_FILES names. Without either, or without fbgemm, its tests are skipped.
"""

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.models.published import hstu_file
from tests.jagged import indexed_pad, indexed_unpad


def published(path: str, folder: Path, needs: Mapping[str, tuple[str, ...]] = {}) -> ModuleType:
    """The module of a file of the repository. `needs`: what it imports and a test does not use."""
    pytest.importorskip("fbgemm_gpu", exc_type=ImportError)
    try:
        return hstu_file(path, folder, needs)
    except ImportError as error:
        pytest.skip(str(error))


class Slow:
    """Stands in for torch.ops.fbgemm in exact references: it has no kernels for doubles."""

    jagged_to_padded_dense = staticmethod(indexed_pad)
    dense_to_jagged = staticmethod(indexed_unpad)
