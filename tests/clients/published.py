"""Files of generative-recommenders as they are published, and fbgemm in any precision.

The repository has no package on PyPI: a file is fetched when a test runs, or read from the folder
that HSTU_FILES names. Without either, or without fbgemm, its tests are skipped.
"""

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest
import torch

from benchmarks.models.published import hstu_file


def published(path: str, folder: Path, needs: Mapping[str, tuple[str, ...]] = {}) -> ModuleType:
    """The module of a file of the repository. `needs`: what it imports and a test does not use."""
    pytest.importorskip("fbgemm_gpu", exc_type=ImportError)
    try:
        return hstu_file(path, folder, needs)
    except ImportError as error:
        pytest.skip(str(error))


def slow_pad(values, offsets, max_lengths, padding_value=0.0):
    """What fbgemm's function returns, in any dtype."""
    (at,), (n,) = offsets, max_lengths
    rows = [values[a:b][:n] for a, b in zip(at[:-1].tolist(), at[1:].tolist())]
    return torch.stack([torch.cat([r, r.new_zeros(n - len(r), *r.shape[1:])]) for r in rows])


def slow_unpad(dense, offsets, total=None):
    lengths = offsets[0].diff().tolist()
    return (torch.cat([row[:length] for row, length in zip(dense, lengths)]), offsets)


class Slow:
    """Stands in for torch.ops.fbgemm in exact references: it has no kernels for doubles."""

    jagged_to_padded_dense = staticmethod(slow_pad)
    dense_to_jagged = staticmethod(slow_unpad)
