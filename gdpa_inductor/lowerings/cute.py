"""The CuTe DSL lowering for Blackwell: one call of a warp-specialised kernel in the generated code.

`gdpa::attention_cute` and `gdpa::attention_cute_backward` take and give what the public ops do. The
generated code calls them by name, so importing this module must come before loading generated code
from a cache; cutlass itself is imported when a kernel is first compiled. `complaint` says which
problems the kernels do not take, without importing it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .._compat import inductor, lowering, shapes, templates
from ..kernels.sm100.config import VERSIONS, unsupported
from ..kernels.template import Plan
from ..ops import LENGTHS, OPERANDS, Operands, check, operands_of, output_shape
from ..options import KernelOptions
from ..problem import Problem

PACKAGE = "nvidia-cutlass-dsl"
_LIBRARY = torch.library.Library("gdpa", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)
_OPTIONS = "*, bool fast=True, bool skip=True"
_LIBRARY.define(f"attention_cute({OPERANDS}, {LENGTHS}, {_OPTIONS}) -> Tensor", tags=_TAGS)
_LIBRARY.define(
    f"attention_cute_backward(Tensor grad_out, {OPERANDS}, bool[] needs, {LENGTHS}, {_OPTIONS}) "
    "-> Tensor[]",
    tags=_TAGS,
)


class Unsupported(Exception):
    """This kernel does not do that; another may. The message says why."""


def not_blackwell(problem: Problem) -> str:
    """Why the device cannot run the kernels, or ""."""
    major, minor = torch.cuda.get_device_capability(problem.device)
    if torch.version.hip is not None or major != 10:
        return f"the CuTe kernel needs compute capability 10.x, this device has {major}.{minor}"
    return ""


def no_cutlass(_: Problem) -> str:
    """Why CuTe DSL cannot be used, or ""."""
    version = installed()
    lowest, below = (".".join(map(str, bound)) for bound in VERSIONS)
    if version is None:
        return f"{PACKAGE} is not installed (pip install 'gdpa-inductor[cute]')"
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if VERSIONS[0] <= parts < VERSIONS[1]:
        return ""
    return f"{PACKAGE} {version} is not one of the tested versions, {lowest} to below {below}"


@functools.cache
def installed() -> str | None:
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None


def not_taken(problem: Problem) -> str:
    """Why the kernels do not take these operands, or ""."""
    dims = [shapes.size_hint(x) for x in (problem.head_dim, problem.value_dim)]
    if None in dims:
        return "a head dim that is known only at run time"
    return unsupported(
        (problem.dtype, problem.value_dtype),
        (int(dims[0] or 0), int(dims[1] or 0)),
        [str(dtype).removeprefix("torch.") for dtype in problem.aux_dtypes],
    )


def lower(operands: Operands[Any], options: KernelOptions) -> Any:
    """The output, contiguous. Inductor IR in and out.

    Under max-autotune it is timed beside the Triton template, unless it was asked for by name.
    """
    placed = _on_device(operands)

    def call() -> Any:
        op = torch.ops.gdpa.attention_cute.default
        given = {"fast": options.fast_math, "skip": options.skip}
        return lowering.extern_call(op, *placed.arguments(), **given)

    if options.kernel == "cute" or not inductor.thorough():
        return call()
    from . import triton

    def rival(plan: Plan, body: dict[str, Any]) -> Any:
        digest = hashlib.sha256(repr((str(operands.program), options)).encode()).hexdigest()[:16]
        kernel = functools.partial(_timed, placed, options, plan)
        return templates.rival(f"gdpa_cute_{digest}", kernel, call, body)

    return triton.lower(operands, options, rival)


def _timed(
    operands: Operands[Any], options: KernelOptions, plan: Plan, *tensors: Tensor, out: Tensor
) -> None:
    """The forward on the tensors that the Triton template is timed on, in the template's order."""
    from ..kernels.sm100.launch import forward

    found = dict(zip(plan.arguments, tensors, strict=False))
    sides = [None if cu is None else side for side, cu in zip("QK", operands.lengths[:2])]
    shared = next((found[f"CU_{side}"] for side in sides if f"CU_{side}" in found), None)
    offsets = [None if side is None else found.get(f"CU_{side}", shared) for side in sides]
    unread = found["Q"].new_empty(1)
    aux = [
        found.get(f"A{i}", unread.as_strided(x.get_size(), [0] * len(x.get_size())))
        for i, x in enumerate(operands.aux)
    ]
    scalars = [lowering.likely_size(x) for x in operands.scalars]
    rows, cols = (lowering.likely_size(x) for x in operands.lengths[2:])
    forward(
        found["Q"], found["K"], found["V"], aux, scalars, str(operands.program),
        offsets[0], offsets[1], rows, cols,
        fast=options.fast_math, skip=options.skip, out=out,
    )  # fmt: skip


