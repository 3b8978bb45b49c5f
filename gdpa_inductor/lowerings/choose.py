"""Which kernel runs a problem, or why none does: rules as data.

`choose` is asked before anything is rewritten, so what it accepts must lower. A `Choice` names the kernel; a refusal is a
falsy `Rejection`. Correctness comes first ("supports"), then, unless `options.profit` is off, the cost model ("pays").
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch

from .. import _compat
from ..options import Options
from ..problem import Problem, Size
from ..rejection import Code, Rejection

MAX_HEAD_DIM = 256
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_AUX_DTYPES = (
    *_FLOATS, torch.float64, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """A kernel that can run the problem: "triton", "cpu" or "reference", and why it was chosen."""

    kernel: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kernel} ({self.reason})"


@dataclass(frozen=True)
class Rule:
    """`complaint(problem)` is a sentence where the kernel cannot or should not run the problem, else ""."""

    code: Code
    complaint: Callable[[Problem], str]


def choose(problem: Problem, options: Options) -> Choice | Rejection:
    """The kernel for `problem`, or the first rule that it breaks."""
    if options.kernel == "reference":
        return Choice("reference", "asked for")
    kernel = _BY_DEVICE.get(problem.device.type)
    if kernel is None:
        return Rejection(Code.DEVICE, f"there is no kernel for the device {problem.device.type!r}")
    if options.kernel not in ("auto", kernel):
        return Rejection(Code.DEVICE, f"the kernel {options.kernel!r} does not run on {problem.device.type!r}")
    rules = [*SUPPORTS[kernel], *(PAYS[kernel] if options.profit else ())]
    for rule in rules:
        complaint = rule.complaint(problem)
        if complaint:
            return Rejection(rule.code, complaint)
    return Choice(kernel, f"{problem.dtype}, head dims {problem.head_dim} and {problem.value_dim}")


def _no_triton(problem: Problem) -> str:
    return "" if importlib.util.find_spec("triton") else "Triton is not installed"


def _old_device(problem: Problem) -> str:
    if torch.version.hip is not None:
        return "the Triton kernel has been checked on NVIDIA devices only"
    major, minor = torch.cuda.get_device_capability(problem.device)
    return "" if major >= 8 else f"the Triton kernel needs compute capability 8.0, this device has {major}.{minor}"


def _float_dtypes(problem: Problem) -> str:
    if problem.dtype not in _FLOATS:
        return f"the Triton kernel takes fp16, bf16 and fp32 operands, not {problem.dtype}"
    if problem.value_dtype != problem.dtype:
        return f"query is {problem.dtype} and value {problem.value_dtype}; the Triton kernel wants one dtype"
    return ""


def _aux_dtypes(problem: Problem) -> str:
    strange = [str(dtype) for dtype in problem.aux_dtypes if dtype not in _AUX_DTYPES]
    return f"an operand between the products is {strange[0]}" if strange else ""


def _head_dims(problem: Problem) -> str:
    for size in (problem.head_dim, problem.value_dim):
        if not isinstance(size, int):
            return "the head dims must not be dynamic"
        if not 1 <= size <= MAX_HEAD_DIM:
            return f"a head dim of {size}; the Triton kernel takes 1 to {MAX_HEAD_DIM}"
    return ""


def hint(size: Size, otherwise: int = 1 << 20) -> int:
    """A size, or what it was when the graph was captured; unknown sizes count as large. Adds no guard."""
    known = _compat.size_hint(size)
    return otherwise if known is None else known


_BY_DEVICE = {"cuda": "triton", "cpu": "cpu"}
SUPPORTS: dict[str, tuple[Rule, ...]] = {
    "triton": (
        Rule(Code.DEVICE, _no_triton),
        Rule(Code.DEVICE, _old_device),
        Rule(Code.DTYPE, _float_dtypes),
        Rule(Code.DTYPE, _aux_dtypes),
        Rule(Code.HEAD_DIM, _head_dims),
    ),
    "cpu": (),
}
PAYS: dict[str, tuple[Rule, ...]] = {"triton": (), "cpu": ()}
