"""From torch tensors to a launch: checks, the configuration, compiled kernels by configuration.

Kernels take raw pointers, sizes and strides, so that compiling needs no tensors and no GPU, and a
launch no DLPack. Nothing here reads a length from the device.
"""

import ctypes
import functools
import importlib
import itertools
import threading
from collections.abc import Sequence
from ctypes import c_int32, c_int64
from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import torch
from cutlass import Int32, Int64, cute
from torch import Tensor

from ...program.score_mod import ScoreMod
from ...rejection import GDPAError
from .architectures import config_of
from .config import KernelConfig, unsupported
from .program import DTYPES, LETTERS

SIZES = 8
ALIGNMENT = 16  # bytes: of every address and stride that TMA reads


class Words:
    """Numbers of one C type as one argument of a compiled kernel, in place of a tuple of them. CuTe
    DSL takes any object that says where its words lie."""

    __slots__ = ("addresses", "block")

    def __init__(self, kind: Any, values: Sequence[int]) -> None:
        self.block = (kind * len(values))(*values)
        start, size = ctypes.addressof(self.block), ctypes.sizeof(kind)
        self.addresses = [start + size * i for i in range(len(values))]

    def __c_pointers__(self) -> list[int]:
        return self.addresses


# What a compiled kernel takes, in order: see `LaunchCall.arguments`.
KINDS = (c_int64, c_int32, c_int64, c_int64, c_int64, c_int64, c_int64, c_int64, c_int32, c_int64)
Values = tuple[Sequence[int] | None, ...]


