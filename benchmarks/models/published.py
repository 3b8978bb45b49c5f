"""Sources of models that are published as files or packages.

In: a path in a repository, or the name of a package. Out: the module. It raises ImportError with
the reason if a source is not available.
"""

import importlib.metadata
import importlib.util
import os
import sys
import types
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from torch import nn

from . import fbgemm

# generative-recommenders has no package on PyPI.
COMMIT = "db1bf8f2e8f6a92a738dafd52a245eafb25a222b"
ROOT = f"https://raw.githubusercontent.com/meta-recsys/generative-recommenders/{COMMIT}/"


def hstu_file(
    path: str, folder: Path, needs: Mapping[str, tuple[str, ...]] = types.MappingProxyType({})
) -> ModuleType:
    """The module of a file of generative-recommenders.

    The variable HSTU_FILES may name a folder that has the file. Otherwise the file is downloaded
    once into `folder`.

    needs: Modules that the file imports, and their classes. They are replaced by empty classes,
        since nothing here uses them.
    """
    fbgemm.provide()
    source = Path(os.environ.get("HSTU_FILES", folder)) / Path(path).name
    if not source.is_file():
        source = folder / Path(path).name
        download(ROOT + path, source)
    for name, classes in needs.items():
        module = types.ModuleType(name)
        module.__dict__.update({c: type(c, (nn.Module,), {}) for c in classes})
        sys.modules.setdefault(name, module)
    return module_at(source)


def download(address: str, target: Path) -> None:
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            text = answer.read()
    except OSError as error:
        raise ImportError(f"{address}: {error}") from error
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(text)


def package_file(package: str, path: str) -> ModuleType:
    """The module of one file of an installed package. The package itself is not imported."""
    try:
        file = importlib.metadata.distribution(package).locate_file(path)
    except importlib.metadata.PackageNotFoundError as error:
        raise ImportError(f"{package} is not installed") from error
    return module_at(Path(str(file)))


def module_at(source: Path) -> ModuleType:
    name = f"published_{source.parent.name}_{source.stem}"
    spec = importlib.util.spec_from_file_location(name, source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
