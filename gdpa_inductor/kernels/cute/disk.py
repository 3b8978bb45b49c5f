"""Compiled kernels on disk, so that the next process loads what this one has compiled.

They lie beside torch's own compiled graphs, go with them, and are switched off with them. A kernel
has a folder, whose name is a hash of all that the kernel follows from. In it lies the object file
that cutlass-dsl exports (`runtime`). Its name is a hash of its content, so a file that is damaged
or cut off is known by its name. Whatever fails here costs time only: then the kernel is compiled.
cutlass is imported only to compile.
"""

import contextlib
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
from .runtime import exported

FOLDER = "gdpa_cute"
SETTINGS = "CUTE_DSL_"  # of the compiler, in the environment
OFF = SETTINGS + "NO_CACHE"
PARTS = ("", "-libs-base", "-libs-core", "-libs-cu12", "-libs-cu13")  # packages of the compiler

log = logging.getLogger("gdpa_inductor")


def kept(make: Callable[[], Any], *parts: Any) -> bytes:
    """The object file of what `make` compiles, read if it was compiled before. parts: what else the
    kernel follows from than this package, its compiler and the host: configurations, names,
    numbers."""
    place = _place(parts)
    found = None if place is None else _read(place)
    if found is None:
        found = exported(make())
        if place is not None:
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


def _read(place: Path) -> bytes | None:
    """What lies there; None without a sound file."""
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
    """No reader sees a part of it."""
    partial = path.with_suffix(f".{os.getpid()}.{uuid.uuid4().hex}")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _name(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