def lower_backward(
    grad_out: Any, operands: Operands[Any], needs: Sequence[bool], options: KernelOptions
) -> list[Any]:
    """The asked gradients of (query, key, value, *aux), contiguous. Inductor IR in and out.

    Raises:
        Unsupported: gradients that the kernels do not give.
    """
    if any(needs[3:]):
        raise Unsupported("the CuTe backward has no gradients of operands between the products")
    key, value = operands.key.get_size()[1], operands.value.get_size()[1]
    if not shapes.statically_known_true(key == value):
        raise Unsupported(f"the CuTe backward takes as many key as value heads, not {key}, {value}")
    op = torch.ops.gdpa.attention_cute_backward.default
    given = {"fast": options.fast_math, "skip": options.skip}
    arguments = (grad_out, *_on_device(operands).arguments(list(needs)))
    return list(lowering.extern_call(op, *arguments, **given))


def _on_device(operands: Operands[Any]) -> Operands[Any]:
    """Operands of no dimension may come from the host."""
    device = operands.query.get_device()
    return replace(operands, aux=[lowering.realized(x, device) for x in operands.aux])


@torch.library.impl(_LIBRARY, "attention_cute", "CUDA")
def _attention(
    query: Tensor, key: Tensor, value: Tensor, aux: list[Tensor], scalars: list[int],
    score_mod: str, *lengths: Any, fast: bool = True, skip: bool = True,
) -> Tensor:  # fmt: skip
    from ..kernels.sm100.launch import forward

    check(operands_of(query, key, value, aux, scalars, score_mod, *lengths))
    return forward(query, key, value, aux, scalars, score_mod, *lengths, fast=fast, skip=skip)


@torch.library.impl(_LIBRARY, "attention_cute_backward", "CUDA")
def _attention_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, aux: list[Tensor],
    scalars: list[int], score_mod: str, needs: list[bool], *lengths: Any,
    fast: bool = True, skip: bool = True,
) -> list[Tensor]:  # fmt: skip
    from ..kernels.sm100.backward_launch import backward

    check(operands_of(query, key, value, aux, scalars, score_mod, *lengths))
    found = backward(
        grad_out, query, key, value, aux, scalars, score_mod, needs, *lengths, fast=fast, skip=skip
    )
    return [grad for grad in found if grad is not None]


@torch.library.register_fake("gdpa::attention_cute", lib=_LIBRARY)
def _attention_fake(
    query: Tensor, key: Tensor, value: Tensor, aux: list[Tensor], scalars: list[int],
    score_mod: str, *lengths: Any, fast: bool = True, skip: bool = True,
) -> Tensor:  # fmt: skip
    operands = operands_of(query, key, value, aux, scalars, score_mod, *lengths)
    return value.new_empty(output_shape(operands))


@torch.library.register_fake("gdpa::attention_cute_backward", lib=_LIBRARY)
def _attention_backward_fake(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, aux: list[Tensor],
    scalars: list[int], score_mod: str, needs: list[bool], *lengths: Any,
    fast: bool = True, skip: bool = True,
) -> list[Tensor]:  # fmt: skip
    operands = (query, key, value, *aux)
    return [t.new_empty(t.shape) for t, need in zip(operands, needs, strict=True) if need]
