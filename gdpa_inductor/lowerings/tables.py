"""The Inductor lowerings of gdpa::look_up and gdpa::look_up_backward.

A look-up is ATen's `index`, which Inductor fuses with what reads it. For its gradient there are two
ways:

- A kernel with tables of its own in shared memory (`kernels/cute/tables.py`), if the GPU has CuTe
  kernels, the table is small, and the terms are many. Its sums have the same bits in every run. So
  it also serves where torch is asked for deterministic algorithms.
- Additions to copies of the table (`look_up.summed`), in code that Inductor generates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import look_up
from .._compat import lowering, operators, shapes
from ..kernels.cute import certificates, tables
from ..kernels.cute.architectures import config_of
from .cute.rules import unusable

aten, prims = torch.ops.aten, torch.ops.prims
_LIBRARY = torch.library.Library("gdpa", "FRAGMENT")
# Below so many terms the CPU would wait longer for the launches than the GPU saves (an H200).
MANY = 1 << 25
# Below so many terms, or without the kernel, each place of a table is compared with all terms, as
# long as these are few comparisons. So the sums have the same bits in every run. (Not measured.)
SOME = 1 << 20
COMPARED = 1 << 32


def _table_sums(grad: Tensor, index: Tensor, size: int) -> Tensor:
    """Sums [W, size] in fp32 of gradients [W, R]."""
    if grad.device.type == "cuda":
        with torch.cuda.device(grad.device):
            return tables.sums(grad, index, size)
    return look_up.summed(grad.float(), index, 1, size)


def _fake_sums(grad: Tensor, index: Tensor, size: int) -> Tensor:
    return grad.new_empty((grad.shape[0], size), dtype=torch.float32)


_SUMS = "table_sums(Tensor grad, Tensor index, SymInt size) -> Tensor"
operators.define(_LIBRARY, _SUMS, _table_sums, _fake_sums)


def kernel() -> Callable[..., Tensor]:
    """The function that generated Python code calls. It saves torch's dispatcher."""
    return tables.sums


def lower(table: Any, index: Any, dim: int) -> Any:
    """The elements that are looked up. Inductor IR in and out."""
    return lowering.lowered(aten.index.Tensor, table, look_up.at(index, dim))


def lower_backward(grad: Any, index: Any, dim: int, size: Any) -> Any:
    """The gradient of a table. Inductor IR in and out."""
    whole, read, _, places = lowering.lowered_node_values()
    if _has_kernel(whole, read, dim, places, MANY):
        return _by_kernel(grad, index, dim, places)
    return _by_additions([grad, index, size], [whole, read, places], dim)


def lower_sums(terms: Any, index: Any, size: Any, whole: Tensor, read: Tensor) -> Any:
    """Sums [W, size] in fp32 of terms [W, R], those of each place. Inductor IR in and out.

    index: [R], of places that are in 0..size-1. whole, read: Fake tensors of terms and index.
    """
    if _has_kernel(whole, read, 1, size, SOME):
        return _by_kernel(terms, index, 1, size)
    count, places = shapes.size_hint(whole.numel()) or 0, shapes.size_hint(size) or 0
    operands, fakes = [terms, index, shapes.size_expr(size)], [whole, read, size]
    if count * places > COMPARED:
        return _by_additions(operands, fakes, 1)

    def formula(terms: Tensor, index: Tensor, size: int) -> Tensor:
        same = index == torch.arange(size, device=index.device)[:, None]
        return torch.where(same, terms[:, None], 0.0).sum(-1)

    return lowering.inline_formula(formula, operands, fakes)


def _by_additions(operands: list[Any], fakes: list[Any], dim: int) -> Any:
    """operands, fakes: Gradients, index and size, as IR and as fakes."""
    whole, read, places = fakes
    count, rows, size = map(shapes.size_hint, (whole.numel(), read.numel(), places))
    copies = look_up.copies(count // rows * size, count) if count and rows and size else 1

    def formula(grad: Tensor, index: Tensor, size: int) -> Tensor:
        return look_up.summed(grad, index, dim, size, copies)

    return lowering.inline_formula(formula, operands, fakes)


def _has_kernel(
    whole: Tensor, read: Tensor, dim: int, places: int | torch.SymInt, least: int
) -> bool:
    """least: The fewest terms, unless torch is asked for deterministic algorithms."""
    device, rest = whole.device, [*whole.shape[:dim], *whole.shape[dim + read.dim() :]]
    return (
        device.type == "cuda"
        and read.device == device
        and whole.dtype in tables.DTYPES
        and isinstance(places, int)
        and 0 < places <= tables.MOST
        and all(isinstance(size, int) for size in rest)
        and math.prod(rest) <= tables.MOST_COLUMNS
        and config_of(device) is not None
        and not unusable()
        and not certificates.objection(device, "tables")
        and (
            (shapes.size_hint(whole.numel()) or 0) >= least
            or torch.are_deterministic_algorithms_enabled()
        )
    )


def _by_kernel(grad: Any, index: Any, dim: int, size: int) -> Any:
    """The gradient [*P, T, *Q] from gradients [*P, *I, *Q], by sums of a matrix [P · Q, I]."""
    sizes, middle = grad.get_size(), len(index.get_size())
    rest = [d for d in range(len(sizes)) if not dim <= d < dim + middle]
    outer = [int(sizes[d]) for d in rest]
    columns, rows, device = math.prod(outer), index.get_numel(), grad.get_device()
    matrix = lowering.lowered(aten.permute.default, grad, [*rest, *range(dim, dim + middle)])
    matrix = lowering.unwidened(matrix)
    terms = lowering.lowered(aten.reshape.default, matrix, [columns, rows])
    terms = lowering.contiguous(terms)
    places = lowering.lowered(aten.reshape.default, index, [rows])
    places = lowering.contiguous(_in_32_bits(places))
    tables.precompile_sums(terms.get_dtype(), places.get_dtype(), size, device)
    callee = (__name__, "kernel", "")
    op = torch.ops.gdpa.table_sums.default
    sums = lowering.direct_call(op, callee, terms, places, size)
    sums = lowering.lowered(aten.reshape.default, sums, [*outer, size])
    back = [*range(dim), len(outer), *range(dim, len(outer))]
    sums = lowering.lowered(aten.permute.default, sums, back)
    return lowering.lowered(prims.convert_element_type.default, sums, grad.get_dtype())


def _in_32_bits(places: Any) -> Any:
    if lowering.is_in_memory(places):
        return places
    return lowering.lowered(prims.convert_element_type.default, places, torch.int32)
