"""fbgemm's two jagged operators, or replacements by ATen's kernels if fbgemm is not installed.

HSTU's published code calls these operators by name. fbgemm's package for CPUs has no kernels for
GPUs, and its package for GPUs fits few versions of torch. ATen's kernels compute the same if no
sequence is longer than the padded length. A longer one is cut by fbgemm only.

Notation: L rows of all sequences, B sequences, n the padded length, E channels.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import Library

aten = torch.ops.aten
Offsets = list[Tensor]
Sizes = list[int]
SCHEMAS = (
    "jagged_to_padded_dense_forward(Tensor values, Tensor[] offsets, SymInt[] max_lengths,"
    " float padding_value) -> Tensor",
    "dense_to_jagged_forward(Tensor dense, Tensor[] offsets, SymInt? total_L) -> Tensor",
    "jagged_to_padded_dense(Tensor values, Tensor[] offsets, SymInt[] max_lengths,"
    " float padding_value=0.0) -> Tensor",
    "dense_to_jagged(Tensor dense, Tensor[] offsets, SymInt? total_L=None) -> (Tensor, Tensor[])",
)
_library: list[Library] = []


def provide() -> None:
    """Load fbgemm, or define its operators. Only the first call does this."""
    if _library:
        return
    try:
        import fbgemm_gpu  # noqa: F401
    except (ImportError, OSError):
        _library.append(define())


def define() -> Library:
    """Define the operators, with derivatives and shapes.

    The two operators without "_forward" call the other two.
    """
    library = Library("fbgemm", "DEF")
    for schema in SCHEMAS:
        library.define(schema)
    kernels = {
        "jagged_to_padded_dense_forward": aten._jagged_to_padded_dense_forward,
        "dense_to_jagged_forward": unpadded,
    }
    outer = {"jagged_to_padded_dense": pad, "dense_to_jagged": unpad}
    for name, kernel in kernels.items():
        library.impl(name, kernel, "CPU")
        library.impl(name, kernel, "CUDA")
    for name, function in outer.items():
        library.impl(name, function, "CompositeImplicitAutograd")
    torch.library.register_fake("fbgemm::jagged_to_padded_dense_forward", pad_shape, lib=library)
    torch.library.register_fake("fbgemm::dense_to_jagged_forward", unpad_shape, lib=library)
    torch.library.register_autograd(
        "fbgemm::jagged_to_padded_dense_forward", pad_backward, setup_context=keep_pad, lib=library
    )
    torch.library.register_autograd(
        "fbgemm::dense_to_jagged_forward", unpad_backward, setup_context=keep_unpad, lib=library
    )
    return library


def pad(values: Tensor, offsets: Offsets, max_lengths: Sizes, padding_value: float = 0.0) -> Tensor:
    """Pad rows [L, E] to [B, n, E]."""
    forward = torch.ops.fbgemm.jagged_to_padded_dense_forward
    padded: Tensor = forward(values, offsets, max_lengths, padding_value)
    return padded


def unpad(dense: Tensor, offsets: Offsets, total_L: int | None = None) -> tuple[Tensor, Offsets]:
    """Remove padding, [B, n, E] to [L, E]. Returns the rows and the offsets."""
    return torch.ops.fbgemm.dense_to_jagged_forward(dense, offsets, total_L), offsets


@torch.compiler.disable
def unpadded(dense: Tensor, offsets: Offsets, total_L: int | None) -> Tensor:
    total = int(offsets[0][-1]) if total_L is None else total_L
    values: Tensor = aten._padded_dense_to_jagged_forward(dense, offsets, total)
    return values


def pad_shape(values: Tensor, offsets: Offsets, max_lengths: Sizes, padding_value: float) -> Tensor:
    return values.new_empty(offsets[0].shape[0] - 1, *max_lengths, *values.shape[1:])


def unpad_shape(dense: Tensor, offsets: Offsets, total_L: int | None) -> Tensor:
    total = torch.library.get_ctx().new_dynamic_size() if total_L is None else total_L
    return dense.new_empty(total, *dense.shape[2:])


def keep_pad(ctx: Any, inputs: Any, output: Any) -> None:
    values, offsets, *_ = inputs
    ctx.save_for_backward(*offsets)
    ctx.total = values.shape[0]


def pad_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, list[None], None, None]:
    grads = torch.ops.fbgemm.dense_to_jagged_forward(grad, list(ctx.saved_tensors), ctx.total)
    return grads, [None], None, None


def keep_unpad(ctx: Any, inputs: Any, output: Any) -> None:
    dense, offsets, _ = inputs
    ctx.save_for_backward(*offsets)
    ctx.lengths = list(dense.shape[1:-1])


def unpad_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, list[None], None]:
    grads = torch.ops.fbgemm.jagged_to_padded_dense_forward(
        grad, list(ctx.saved_tensors), ctx.lengths, 0.0
    )
    return grads, [None], None
