"""Compiled kernels on disk, so that the next process loads what this one has compiled.

They lie beside torch's own compiled graphs, go with them, and are switched off with them. A kernel
has a folder, whose name is a hash of all that the kernel follows from. In it lies the object file
that cutlass-dsl exports. Its name is a hash of its content, so a file that is damaged or cut off is
known by its name. Whatever fails here costs time only: then the kernel is compiled. cutlass is
imported only to load and to export.
"""

import contextlib
import ctypes
import dataclasses
import functools
import hashlib
import importlib.metadata
import logging
import os
import platform
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..._compat import inductor
from ...sources import source_hash
from .config import PACKAGE

FOLDER = "gdpa_cute"
PREFIX = "gdpa"  # of the symbols in an object file
SETTINGS = "CUTE_DSL_"  # of the compiler, in the environment
OFF = SETTINGS + "NO_CACHE"
PARTS = ("", "-libs-base", "-libs-core", "-libs-cu12", "-libs-cu13")  # packages of the compiler

log = logging.getLogger("gdpa_inductor")


def kept(make: Callable[[], Any], *parts: Any) -> Any:
    """What `make` compiles, loaded if it was compiled before. parts: what else the kernel follows
    from than this package, its compiler and the host: configurations, names, numbers."""
    place = _place(parts)
    if place is None:
        return make()
    found = _loaded(place)
    if found is None:
        found = make()
        _store(place, found)
    return found


def described(part: Any) -> str:
    """Equal in every process, as the text of a set is not."""
    if dataclasses.is_dataclass(part):
        fields = dataclasses.fields(part)
        pairs = [f"{f.name}={described(getattr(part, f.name))}" for f in fields]
        return f"{type(part).__name__}({', '.join(pairs)})"
    return repr(sorted(part) if isinstance(part, frozenset) else part)


def keeps() -> bool:
    """Whether kernels are kept at all."""
    return _folder() is not None


def has(*parts: Any) -> bool:
    """Whether a kernel lies there, sound or not."""
    place = _place(parts)
    return place is not None and any(place.glob("*.o"))


def _folder() -> Path | None:
    """Of all kernels; None where nothing is kept."""
    folder = inductor.cache_folder()
    if folder is None or os.environ.get(OFF, "0").lower() not in ("0", "false", ""):
        return None
    return Path(folder) / FOLDER


def _place(parts: tuple[Any, ...]) -> Path | None:
    """The folder of a kernel; None where nothing is kept."""
    folder = _folder()
    if folder is None:
        return None
    digest = hashlib.sha256()
    for line in (*_surroundings(), *map(described, parts)):
        digest.update(line.encode() + b"\n")
    return folder / digest.hexdigest()


def _surroundings() -> list[str]:
    """The package, the compiler with its settings, and the host: the code of a launch is made for
    the instructions that its CPU has."""
    settings = sorted(item for item in os.environ.items() if item[0].startswith(SETTINGS))
    compiler = (_versions(), sys.version_info[:2], settings)
    return [source_hash(), repr(compiler), platform.machine(), _instructions()]


@functools.cache
def _versions() -> tuple[str, ...]:
    """Of the compiler's packages; one of them says for which CUDA it is."""
    found = []
    for part in PARTS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{part} {importlib.metadata.version(PACKAGE + part)}")
    return tuple(found)


@functools.cache
def _instructions() -> str:
    """The instruction sets of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x for x in lines if x.lower().startswith(("flags", "features"))), "")


def _loaded(place: Path) -> Any:
    """The kernel that lies there; None without a sound one."""
    try:
        from cutlass import cute

        for path in place.glob("*.o"):
            if path.stem == _name(path.read_bytes()):
                return getattr(cute.runtime.load_module(str(path)), PREFIX)
            path.unlink(missing_ok=True)
    except Exception as error:
        log.debug("a CuTe kernel is compiled, its file cannot be loaded: %s", error)
    return None


def _store(place: Path, made: Any) -> None:
    """Export the kernel. The compiler looks up the functions that host code calls in the process,
    so its libraries have to be loaded for all; they are not where there is no driver."""
    try:
        from cutlass import cute

        for library in cute.runtime.find_runtime_libraries(enable_tvm_ffi=False):
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        content = made.dump_to_object(PREFIX)
        place.mkdir(parents=True, exist_ok=True)
        _write(place / f"{_name(content)}.o", content)
    except Exception as error:
        log.debug("a CuTe kernel is not kept: %s", error)


def _write(path: Path, content: bytes) -> None:
    """No reader sees a part of it."""
    partial = path.with_suffix(f".{os.getpid()}.{uuid.uuid4().hex}")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _name(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
