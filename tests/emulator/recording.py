"""What is kept while a kernel is compiled: its PTX, and what each tensor map was asked to be.

Inside `recording()`:
- `cute.compile` compiles for sm_100a, unless it is told otherwise, and keeps the PTX; the host code
  is linked to the stand-in runtime;
- what was compiled in an earlier run is read from disk (`disk_cache`);
- the public calls that make a tiled TMA atom also launch a probe: a kernel whose parameters are the
  atom, an identity, and the address, extents and strides of the tensor. When the host code runs,
  the probe's launch tells which bytes stand for which tensor map, dynamic shapes included. The
  kernel itself is compiled as without it.
"""

import itertools
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import numpy as np

from gdpa_inductor.kernels.cute import disk

from . import standin
from .disk_cache import cached
from .standin import Launch
from .tensormap import TOLD_BYTES, Shape, TensorMap, box_of

PROBE = "tensor_map_probe"
# The emulator runs the PTX. The machine code is never read, so ptxas need not optimise it.
OPTIONS = {
    "--gpu-arch": "--gpu-arch=sm_100a",
    "--keep-ptx": "--keep-ptx",
    "--ptxas-options": "--ptxas-options -O0",
}
SWIZZLE_SPAN = {0: 0, 1: 32, 2: 64, 3: 128}


@dataclass
class Ledger:
    """Everything recorded in this process: PTX by library, static shapes by identity, and the maps
    that probes have told, by the bytes that stand for them. ids: others in every process, as those
    of a kernel that was compiled in another one are constants of its host code."""

    ptx: dict[int, str] = field(default_factory=dict)
    shapes: dict[int, Shape] = field(default_factory=dict)
    maps: dict[bytes, TensorMap] = field(default_factory=dict)
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(secrets.randbits(56)))

    def learn(self, probe: Launch) -> None:
        """Takes in the launch of a probe."""
        word = lambda i: int.from_bytes(probe.argument(i, 8), "little", signed=True)
        shape = self.shapes[word(1)]
        rank = len(shape.leaves)
        extents = [word(3 + i) for i in range(rank)]
        strides = [word(3 + rank + i) for i in range(rank)]
        self.maps[probe.argument(0, TOLD_BYTES)] = shape.bind(word(2), extents, strides)


LEDGER = Ledger()


def leaves(tree: Any) -> list[Any]:
    if isinstance(tree, tuple | list):
        return [leaf for branch in tree for leaf in leaves(branch)]
    return [tree]


