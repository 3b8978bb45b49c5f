"""Rules of the Triton backend: which problems it takes, and from which sizes on it pays.

Each function returns a reason against a problem, or "".
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import torch

from ..._compat import shapes
from ...kernels import devices
from ...problem import Problem
from ...rejection import Code
from ..backends import Rule, hint, one_query, strange_places

MAX_HEAD_DIM = 256
# Triton 3.6 unrolls fp32 products on the vector units. Beyond this it compiles for many minutes.
MAX_IEEE_DIM = 128
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_AUX_DTYPES = (
    *_FLOATS, torch.float64, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32,
    torch.int64,
)  # fmt: skip


def _no_triton(problem: Problem) -> str:
    return "" if importlib.util.find_spec("triton") else "Triton is not installed"


def _old_device(problem: Problem) -> str:
    if not devices.nvidia(problem.device):
        return "the Triton kernel has been checked on NVIDIA devices only"
    major, minor = torch.cuda.get_device_capability(problem.device)
    if major >= 8:
        return ""
    return f"the Triton kernel needs compute capability 8.0, this device has {major}.{minor}"


def _float_dtypes(problem: Problem) -> str:
    if problem.dtype not in _FLOATS:
        return f"the Triton kernel takes fp16, bf16 and fp32 operands, not {problem.dtype}"
    if problem.value_dtype != problem.dtype:
        return f"query is {problem.dtype}, value {problem.value_dtype}; the Triton kernel takes one"
    return ""


def _aux_dtypes(problem: Problem) -> str:
    strange = [str(dtype) for dtype in problem.aux_dtypes if dtype not in _AUX_DTYPES]
    return f"an operand between the products is {strange[0]}" if strange else ""


def _head_dims(problem: Problem) -> str:
    for symbol in (problem.head_dim, problem.value_dim):
        size = shapes.size_hint(symbol)  # a symbolic one becomes a constant when it is lowered
        if size is None:
            return "a head dim that is known only at run time"
        if not 1 <= size <= MAX_HEAD_DIM:
            return f"a head dim of {size}; the Triton kernel takes 1 to {MAX_HEAD_DIM}"
    return ""


def _wide_in_full_precision(problem: Problem) -> str:
    widest = max(hint(problem.head_dim), hint(problem.value_dim))
    if (
        problem.dtype != torch.float32
        or devices.float32_precision() != "ieee"
        or widest <= MAX_IEEE_DIM
    ):
        return ""
    return (
        f"fp32 without TF32 and a head dim of {widest}: with more than {MAX_IEEE_DIM} Triton takes "
        "minutes to compile it"
    )


@dataclass(frozen=True)
class Gain:
    """The fewest queries and keys for which the fused form is no slower."""

    head_dim: int  # the widest head dim that this row is for
    # inference, training: The least of the smaller one of queries and keys. None: It never pays.
    inference: int | None
    training: int | None


# Measured on an H200 (torch 2.11, Triton 3.6) against stock Inductor: silu, no mask, B·N = 8192,
# H = 4, N from 64 to 8192. In full fp32 precision Triton multiplies on the vector units, where
# cuBLAS is 1.1 to 50 times faster. Our backward recomputes the scores: a step has 9 products, where
# one with stored scores has 6. So wide heads pay for inference only.
_GAINS: dict[str, tuple[Gain, ...]] = {
    "half": (Gain(128, 1, 1), Gain(256, 256, None)),
    "tf32": (Gain(32, 1, 1), Gain(64, 256, 1024)),
    "ieee": (),
}


def _gain(problem: Problem) -> str:
    precision = "half" if problem.dtype != torch.float32 else devices.float32_precision()
    widest = max(hint(problem.head_dim), hint(problem.value_dim))
    gain = next((gain for gain in _GAINS[precision] if widest <= gain.head_dim), None)
    least = None if gain is None else gain.training if problem.training else gain.inference
    step = "training" if problem.training else "inference"
    where = f"{step} with head dim {widest} in {_PRECISIONS[precision]}"
    if least is None:
        return f"the unfused form is faster for {where}"
    shorter = min(hint(problem.rows), hint(problem.cols))
    if shorter >= least:
        return ""
    return f"{where} pays from {least} rows and keys on, this has {shorter}"


_PRECISIONS = {"half": "16 bits", "tf32": "TF32", "ieee": "fp32 without TF32"}

REFUSES = (
    Rule(Code.DEVICE, _no_triton),
    Rule(Code.DEVICE, _old_device),
    Rule(Code.DTYPE, _float_dtypes),
    Rule(Code.DTYPE, _aux_dtypes),
    Rule(Code.POINTWISE_OP, strange_places),
    Rule(Code.HEAD_DIM, _head_dims),
    Rule(Code.HEAD_DIM_LARGE, _wide_in_full_precision),
)
# A forward of one query over a KV cache pays (docs/lab/2026-11-25-serving.md). Training of one
# query was not measured.
PAYS = (
    Rule(Code.TOO_SMALL, lambda problem: one_query(problem) if problem.training else ""),
    Rule(Code.SLOWER, _gain),
)
