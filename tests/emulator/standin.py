"""The stand-in runtime: host code that CuTe DSL compiled runs natively, its launches come to
Python.

`library()` builds runtime.c once and says where it lies; `launches(hook)` sends every kernel launch
made inside it to `hook`; `next_library(handle)` names the module that is loaded next.
"""

import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("runtime.c")
FAILED = 719  # cudaErrorLaunchFailure
CLUSTER_DIMENSION = 4  # cudaLaunchAttributeClusterDimension


class LaunchConfig(ctypes.Structure):
    """The head of cudaLaunchConfig_t, as the public runtime header declares it."""

    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("dynamic_smem_bytes", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint32),
    ]


class Dimensions(ctypes.Structure):
    """A cudaLaunchAttribute that holds the CTAs of a cluster."""

    _fields_ = [("kind", ctypes.c_int), ("pad", ctypes.c_int), ("size", ctypes.c_uint32 * 16)]


@dataclass(frozen=True)
class Launch:
    """One kernel launch as the host code asked for it; `argument(i, size)` reads its parameters."""

    library: int
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    pointers: int
    cluster: int = 1

    def argument(self, index: int, size: int) -> bytes:
        slot = ctypes.sizeof(ctypes.c_void_p) * index
        return ctypes.string_at(ctypes.c_void_p.from_address(self.pointers + slot).value, size)


def path() -> Path:
    """The shared library, built when its source has changed. RuntimeError without a C compiler."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"cute_standin_{os.getuid()}_{digest}"
    target = folder / "libcute_dsl_runtime.so"  # as the runtime is found by its name
    if not target.exists():
        folder.mkdir(exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}")
        command = [
            os.environ.get("CC", "cc"),
            "-shared",
            "-fPIC",
            "-O1",
            "-o",
            partial,
            SOURCE,
            "-ldl",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the stand-in runtime needs a C compiler:\n{done.stderr}")
        partial.replace(target)
    return target


@functools.cache
def library() -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(path()), mode=ctypes.RTLD_GLOBAL)
    loaded.CuteDSLRT_GetErrorString.restype = ctypes.c_char_p
    loaded.standin_next_library.argtypes = [ctypes.c_uint64]
    loaded.standin_on_launch.argtypes = [ctypes.c_void_p]
    return loaded


def next_library(handle: int) -> None:
    library().standin_next_library(handle)


def decode(config: int, kernel: int, arguments: int) -> Launch:
    shape = LaunchConfig.from_address(config)
    name = ctypes.string_at(kernel + ctypes.sizeof(ctypes.c_uint64)).decode()
    return Launch(
        library=ctypes.c_uint64.from_address(kernel).value,
        kernel=name,
        grid=tuple(shape.grid),
        block=tuple(shape.block),
        shared_bytes=shape.dynamic_smem_bytes,
        pointers=arguments,
        cluster=cluster_of(shape),
    )


def cluster_of(shape: LaunchConfig) -> int:
    """How many CTAs, side by side along x, are a cluster."""
    room = Dimensions * shape.attribute_count
    inputs = room.from_address(shape.attributes) if shape.attribute_count else ()
    sizes = [tuple(x.size[:3]) for x in inputs if x.kind == CLUSTER_DIMENSION]
    (x, *others), *_ = sizes or [(1, 1, 1)]
    if others != [1, 1] or shape.grid[0] % x:
        raise NotImplementedError(f"clusters of {(x, *others)} CTAs")
    return x


@contextmanager
def launches(hook: Callable[[Launch], None]) -> Iterator[list[BaseException]]:
    """Calls `hook` for each launch; what it raises is kept in the yielded list, as C cannot."""
    failures: list[BaseException] = []

    def called(config: int, kernel: int, arguments: int) -> int:
        if failures:
            return FAILED
        try:
            hook(decode(config, kernel, arguments))
        except BaseException as error:
            failures.append(error)
            return FAILED
        return 0

    signature = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 3)
    pointer = signature(called)
    library().standin_on_launch(ctypes.cast(pointer, ctypes.c_void_p))
    try:
        yield failures
    finally:
        library().standin_on_launch(None)