class Launcher:
    """A compiled kernel and the words of its arguments. CuTe DSL looks at the words once; a launch
    overwrites them."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.lock = kernel, threading.Lock()
        self.words: list[Words | None] = []
        self.prepared: list[Any] = []

    def __call__(self, values: Values) -> None:
        with self.lock:
            if self.prepared:
                for words, numbers in zip(self.words, values, strict=True):
                    if words is not None and numbers is not None:
                        words.block[:] = numbers
            else:
                self.words = [
                    None if numbers is None else Words(kind, numbers)
                    for kind, numbers in zip(KINDS, values, strict=True)
                ]
                self.prepared, _ = self.kernel.generate_execution_args(*self.words)
            self.kernel.run_compiled_program(self.prepared)


@functools.cache
def compiled(config: KernelConfig, more: str = "") -> Any:
    """The kernel of a configuration, ready to be launched. Needs no GPU. more: compiler options."""
    return cute.compile(forward_kernel(config), *example(config), options=options(config, more))


@functools.cache
def launcher(config: KernelConfig) -> Launcher:
    """Of the forward of a configuration."""
    return Launcher(compiled(config))


def forward_kernel(config: KernelConfig) -> Any:
    """The forward of a configuration, before it is compiled."""
    folder = importlib.import_module(f".{config.folder}.forward.kernel", __package__)
    return folder.KERNEL(config)


def options(config: KernelConfig, more: str = "") -> str:
    """Of the compiler."""
    return f"--gpu-arch={config.arch} {more}".rstrip()


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    aux: Sequence[Tensor],
    scalars: Sequence[int],
    program: str,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    *,
    fast: bool = True,
    skip: bool = True,
    ctas: int = 0,
    stream: int | None = None,
    out: Tensor | None = None,
    order: Tensor | None = None,
    kind: type[KernelConfig] | None = None,
) -> Tensor:
    """O of gdpa::attention, in its layout; arguments as those of the op.

    ctas: how many to launch, by default one for each multiprocessor. stream: a CUDA stream handle,
    by default the current one. out: where to store, contiguous; zero where no sequence is. order:
    int64, in which the sequences are dealt to the CTAs, by default the longest first. kind: for
    which architecture, by default the device's.

    Raises:
        GDPAError: what the kernel does not take, and why.
    """
    call = LaunchCall(
        query, key, value, aux, scalars, program, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
        max_seqlen_k, kind or config_of(query.device),
    )  # fmt: skip
    config = call.config(fast, skip)
    _check(config, query, key, value, aux)
    if out is None:
        # Rows of a jagged query that no sequence owns are zero, and no tile covers them.
        make = torch.zeros if config.jagged_q else torch.empty
        out = make(call.output_shape, dtype=value.dtype, device=value.device)
    if 0 in (*out.shape, call.batch, key.numel()):
        return out.zero_()
    ctas, stream = place(query.device, ctas, stream)
    order = call.longest_first() if order is None else order
    launcher(config)(call.arguments(config, [out], order, ctas, stream))
    return out


def place(device: torch.device, ctas: int, stream: int | None) -> tuple[int, int]:
    """ctas and stream as given, or one for each multiprocessor, and the current one."""
    if stream is None:
        stream = torch.cuda.current_stream(device).cuda_stream
    return ctas or torch.cuda.get_device_properties(device).multi_processor_count, stream


@dataclass(frozen=True)
class LaunchCall:
    """The operands of one call, and what follows from their shapes."""

    query: Tensor
    key: Tensor
    value: Tensor
    aux: Sequence[Tensor]
    scalars: Sequence[int]
    program: str
    cu_q: Tensor | None
    cu_k: Tensor | None
    max_q: int
    max_k: int
    kind: type[KernelConfig] | None

    @property
    def offsets(self) -> Tensor | None:
        return self.cu_q if self.cu_k is None else self.cu_k

    @functools.cached_property
    def batch(self) -> int:
        if self.offsets is not None:
            return self.offsets.shape[0] - 1
        return max(x.shape[0] for x in (self.query, self.key, self.value))

    @property
    def rows(self) -> int:
        return self.query.shape[2] if self.cu_q is None else self.max_q

    @functools.cached_property
    def read(self) -> list[Tensor]:
        """Query, key and value as TMA reads them; copies live as long as the call."""
        return [aligned(x) for x in (self.query, self.key, self.value)]

    @functools.cached_property
    def sides(self) -> tuple[Tensor | None, Tensor | None]:
        """The offsets of queries and keys, in one dtype."""
        if self.cu_q is None or self.cu_k is None or self.cu_q.dtype == self.cu_k.dtype:
            return self.cu_q, self.cu_k
        return self.cu_q.to(self.cu_k.dtype), self.cu_k

    @property
    def output_shape(self) -> tuple[int, ...]:
        heads, width = self.query.shape[1], self.value.shape[-1]
        if self.cu_q is not None:
            return self.query.shape[0], heads, width
        return self.batch, heads, self.rows, width

    def config(self, fast: bool, skip: bool) -> KernelConfig:
        if self.kind is None:
            raise GDPAError(f"there is no CuTe kernel for {self.query.device}")
        matrices = {"q": self.query, "k": self.key, "v": self.value}
        return self.kind(
            dtype=name(self.query.dtype),
            head_dim=self.query.shape[-1],
            value_dim=self.value.shape[-1],
            program=self.program,
            aux=tuple(name(x.dtype) for x in self.aux),
            jagged_q=self.cu_q is not None,
            jagged_k=self.cu_k is not None,
            offsets="int32" if self.offsets is None else name(self.offsets.dtype),
            shared=frozenset(
                letter
                for letter, x in matrices.items()
                if x.dim() == 4 and x.shape[0] == 1 != self.batch
            ),
            fast=fast,
            skip=skip,
            vectors=_vectors(self.aux, ScoreMod.parse(self.program)),
        )

    def longest_first(self) -> Tensor | None:
        """The order in which sequences are dealt to the CTAs, made on the device."""
        if self.offsets is None:
            return None
        return torch.argsort(self.offsets[1:] - self.offsets[:-1], descending=True)

    def arguments(
        self,
        config: KernelConfig,
        others: Sequence[Tensor],
        order: Tensor | None,
        ctas: int,
        stream: int,
    ) -> Values:
        """What a compiled kernel takes. others: its matrices beside query, key and value."""
        matrices = [*self.read, *others]
        totals = [x.shape[-3] if x.dim() == 3 else x.shape[2] for x in matrices[:2]]
        cols = self.key.shape[2] if self.cu_k is None else self.max_k
        heads = [x.shape[1] for x in matrices[:3]]
        specs = config.mod.aux
        operands = [_operand(x, spec.access) for x, spec in zip(self.aux, specs, strict=True)]
        lists = (*self.sides, None if self.offsets is None else order)
        return (
            [x.data_ptr() for x in matrices],
            (self.batch, *heads, self.rows, cols, *totals),
            [step for x in matrices for step in strides(x)],
            *(None if x is None else (x.data_ptr(),) for x in lists),
            list(itertools.chain(*operands)) or None,
            self.scalars[: config.mod.num_scalars] or None,
            (ctas,),
            (stream,),
        )


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def strides(matrix: Tensor) -> tuple[int, int, int]:
    """(batch, head, row), in elements. That of an extent of one may be anything; TMA wants
    multiples of 16 bytes."""
    known = matrix.stride()
    if 1 in matrix.shape:
        known = tuple(8 if n == 1 else s for n, s in zip(matrix.shape, known, strict=True))
    return (8, known[1], known[0]) if len(known) == 3 else (known[0], known[1], known[2])


def aligned(matrix: Tensor) -> Tensor:
    """The matrix, or a copy of it where TMA could not read it as it lies (expanded, for one)."""
    unit = ALIGNMENT // matrix.element_size()
    fits = matrix.stride(-1) == 1 and matrix.data_ptr() % ALIGNMENT == 0
    batch, head, row = strides(matrix)
    if fits and batch and head and row and batch % unit == head % unit == row % unit == 0:
        return matrix
    return matrix.clone(memory_format=torch.contiguous_format)


def _vectors(aux: Sequence[Tensor], program: ScoreMod) -> frozenset[int]:
    """The operands that can be read 16 bytes at a time along the keys."""

    def side_by_side(tensor: Tensor, access: Sequence[str]) -> bool:
        unit = ALIGNMENT // tensor.element_size()
        steps = dict(zip(access, tensor.stride(), strict=True))
        return (
            steps.pop("kv_idx", 0) == 1
            and tensor.data_ptr() % ALIGNMENT == 0
            and all(step % unit == 0 for step in steps.values())
        )

    found = (side_by_side(x, spec.access) for x, spec in zip(aux, program.aux))
    return frozenset(number for number, fits in enumerate(found) if fits)


def _check(
    config: KernelConfig, query: Tensor, key: Tensor, value: Tensor, aux: Sequence[Tensor]
) -> None:
    """Raise GDPAError where the operands do not fit the kernel, the program or each other."""
    heads, key_heads, value_heads = (x.shape[1] for x in (query, key, value))
    length = -3 if config.jagged_k else -2
    widths = (query.shape[-1], value.shape[-1])
    complaints = (
        unsupported(type(config), (query.dtype, value.dtype), widths, config.aux),
        key.dtype != query.dtype and f"query is {query.dtype}, key {key.dtype}",
        key.shape[-1] != query.shape[-1] and "query and key differ in head dim",
        key.shape[length] != value.shape[length] and "key and value differ in length",
        (key_heads == 0 or heads % key_heads or value_heads == 0 or heads % value_heads)
        and f"{heads} query heads are no multiple of {key_heads} key, {value_heads} value heads",
        len(aux) != len(config.mod.aux) and f"the program declares {len(config.mod.aux)} operands",
        len({x.device for x in (query, key, value, *aux)}) > 1 and "operands on several devices",
    )
    for complaint in complaints:
        if complaint:
            raise GDPAError(complaint)


def _pointer(dtype: str, align: int = ALIGNMENT) -> Any:
    """To global memory. The address is not read."""
    gmem = cute.AddressSpace.gmem
    return cute.runtime.make_ptr(DTYPES[dtype], ALIGNMENT, gmem, assumed_align=align)


def _operand(tensor: Tensor, access: Sequence[str]) -> list[int]:
    """The address and the strides by letter of an operand of the program."""
    by_letter = dict(zip(access, tensor.stride(), strict=True))
    return [tensor.data_ptr(), *(by_letter.get(letter, 0) for letter in LETTERS)]


def example(config: KernelConfig, others: Sequence[str] = ()) -> tuple[Any, ...]:
    """Arguments of the right types for tracing; nothing is read from them. others: dtypes of the
    matrices beside query, key and value, by default the output's."""
    dtypes = [config.dtype] * 3 + list(others or (config.dtype,))
    jagged = (config.jagged_q, config.jagged_k)
    return (
        tuple(_pointer(dtype) for dtype in dtypes),
        tuple(Int32(1) for _ in range(SIZES)),
        tuple(tuple(Int64(8) for _ in range(3)) for _ in dtypes),
        *(_pointer(config.offsets, _width(config.offsets)) if side else None for side in jagged),
        _pointer("int64", 8) if any(jagged) else None,
        tuple(
            (_pointer(dtype, _width(dtype)), tuple(Int64(0) for _ in LETTERS))
            for dtype in config.aux
        )
        or None,
        tuple(Int64(0) for _ in range(config.mod.num_scalars)) or None,
        Int32(1),
        cuda.CUstream(0),
    )


def _width(dtype: str) -> int:
    size: int = getattr(torch, dtype).itemsize
    return size
