"""What was made of kernels in an earlier run, on disk: PTX for the emulator, and machine code.

A compile takes most of a test's time. The name of a file is a hash of all that a result depends on:
its configuration, the sources that may be imported to compile it, the emulator, the compiler and
the host. Files are in torch's folder of caches; PTX_CACHE=0 compiles all anew.
"""

import contextlib
import functools
import hashlib
import os
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch._inductor.runtime.cache_dir_utils import cache_dir

from gdpa_inductor.kernels.cute import disk
from tests.test_import import MAY_IMPORT, PACKAGE

T = TypeVar("T")
DAYS = 14  # a file that no run has read for so long is deleted


def cached(make: Callable[[], T], *parts: Any) -> T:
    """What `make` gives, from disk if it is there. parts: as `disk.object_file` has them."""
    if os.environ.get("PTX_CACHE") == "0":
        return make()
    source = Path(make.__code__.co_filename).read_text()
    lines = [SURROUNDINGS, source, *map(disk.described, parts)]
    path = _folder() / hashlib.sha256("\n".join(lines).encode()).hexdigest()
    try:
        result = pickle.loads(path.read_bytes())
        os.utime(path)
    except (OSError, EOFError, pickle.UnpicklingError):
        result = make()
        disk._write(path, pickle.dumps(result))
    return result


@functools.cache
def _folder() -> Path:
    folder = Path(cache_dir()) / "gdpa_emulated"
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process deletes as well
            if path.stat().st_mtime < time.time() - DAYS * 24 * 3600:
                path.unlink()
    return folder


def _sources() -> Iterator[Path]:
    """Of the emulator, and of what of the package kernels may import."""
    yield from sorted(Path(__file__).parent.glob("*.[pc]*"))
    for name in sorted({"kernels", *MAY_IMPORT["kernels"]}):
        folder = PACKAGE / name
        yield from sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


def _surroundings() -> str:
    sources = hashlib.sha256(b"".join(path.read_bytes() for path in _sources()))
    return "\n".join([sources.hexdigest(), torch.__version__, *disk._surroundings()[1:]])


SURROUNDINGS = _surroundings()  # as sources are imported: later they may have been edited
