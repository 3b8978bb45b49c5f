"""The CPU and the chunked lowering: one call of an operator in the generated code.

`gdpa::attention_cpu`, `gdpa::attention_chunked` and their backwards have the arguments and results
of the public ops, but never hold an M×N tensor. The chunked ones run on any device. Beside results
they need at most 64 MiB, whatever the lengths; jagged sides are padded first. Generated code calls
the operators by name. So this module has to be imported before code is loaded from a cache
(`ops` does so for those of the CPU).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .._compat import dynamo, lowering, shapes, templates
from ..kernels import devices
from ..kernels.blocked import chunks, fused, jagged, loop
from ..kernels.blocked.loop import Results
from ..kernels.blocked.operands import BlockOperands
from ..kernels.triton.configs import Config
from ..operands import (
    Operands,
    aux_from_axes,
    aux_on_axes,
    aux_sums,
    check,
    gathered,
    in_order,
    output_shape,
    row_sums_spec,
    score_shape,
)
from ..ops import (
    CPU_BACKWARD,
    CPU_FORWARD,
    Arguments,
    Signature,
    fake_gradients,
    fake_output,
    no_autocast,
)
from ..options import KernelOptions
from ..program.expr import Expr, compute_dtype
from ..program.expr import aux as aux_leaf
from ..program.expr import call as call_of
from ..program.score_mod import Aux
from ..reference import reference, reference_backward
from ..sequences import Padding
from . import weights
from .call import Call, extern_call

log = logging.getLogger("gdpa_inductor")

_LIBRARY = torch.library.Library("gdpa", "FRAGMENT")
_KEYWORDS = ("fp32_scores", "lengths_vary", "fast", "skip", "weights_kernel")
FORWARD = Signature("attention_chunked", keywords=_KEYWORDS, pages=True)
BACKWARD = Signature("attention_chunked_backward", backward=True, keywords=_KEYWORDS)
# Tiles so small that two CTAs fit on a multiprocessor: one multiplies while the other stores.
_CONFIG = Config(128, 128, 8, 3)
_SMALL = Config(64, 64, 4, 2)  # for GPUs with little shared memory
_DEPTH = 64  # channels in a step, if there are more than `fused.WHOLE`


def lower_on_cpu(call: Call) -> Any:
    """The output (and row sums), or the wanted gradients of (query, key, value, *aux), contiguous:
    Inductor IR.
    """
    arguments = replace(call.nodes, options={"skip": call.options.skip})
    signature = CPU_BACKWARD if call.backward else CPU_FORWARD
    return extern_call(signature.of(call.problem.program), arguments)


def lower_in_chunks(call: Call) -> Any:
    """The same in chunks."""
    _count(call)
    arguments = call.on_its_device(
        fp32_scores=call.options.fp32_scores,
        lengths_vary=not call.static,
        fast=call.options.fast_math,
        skip=call.options.skip,
        weights_kernel=call.options.kernel,
    )
    callee = (__name__, "chunked_call", repr(call.backward))
    signature = (BACKWARD if call.backward else FORWARD).of(call.problem.program)
    return extern_call(signature, arguments, callee)


def chunked_call(backward: bool) -> Callable[..., Any]:
    """The function that generated code calls in place of the operator. It saves the dispatcher, and
    the check of operands, as the fake of the operator has checked them.
    """
    signature, run = (BACKWARD, _attention_backward) if backward else (FORWARD, _attention)
    return lambda *args, **options: run(signature.bind(*args, **options))


def _count(call: Call) -> None:
    """Count the launches of a call whose sizes are known."""
    if not call.static or call.problem.jagged or 0 in score_shape(call.fakes.operands):
        return
    o = _chunked(gathered(call.fakes.operands), {"fp32_scores": call.options.fp32_scores})
    sums = call.needs[3:] if call.backward else (o.program.summed is not None,)
    names = tuple(_wanted(call.needs)) if call.backward else ("out",)
    planned = loop.call_of(o, names, call.fakes.grad_out if call.backward else None, sums)
    products = 0 if planned.stored else (2 if call.backward else 1) - o.fused(any(sums))
    count = chunks.launches(planned, products)
    dynamo.counters["gdpa"]["chunked_launches"] += count
    log.info("%s in chunks: %d launches", call.signature.name, count)


def _wanted(needs: Sequence[bool]) -> list[str]:
    """The wanted gradients of matrices, in the order of their passes."""
    order = (("value", needs[2]), ("key", needs[1]), ("query", needs[0]))
    return [name for name, need in order if need]


@functools.cache
def _template() -> Any:
    def grid(
        m: Any, n: Any, units: Any, meta: dict[str, Any], *, cdiv: Callable[..., Any]
    ) -> tuple[Any, int, int]:
        return cdiv(m, meta["BLOCK_M"]) * cdiv(n, meta["BLOCK_N"]) * units, 1, 1

    return templates.triton_template("gdpa_chunk_product", grid, fused.source(), {})


def lower_product(query: Any, key: Any, heads: int) -> Any:
    """`gdpa::chunk_product`, S = Q Kᵀ of a chunk: fp32 [U/heads, heads, M, N], by a template.

    Inductor fuses the score program into its epilogue. Inductor IR in and out.
    """
    device = query.get_device()
    if device.type != "cuda":
        return lowering.extern_call(fused.PRODUCT, query, key, heads)
    query, key = (lowering.realized(t, device) for t in (query, key))
    units, rows, dim = (int(size) for size in query.get_size())
    cols = int(key.get_size()[1])
    config = _CONFIG if devices.shared_memory(device) >= 160 << 10 else _SMALL
    padded = max(16, 1 << (dim - 1).bit_length())
    depth = padded if padded <= fused.WHOLE else _DEPTH
    size = (units // heads, heads, rows, cols)
    body = {
        "input_nodes": [query, key],
        "layout": lowering.layout_of(size, torch.float32, device),
        "call_sizes": [shapes.size_expr(size) for size in (rows, cols, units)],
    }
    choice = {
        "num_warps": config.warps,
        "num_stages": config.stages if dim > depth else 1,
        "BLOCK_M": config.rows,
        "BLOCK_N": config.keys,
        "BLOCK_D": depth,
        "D": dim,
        "HEADS": int(heads),
        "EVEN_M": rows % config.rows == 0,
        "EVEN_N": cols % config.keys == 0,
        "EVEN_D": dim % depth == 0,
    }
    return templates.best_of(_template(), "gdpa_chunk_product", [choice], body, {}, [])


@functools.cache
def register_product() -> None:
    lowering.register_lowering(fused.PRODUCT, lower_product)
    weights.register()


def _attention(arguments: Arguments[Tensor]) -> Any:
    o = gathered(arguments.operands)
    register_product()  # a kernel may be compiled
    with torch.no_grad(), no_autocast(o.query.device):
        padding = Padding.of(o)
        batch, heads, rows, _ = score_shape(o)
        out = o.value.new_empty(batch, heads, rows, o.value.shape[-1])
        size = (batch, heads, rows, 1)
        sums = [_row_sums(o, size)] if o.program.summed is not None else []
        loop.run(_chunked(o, arguments.options, padding), Results({"out": out}, sums))
        out, *sums = (padding.unpad_heads(x, "q") for x in (out, *sums))
        dtype = compute_dtype(o.query.dtype)
        return (out, *(x.squeeze(-1).to(dtype) for x in sums)) if sums else out


def _row_sums(o: Operands[Tensor], size: Sequence[Any]) -> Tensor:
    """Zeros, to which the row sums are added.

    On a CPU a row is added in turn, which torch's own sums are not. So it is in fp64.
    """
    on_cpu = o.value.device.type == "cpu"
    dtype = torch.float64 if on_cpu else compute_dtype(o.query.dtype)
    return o.value.new_zeros(size, dtype=dtype)


def _attention_backward(arguments: Arguments[Tensor]) -> list[Tensor]:
    o, needs = arguments.operands, arguments.needs
    register_product()
    with torch.no_grad(), no_autocast(o.query.device):
        padding = Padding.of(o)
        chunked = _chunked(o, arguments.options, padding)
        matrices = {"query": chunked.query, "key": chunked.key, "value": chunked.value}
        grads = {name: matrices[name].new_empty(matrices[name].shape) for name in _wanted(needs)}
        specs = chunked.program.aux
        totals = _totals(chunked.aux, specs, needs, chunked.compute)
        loop.run(chunked, Results(grads, totals), padding.heads(arguments.grad_out, "q"))
        unpadded = [
            None if total is None else padding.unpad_aux(aux_from_axes(total, spec), own)
            for total, spec, own in zip(totals, specs, o.program.aux, strict=True)
        ]
        sides = {"query": "q", "key": "k", "value": "k"}
        unpadded_grads = {x: padding.unpad_heads(grad, sides[x]) for x, grad in grads.items()}
    return _gradients(o, unpadded_grads, unpadded)


def _chunked(o: Operands[Tensor], options: Any, padding: Padding | None = None) -> BlockOperands:
    """The operands as chunks take them: dense, with aux operands on four axes."""
    valid: list[Tensor] = []
    only: Expr | None = None
    if padding is not None and o.jagged:
        # A score exists where its row and its column are no padding.
        valid = padding.valid
        terms = [aux_leaf(len(o.aux) + number, "b") for number in range(len(valid))]
        only = functools.reduce(lambda x, y: call_of("and", x, y), terms)
        o = padding.pad(o)
    aux = [*_on_axes(o, o.program.aux), *valid]
    wide, vary = options.get("fp32_scores", False), options.get("lengths_vary", False)
    kernel = KernelOptions(
        kernel=options.get("weights_kernel", "auto"),
        fast_math=options.get("fast", True),
        skip=options.get("skip", True),
    )
    about = only, wide, vary, str(kernel), weights.direct
    return BlockOperands(o.query, o.key, o.value, aux, o.scalars, o.program, *about)


def _on_axes(o: Operands[Tensor], specs: Sequence[Aux]) -> list[Tensor]:
    return [aux_on_axes(t, spec) for t, spec in zip(o.aux, specs, strict=True)]


def _totals(
    placed: Sequence[Tensor], specs: Sequence[Aux], needs: Sequence[bool], dtype: torch.dtype
) -> list[Tensor | None]:
    """Zeros for the wanted gradients of aux operands, on four axes."""
    return [
        aux_sums(t, spec, dtype) if need else None
        for t, spec, need in zip(placed, specs, needs[3:], strict=False)
    ]


def _gradients(
    o: Operands[Tensor], matrices: dict[str, Tensor], totals: Sequence[Tensor | None]
) -> list[Tensor]:
    """The wanted gradients in the order and the dtypes of the operands, contiguous."""
    grads = [*map(matrices.get, ("query", "key", "value")), *totals]
    return [
        grad.to(t.dtype).contiguous()
        for grad, t in zip(grads, o.differentiable, strict=True)
        if grad is not None
    ]


def forward_on_cpu(arguments: Arguments[Tensor]) -> Any:
    o = arguments.operands
    check(o)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        # The kernel needs ascending offsets. Otherwise the reference runs, with padding.
        if not in_order(o):
            return reference(o)
        size = output_shape(o)
        # Rows that no sequence owns stay zero.
        out = o.value.new_zeros(size) if _one_by_one(o) else o.value.new_empty(size)
        sums = [] if o.program.summed is None else [_row_sums(o, size[:-1])]
        totals = [aux_on_axes(x, *jagged.standing([row_sums_spec(o)])) for x in sums]
        aux = _on_axes(o, jagged.standing(o.program.aux))
        _run_on_cpu(arguments, aux, Results({"out": out}, totals))
    return (out, *(x.to(compute_dtype(o.query.dtype)) for x in sums)) if sums else out


def backward_on_cpu(arguments: Arguments[Tensor]) -> list[Tensor]:
    o, needs = arguments.operands, arguments.needs
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        if not in_order(o):
            return reference_backward(arguments.grad_out, o, needs)
        dtype, specs = compute_dtype(o.query.dtype), jagged.standing(o.program.aux)
        shapes = {"query": o.query.shape, "key": o.key.shape, "value": o.value.shape}
        grads = {name: torch.zeros(shapes[name], dtype=dtype) for name in _wanted(needs)}
        aux = _on_axes(o, specs)
        totals = _totals(aux, specs, needs, dtype)
        _run_on_cpu(arguments, aux, Results(grads, totals))
    restored = [
        None if total is None else aux_from_axes(total, spec)
        for total, spec in zip(totals, specs, strict=True)
    ]
    return _gradients(o, grads, restored)


def _one_by_one(o: Operands[Tensor]) -> bool:
    """Whether sequences are computed one after the other. So no more is copied than the pages of
    one.
    """
    return o.jagged or o.page_table is not None


def _run_on_cpu(arguments: Arguments[Tensor], aux: list[Tensor], results: Results) -> None:
    """aux: The aux operands on four axes."""
    o, grad_out, skip = arguments.operands, arguments.grad_out, arguments.options.get("skip", True)
    if _one_by_one(o):
        jagged.run(o.with_aux(aux), results, grad_out, skip)
    else:
        operands = BlockOperands.on_cpu(
            o.query, o.key, o.value, aux=aux, scalars=o.scalars, program=o.program, pool={}
        )
        loop.run(operands, results, grad_out, skip)


def _checked_attention(arguments: Arguments[Tensor]) -> Any:
    check(arguments.operands)
    return _attention(arguments)


def _guarded_backward(arguments: Arguments[Tensor]) -> list[Tensor]:
    """Chunks are launched on the current device. Generated code sets it, others may not."""
    with torch.cuda.device_of(arguments.operands.query):
        return _attention_backward(arguments)


for forward in (FORWARD, FORWARD.with_sums):
    forward.register(_LIBRARY, "CompositeExplicitAutograd", _checked_attention, fake_output)
BACKWARD.register(_LIBRARY, "CompositeExplicitAutograd", _guarded_backward, fake_gradients)