def paths(tree: Any, prefix: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    """The path of every leaf, as the modes of a basis name it."""
    if isinstance(tree, tuple | list):
        return [path for i, branch in enumerate(tree) for path in paths(branch, (*prefix, i))]
    return [prefix]


def basis(stride: Any) -> tuple[int, tuple[int, ...]]:
    """(scale, path) of a basis stride; scale 0 for a stride that moves nowhere."""
    if isinstance(stride, int):
        if stride:
            raise NotImplementedError(f"stride {stride} is no coordinate")
        return 0, ()
    mode = stride.mode
    return int(stride.value), tuple(mode) if isinstance(mode, list | tuple) else (mode,)


def grid_of(extents: list[int]) -> np.ndarray:
    """[N, rank]: every coordinate, the first fastest."""
    flat = np.arange(int(np.prod(extents)))
    steps = np.cumprod([1, *extents[:-1]])
    return flat[:, None] // steps % np.asarray(extents)


def shape_of(tensor: Any, tma_tensor: Any, smem_layout: Any, tile: Any) -> Shape:
    """The static part of a tensor map.

    tensor: what is copied; tma_tensor: the same with coordinates of the map for strides;
    smem_layout: of one stage; tile: the layout from an element of the stage to its coordinates.
    """
    advance = [basis(stride) for stride in leaves(tma_tensor.layout.stride)]
    rank = 1 + max(path[0] for scale, path in advance if scale)
    place = {path: i for i, path in enumerate(paths(tensor.shape))}
    leaf_map = [(scale, path[0] if scale else 0) for scale, path in advance]

    coordinates = np.zeros((int(np.prod(leaves(tile.shape))), rank), np.int64)
    grid = grid_of(leaves(tile.shape))
    for column, stride in enumerate(leaves(tile.stride)):
        scale, path = basis(stride)
        if scale:
            step, dim = leaf_map[place[leaf_path(path, place)]]
            coordinates[:, dim] += grid[:, column] * scale * step
    outer = getattr(smem_layout, "outer", smem_layout)
    offsets = grid_of(leaves(outer.shape)) @ np.asarray(leaves(outer.stride))
    swizzle = re.match(r"S<(\d),(\d),(\d)>", str(smem_layout))
    return Shape(
        dtype=element(tensor.element_type),
        box=box_of(offsets, coordinates),
        swizzle=SWIZZLE_SPAN[int(swizzle.group(1))] if swizzle else 0,
        leaves=tuple(leaf_map),
    )


def leaf_path(path: tuple[int, ...], place: dict[tuple[int, ...], int]) -> tuple[int, ...]:
    """A coordinate of a nested mode advances its first leaf."""
    while path not in place:
        path = (*path, 0)
    return path


def element(numeric: Any) -> np.dtype:
    """bf16 moves as 16-bit integers: copies do no arithmetic on it."""
    kinds = {"Float32": "f4", "Float16": "f2", "Int32": "i4", "Int64": "i8", "Float64": "f8"}
    return np.dtype(kinds.get(numeric.__name__, f"u{numeric.width // 8}"))


def shared_out(box: tuple[int, ...], ctas: int) -> tuple[int, ...]:
    """Of a box, what each of some CTAs loads for all of them: the outermost dimensions are
    divided."""
    sizes = list(box)
    for dim in reversed(range(len(sizes))):
        divisor = min(ctas, sizes[dim])
        sizes[dim], ctas = sizes[dim] // divisor, ctas // divisor
    return tuple(sizes)


def probe(info: Any, tensor: Any, tile: Any, smem_layout: Any, ctas: int = 1) -> None:
    """Registers the atom and emits the launch that will tell its bytes."""
    from cutlass import Int64, cute
    from cutlass.cute.nvgpu import cpasync

    @cute.kernel
    def tensor_map_probe(atom: cute.CopyAtom, words: tuple):
        cpasync.prefetch_descriptor(atom)

    atom, tma_tensor = info
    identity = next(LEDGER.ids)
    if cute.rank(smem_layout) > cute.rank(tile):
        smem_layout = cute.select(smem_layout, mode=list(range(cute.rank(tile))))
    shape = shape_of(tensor, tma_tensor, smem_layout, tile)
    LEDGER.shapes[identity] = replace(shape, box=shared_out(shape.box, ctas))
    words = (
        identity,
        tensor.iterator.toint(),
        *leaves(tensor.shape),
        *leaves(tensor.layout.stride),
    )
    tensor_map_probe(atom, tuple(Int64(word) for word in words)).launch(
        grid=(1, 1, 1), block=(1, 1, 1)
    )


def tile_of_copy(tensor: Any, tiler: Any) -> Any:
    from cutlass import cute

    return cute.composition(cute.make_identity_layout(tensor.shape), tiler)


def tile_of_operand(operand: str, mma_tiler: Any, tiled_mma: Any) -> Any:
    """The part of the MMA tile that one CTA loads (A, B) or stores (C)."""
    from cutlass import cute

    m, n, *k = mma_tiler
    tiler = {"A": (m, *k), "B": (n, *k), "C": (m, n)}[operand]
    part = getattr(tiled_mma.get_slice(0), f"partition_{operand}")
    return part(cute.make_identity_tensor(tiler)).layout


def wrapped_copy(make: Callable[..., Any]) -> Callable[..., Any]:
    def make_tiled_tma_atom(op, gmem_tensor, smem_layout_, cta_tiler, num_multicast=1, **kwargs):
        info = make(op, gmem_tensor, smem_layout_, cta_tiler, num_multicast, **kwargs)
        tile = tile_of_copy(gmem_tensor, cta_tiler)
        probe(info, gmem_tensor, tile, smem_layout_, num_multicast)
        return info

    return make_tiled_tma_atom


def wrapped_operand(make: Callable[..., Any], operand: str) -> Callable[..., Any]:
    def make_atom(op, gmem_tensor, smem_layout, mma_tiler_mnk, tiled_mma, *args, **kwargs):
        info = make(op, gmem_tensor, smem_layout, mma_tiler_mnk, tiled_mma, *args, **kwargs)
        tile = tile_of_operand(operand, mma_tiler_mnk, tiled_mma)
        probe(info, gmem_tensor, tile, smem_layout)
        return info

    return make_atom


class Compile:
    """`cute.compile` that keeps the PTX under the handle that the library is loaded with."""

    def __init__(self, inner: Any, folder: str) -> None:
        self.inner, self.folder = inner, folder

    def __getitem__(self, options: Any) -> "Compile":
        return Compile(self.inner[options], self.folder)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __call__(self, function: Any, *args: Any, options: str = "", **kwargs: Any) -> Any:
        wanted = {**OPTIONS, "--dump-dir": f"--dump-dir={self.folder}"}
        added = " ".join(text for key, text in wanted.items() if key not in options)
        options = f"{options} {added}".strip()
        before = set(LEDGER.shapes)
        with running_on(options.split("--gpu-arch=")[1].split()[0]):
            compiled = self.inner(function, *args, options=options, **kwargs)
        compiled.num_devices = 1
        compiled.shapes = {i: shape for i, shape in LEDGER.shapes.items() if i not in before}
        handle = next(LEDGER.ids)
        LEDGER.ptx[handle] = compiled.__ptx__
        standin.next_library(handle)
        compiled.to()  # loads the library, so that the handle is this module's
        return compiled


def object_file(make: Callable[[], Any], *parts: Any) -> bytes:
    """As `disk.object_file`, by the cache of kernels for the emulator. It is loaded next."""

    def compiled() -> tuple[bytes, str, dict[int, Shape]]:
        made = make()
        return disk.exported(made), made.__ptx__, made.shapes

    content, ptx, shapes = cached(compiled, *parts)
    handle = next(LEDGER.ids)
    LEDGER.ptx[handle] = ptx
    LEDGER.shapes |= shapes
    standin.next_library(handle)
    return content


def replacements(folder: str) -> Iterator[tuple[Any, Any]]:
    """(public callable, what stands in for it)."""
    from cutlass import cute
    from cutlass.cute import nvgpu

    yield disk.object_file, object_file
    yield cute.compile, Compile(cute.compile, folder)
    copy = nvgpu.cpasync.make_tiled_tma_atom
    yield copy, wrapped_copy(copy)
    for operand in "ABC":
        make = getattr(nvgpu, f"make_tiled_tma_atom_{operand}")
        yield make, wrapped_operand(make, operand)


@contextmanager
def replaced(pairs: list[tuple[Any, Any]]) -> Iterator[None]:
    """Every module attribute that is one of the callables becomes what stands in for it."""
    swapped = []
    for module in list(sys.modules.values()):
        names = vars(module) if hasattr(module, "__dict__") else {}
        for name, value in list(names.items()):
            for old, new in pairs:
                if value is old:
                    setattr(module, name, new)
                    swapped.append((module, name, old))
    try:
        yield
    finally:
        for module, name, old in swapped:
            setattr(module, name, old)


@contextmanager
def running_on(arch: str) -> Iterator[None]:
    """The GPU that CuTe DSL takes to be there: it loads only what that one can run."""
    from cutlass.cutlass_dsl import CuTeDSL

    settings = CuTeDSL._get_dsl().envar
    before, settings.arch = settings.arch, arch
    try:
        yield
    finally:
        settings.arch = before


_active = False


@contextmanager
def linked() -> Iterator[None]:
    """Host code that is compiled or loaded inside is linked to the stand-in runtime. The first
    library of a process decides for all: after one of CUDA's own, no kernel could be run.
    """
    from cutlass.cutlass_dsl import CuTeDSL

    settings = CuTeDSL._get_dsl().envar
    before, settings.shared_libs = settings.shared_libs, str(standin.path())
    try:
        with mock.patch.dict(os.environ, {"CUTE_DSL_LIBS": str(standin.path())}):
            yield
    finally:
        settings.shared_libs = before


@contextmanager
def recording() -> Iterator[None]:
    """Compile inside it what `run` shall run. Inside another one it does nothing."""
    global _active
    if _active:
        yield
        return
    with tempfile.TemporaryDirectory() as folder, replaced(list(replacements(folder))), linked():
        _active = True
        try:
            yield
        finally:
            _active = False
