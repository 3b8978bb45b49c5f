"""A cache of compiled kernels on disk, so that the next process need not compile them.

The cache is in Inductor's cache folder. It is deleted with that folder, and disabled with
Inductor's cache. Each kernel has a folder named by a hash of all that the kernel depends on. The
folder holds the object file that cutlass-dsl exports (`runtime`). The name of the file is a hash of
its content, so a damaged file does not match its name. Errors of the disk cost only time: the
kernel is compiled instead. cutlass is imported only to compile.
"""

import dataclasses
import functools
import hashlib
import importlib
import logging
import os
import platform
import sys
import uuid
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

from ..._compat import inductor
from ..._compat.versions import version_of
from ...sources import source_hash
from .config import PACKAGE
from .runtime import exported

FOLDER = "gdpa_cute"
SETTINGS = "CUTE_DSL_"  # the prefix of the compiler's environment variables
OFF = SETTINGS + "NO_CACHE"
# Suffixes of the packages that the compiler consists of.
PARTS = ("", "-libs-base", "-libs-core", "-libs-cu12", "-libs-cu13")

log = logging.getLogger("gdpa_inductor")


def object_file(make: Callable[[], Any], *parts: Any) -> bytes:
    """The object file of the kernel that `make` compiles, from disk if it is there.

    parts: All that it depends on beside this package, the compiler and the host.
    """
    place = _place(parts)
    content = None if place is None else _read(place)
    if content is None:
        content = exported(make())
        if place is not None:
            _store(place, content)
    return content


def kernel_file(module: str, *arguments: Hashable) -> bytes:
    """The object file of the kernel that `compiled(*arguments)` of a module here compiles."""

    def compiled() -> Any:
        return importlib.import_module(f"{__package__}.{module}").compiled(*arguments)

    return object_file(compiled, module, *arguments)


def described(part: Any) -> str:
    """A text that is equal in every process. The order of a set is not, so sets are sorted."""
    if dataclasses.is_dataclass(part):
        fields = dataclasses.fields(part)
        pairs = [f"{f.name}={described(getattr(part, f.name))}" for f in fields]
        return f"{type(part).__name__}({', '.join(pairs)})"
    return repr(sorted(part) if isinstance(part, frozenset) else part)


def keeps() -> bool:
    return _folder() is not None


def has(*parts: Any) -> bool:
    place = _place(parts)
    return place is not None and any(place.glob("*.o"))


def _folder() -> Path | None:
    folder = inductor.cache_folder()
    if folder is None or os.environ.get(OFF, "0").lower() not in ("0", "false", ""):
        return None
    return Path(folder) / FOLDER


def _place(parts: tuple[Any, ...]) -> Path | None:
    folder = _folder()
    if folder is None:
        return None
    digest = hashlib.sha256()
    for line in (*_surroundings(), *map(described, parts)):
        digest.update(line.encode() + b"\n")
    return folder / digest.hexdigest()


def _surroundings() -> list[str]:
    """What every kernel depends on: the package, the compiler with its settings, and the host."""
    # The object file has host code for the launch, compiled for the instructions of this CPU.
    settings = sorted(item for item in os.environ.items() if item[0].startswith(SETTINGS))
    compiler = (_versions(), sys.version_info[:2], settings)
    return [source_hash(), repr(compiler), platform.machine(), _instructions()]


@functools.cache
def _versions() -> tuple[str, ...]:
    versions = [(part, version_of(PACKAGE + part)) for part in PARTS]
    return tuple(f"{part} {version}" for part, version in versions if version)


@functools.cache
def _instructions() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x for x in lines if x.lower().startswith(("flags", "features"))), "")


def _read(place: Path) -> bytes | None:
    """The content of the undamaged file in a folder, or None. Damaged files are deleted."""
    try:
        for path in place.glob("*.o"):
            content = path.read_bytes()
            if path.stem == _name(content):
                return content
            path.unlink(missing_ok=True)
    except OSError as error:
        log.debug("a CuTe kernel is compiled, its file cannot be read: %s", error)
    return None


def _store(place: Path, content: bytes) -> None:
    try:
        place.mkdir(parents=True, exist_ok=True)
        _write(place / f"{_name(content)}.o", content)
    except OSError as error:
        log.debug("a CuTe kernel is not kept: %s", error)


def _write(path: Path, content: bytes) -> None:
    """Write a file in one step, so that no reader sees a part of it."""
    partial = path.with_suffix(f".{os.getpid()}.{uuid.uuid4().hex}")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _name(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
