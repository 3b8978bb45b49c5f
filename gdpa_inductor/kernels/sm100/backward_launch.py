"""The gradients of one call: compile the sides that are asked for, allocate, launch. Host only.

What the kernels cannot do is refused before, by `backward_limits.unsupported`.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import cuda.bindings.driver as cuda
import torch
from cutlass import Int32, Int64, cute
from torch import Tensor

from .backward import Backward
from .config import Config
from .program import DTYPES, LETTERS

SIDES = {"keys": ("k", "v"), "rows": ("q",)}  # which gradients a side writes
ITEMSIZES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Call:
    """One call. query: [B|1,H,N,D], or packed [L,H,D] with cu_q; key, value and cu_k alike;
    grad_out as the output is. rows, cols: the most of a sequence. aux, scalars: of the program.
    order: of the sequences."""

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
    matrices: tuple[Tensor, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrices", (self.query, self.key, self.value, self.grad_out))


def pointer(dtype: str, address: int, align: int = 16) -> Any:
    return cute.runtime.make_ptr(
        DTYPES[dtype], address, cute.AddressSpace.gmem, assumed_align=align
    )


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def output_dtype(config: Config, letter: str) -> str:
    """A gradient that is summed over the batch leaves the kernel in fp32, one per sequence."""
    return "float32" if letter in config.shared else config.dtype


@functools.cache
def compile(config: Config, side: str, options: str = "--gpu-arch=sm_100a") -> Any:
    """The kernel of one side; needs neither tensors nor a GPU."""
    return cute.compile(Backward(config, side), *example(config, side), options=options)


def example(config: Config, side: str) -> tuple[Any, ...]:
    """Arguments of the right types for tracing; nothing is read from them."""
    outputs = [output_dtype(config, letter) for letter in SIDES[side]]
    dtypes = [config.dtype] * 4 + outputs
    offsets = functools.partial(pointer, address=16, align=4)
    return (
        tuple(pointer(dtype, 16) for dtype in dtypes),
        tuple(Int32(1) for _ in range(8)),
        tuple(tuple(Int64(8) for _ in range(3)) for _ in dtypes),
        offsets(config.offsets) if config.jagged_q else None,
        offsets(config.offsets) if config.jagged_k else None,
        offsets("int32") if config.jagged_q or config.jagged_k else None,
        tuple(_aux(name, 0, [0] * len(LETTERS)) for name in config.aux) or None,
        tuple(Int64(0) for _ in range(config.mod.num_scalars)) or None,
        Int32(1),
        cuda.CUstream(0),
    )


def _aux(dtype: str, address: int, strides: Sequence[int]) -> tuple[Any, ...]:
    align = ITEMSIZES.get(dtype, 1)
    return pointer(dtype, address, align), tuple(Int64(stride) for stride in strides)


def launch(
    compiled: Any, config: Config, call: Call, outputs: Sequence[Tensor], ctas: int, stream: int
) -> None:
    """One side of the backward, into `outputs`."""
    tensors = (*call.matrices, *outputs)
    heads = [t.shape[-3 if t.dim() == 4 else -2] for t in call.matrices]
    lengths = [t.shape[-2 if t.dim() == 4 else -3] for t in call.matrices]
    sizes = (call.batch, *heads[:3], call.rows, call.cols, lengths[0], lengths[1])
    compiled(
        tuple(pointer(name_of(t.dtype), t.data_ptr()) for t in tensors),
        tuple(Int32(size) for size in sizes),
        tuple(tuple(Int64(s) for s in strides_of(t)) for t in tensors),
        _offsets(call.cu_q),
        _offsets(call.cu_k),
        _offsets(call.order),
        tuple(
            _aux(name_of(t.dtype), t.data_ptr(), _by_letter(config, i, t))
            for i, t in enumerate(call.aux)
        )
        or None,
        tuple(Int64(x) for x in call.scalars[: config.mod.num_scalars]) or None,
        Int32(ctas),
        cuda.CUstream(stream),
    )


def _offsets(tensor: Tensor | None) -> Any:
    if tensor is None:
        return None
    return pointer(name_of(tensor.dtype), tensor.data_ptr(), tensor.element_size())


def _by_letter(config: Config, number: int, tensor: Tensor) -> list[int]:
    """The stride of an aux operand along each letter of its access map."""
    access = config.mod.aux[number].access
    found = dict(zip(access, tensor.stride(), strict=True))
    return [found.get(letter, 0) for letter in LETTERS]


def strides_of(tensor: Tensor) -> tuple[int, int, int]:
    """(batch, head, row) in elements; a packed tensor has no batch. A dimension of size 1 is never
    stepped along, but TMA wants a multiple of 16 bytes there too."""
    steps = [stride if size > 1 else 8 for size, stride in zip(tensor.shape, tensor.stride())]
    return (0, steps[1], steps[0]) if tensor.dim() == 3 else (steps[0], steps[1], steps[2])


def gradients(
    config: Config, call: Call, needs: Sequence[bool], ctas: int, stream: int = 0
) -> list[Tensor | None]:
    """dQ, dK, dV where asked for, contiguous, in the dtype of the operand. ctas: how many run, one
    for each multiprocessor."""
    asked = dict(zip("qkv", needs, strict=False))
    found: dict[str, Tensor] = {}
    for side, letters in SIDES.items():
        if any(asked[letter] for letter in letters):
            outputs = {letter: room(config, call, letter) for letter in letters}
            compiled = compile(config, side)
            launch(compiled, config, call, list(outputs.values()), ctas, stream)
            found |= outputs
    return [finished(call, letter, found[letter]) if asked[letter] else None for letter in "qkv"]


def _operand(call: Call, letter: str) -> Tensor:
    return {"q": call.query, "k": call.key, "v": call.value}[letter]


def room(config: Config, call: Call, letter: str) -> Tensor:
    """Room for a gradient. Rows of a packed operand that take no part have a gradient of zero."""
    operand = _operand(call, letter)
    if letter in config.shared:
        return operand.new_empty(call.batch, *operand.shape[1:], dtype=torch.float32)
    if operand.dim() == 3:
        return operand.new_zeros(operand.shape)
    return operand.new_empty(operand.shape)


def finished(call: Call, letter: str, grad: Tensor) -> Tensor:
    """Summed over the batch where the operand was shared, always in the same order."""
    operand = _operand(call, letter)
    if grad.shape == operand.shape:
        return grad.to(operand.dtype)
    return grad.sum(0, keepdim=True).to(operand.dtype)
