"""The gradients of one call: compile the sides that are asked for, allocate, launch. Host only.

What the kernels cannot do is refused before, by `backward_limits.unsupported`. Nothing here reads a
length from the device.
"""

import functools
import itertools
from collections.abc import Sequence
from ctypes import c_int32, c_int64
from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import torch
from cutlass import Int32, Int64, cute
from torch import Tensor

from ...rejection import GDPAError
from .backward import Backward
from .backward_limits import unsupported
from .config import Config
from .launch import ALIGNMENT, ARCHITECTURE, Words, aligned, name, strides
from .program import DTYPES, LETTERS

SIDES = {"keys": ("k", "v"), "rows": ("q",)}  # which gradients a side writes


@dataclass(frozen=True)
class Call:
    """One call. query: [B|1,H,N,D], or packed [L,H,D] with cu_q; key, value and cu_k alike;
    grad_out as the output is. rows, cols: the most of a sequence. aux, scalars: of the program.
    order: int64, in which packed sequences are dealt to the CTAs."""

    query: Tensor
    key: Tensor
    value: Tensor
    grad_out: Tensor
    batch: int
    rows: int
    cols: int
    aux: Sequence[Tensor] = ()
    scalars: Sequence[int] = ()
    cu_q: Tensor | None = None
    cu_k: Tensor | None = None
    order: Tensor | None = None

    @property
    def matrices(self) -> tuple[Tensor, ...]:
        return self.query, self.key, self.value, self.grad_out

    def operand(self, letter: str) -> Tensor:
        return {"q": self.query, "k": self.key, "v": self.value}[letter]


def backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    aux: Sequence[Tensor],
    scalars: Sequence[int],
    program: str,
    needs: Sequence[bool],
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    *,
    fast: bool = True,
    skip: bool = True,
    ctas: int = 0,
    stream: int | None = None,
) -> list[Tensor]:
    """Those of dQ, dK, dV of gdpa::attention that `needs` asks for, contiguous, in the dtype of the
    operand; arguments as those of the op. Equal bits from run to run.

    ctas: how many to launch, by default one for each multiprocessor. stream: a CUDA stream handle,
    by default the current one.

    Raises:
        GDPAError: what the kernels do not take, and why.
    """
    offsets = cu_seqlens_k if cu_seqlens_k is not None else cu_seqlens_q
    if cu_seqlens_q is not None and offsets is not None:
        cu_seqlens_q = cu_seqlens_q.to(offsets.dtype)
    q, k, v, grad = (aligned(x) for x in (query, key, value, grad_out))
    lengths = None if offsets is None else offsets[1:] - offsets[:-1]
    call = Call(
        q,
        k,
        v,
        grad,
        batch=grad.shape[0] if lengths is None else lengths.shape[0],
        rows=query.shape[2] if cu_seqlens_q is None else max_seqlen_q,
        cols=key.shape[2] if cu_seqlens_k is None else max_seqlen_k,
        aux=aux,
        scalars=scalars,
        cu_q=cu_seqlens_q,
        cu_k=cu_seqlens_k,
        order=None if lengths is None else torch.argsort(lengths, descending=True),
    )
    config = configuration(call, program, fast, skip)
    if reason := unsupported(config, needs, key.shape[1], value.shape[1]):
        raise GDPAError(reason)
    if stream is None:
        stream = torch.cuda.current_stream(query.device).cuda_stream
    ctas = ctas or torch.cuda.get_device_properties(query.device).multi_processor_count
    return [x for x in gradients(config, call, needs, ctas, stream) if x is not None]


def configuration(call: Call, program: str, fast: bool = True, skip: bool = True) -> Config:
    """The compile-time part of a call."""
    offsets = call.cu_q if call.cu_q is not None else call.cu_k
    return Config(
        dtype=name(call.query.dtype),
        head_dim=call.query.shape[-1],
        value_dim=call.value.shape[-1],
        program=program,
        aux=tuple(name(x.dtype) for x in call.aux),
        jagged_q=call.cu_q is not None,
        jagged_k=call.cu_k is not None,
        shared=frozenset(
            letter
            for letter in "qkv"
            if call.operand(letter).dim() == 4 and call.operand(letter).shape[0] == 1 != call.batch
        ),
        fast=fast,
        skip=skip,
        offsets="int32" if offsets is None else name(offsets.dtype),
    )


