"""Files of generative-recommenders as they are published, and fbgemm in any precision.

The repository has no package on PyPI: a file is fetched when a test runs, or read from the folder
that GDPA_HSTU names. Without either, or without fbgemm, its tests are skipped.
"""

import importlib.util
import os
import sys
import types
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest
import torch

COMMIT = "db1bf8f2e8f6a92a738dafd52a245eafb25a222b"
ROOT = f"https://raw.githubusercontent.com/meta-recsys/generative-recommenders/{COMMIT}/"


def published(path: str, folder: Path, needs: Mapping[str, tuple[str, ...]] = {}) -> ModuleType:
    """The module of a file of the repository. `needs`: what it imports and a test does not use."""
    pytest.importorskip("fbgemm_gpu", exc_type=ImportError)
    source = Path(os.environ.get("GDPA_HSTU", "")) / Path(path).name
    if not source.is_file():
        source = folder / Path(path).name
        try:
            with urllib.request.urlopen(ROOT + path, timeout=10) as answer:
                source.write_bytes(answer.read())
        except OSError as error:
            pytest.skip(f"{path}: {error}")
    for name, classes in needs.items():
        module = types.ModuleType(name)
        module.__dict__.update({c: type(c, (torch.nn.Module,), {}) for c in classes})
        sys.modules.setdefault(name, module)
    spec = importlib.util.spec_from_file_location(f"published_{source.stem}", source)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


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