def gradients(
    config: Config, call: Call, needs: Sequence[bool], ctas: int, stream: int
) -> list[Tensor | None]:
    """dQ, dK, dV where asked for. A side writes all its gradients."""
    asked = dict(zip("qkv", needs, strict=False))
    found: dict[str, Tensor] = {}
    for side, letters in SIDES.items():
        if any(asked[letter] for letter in letters):
            outputs = {letter: room(config, call, letter) for letter in letters}
            if all(x.numel() for x in (*call.matrices, *outputs.values())):
                launch(compiled(config, side), config, call, list(outputs.values()), ctas, stream)
            else:
                outputs = {letter: x.zero_() for letter, x in outputs.items()}
            found |= outputs
    return [finished(call, letter, found[letter]) if asked[letter] else None for letter in "qkv"]


def room(config: Config, call: Call, letter: str) -> Tensor:
    """For a gradient. One that is summed over the batch leaves the kernel in fp32, one for each
    sequence. Rows of a packed operand that take no part have a gradient of zero."""
    operand = call.operand(letter)
    if letter in config.shared:
        return operand.new_empty(call.batch, *operand.shape[1:], dtype=torch.float32)
    make = operand.new_zeros if operand.dim() == 3 else operand.new_empty
    return make(operand.shape)


def finished(call: Call, letter: str, grad: Tensor) -> Tensor:
    """Summed over the batch where the operand was shared, always in the same order."""
    operand = call.operand(letter)
    if grad.shape == operand.shape:
        return grad
    return grad.sum(0, keepdim=True).to(operand.dtype)


@functools.cache
def compiled(config: Config, side: str, options: str = ARCHITECTURE) -> Any:
    """The kernel of one side, ready to be launched. Needs no GPU."""
    return cute.compile(Backward(config, side), *_example(config, side), options=options)


def launch(
    kernel: Any, config: Config, call: Call, outputs: Sequence[Tensor], ctas: int, stream: int
) -> None:
    """One side of the backward, into `outputs`."""
    tensors = (*call.matrices, *outputs)
    heads = [x.shape[1] for x in call.matrices[:3]]
    totals = [x.shape[0] if x.dim() == 3 else x.shape[2] for x in (call.query, call.key)]
    sizes = (call.batch, *heads, call.rows, call.cols, *totals)
    operands = (_words(x, spec.access) for x, spec in zip(call.aux, config.mod.aux, strict=True))
    kernel(
        Words(c_int64, [x.data_ptr() for x in tensors]),
        Words(c_int32, sizes),
        Words(c_int64, [step for x in tensors for step in strides(x)]),
        *(
            None if x is None else Words(c_int64, [x.data_ptr()])
            for x in (call.cu_q, call.cu_k, call.order)
        ),
        Words(c_int64, itertools.chain(*operands)) if call.aux else None,
        Words(c_int64, call.scalars[: config.mod.num_scalars]) if config.mod.num_scalars else None,
        Words(c_int32, [ctas]),
        Words(c_int64, [stream]),
    )


def _words(tensor: Tensor, access: Sequence[str]) -> list[int]:
    """The address and the strides by letter of an operand of the program."""
    steps = dict(zip(access, tensor.stride(), strict=True))
    return [tensor.data_ptr(), *(steps.get(letter, 0) for letter in LETTERS)]


def _pointer(dtype: str, address: int, align: int = ALIGNMENT) -> Any:
    gmem = cute.AddressSpace.gmem
    return cute.runtime.make_ptr(DTYPES[dtype], address, gmem, assumed_align=align)


def _example(config: Config, side: str) -> tuple[Any, ...]:
    """Arguments of the right types for tracing; nothing is read from them."""
    outputs = ["float32" if x in config.shared else config.dtype for x in SIDES[side]]
    dtypes = [config.dtype] * 4 + outputs
    jagged = (config.jagged_q, config.jagged_k)
    offsets = functools.partial(_pointer, address=ALIGNMENT)
    width = _width(config.offsets)
    return (
        tuple(_pointer(dtype, ALIGNMENT) for dtype in dtypes),
        tuple(Int32(1) for _ in range(8)),
        tuple(tuple(Int64(8) for _ in range(3)) for _ in dtypes),
        *(offsets(config.offsets, align=width) if x else None for x in jagged),
        offsets("int64", align=8) if any(jagged) else None,
        tuple(
            (offsets(dtype, align=_width(dtype)), (Int64(0),) * len(LETTERS))
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
