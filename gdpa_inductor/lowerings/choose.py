"""Which kernel runs a problem, or why none does: rules as data.

`choose` is asked before anything is rewritten, so what it accepts must lower. A `Choice` names the
kernel; a refusal is a falsy `Rejection`. Correctness comes first ("supports"), then, unless
`options.profit` is off, the cost model ("pays").
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from .._compat import shapes
from ..kernels import cpu_tiles
from ..options import Options
from ..problem import Problem, Size
from ..rejection import Code, Rejection
from . import cute
from .gpu import float32_precision

MAX_HEAD_DIM = 256
MAX_IEEE_DIM = 128  # fp32 products on the vector units are unrolled: Triton 3.6, many minutes
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_AUX_DTYPES = (
    *_FLOATS, torch.float64, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32,
    torch.int64,
)  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """A kernel that can run the problem: "cute", "triton", "cpu" or "reference", and why it was
    chosen."""

    kernel: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kernel} ({self.reason})"


@dataclass(frozen=True)
class Rule:
    """`complaint(problem)`: why the kernel cannot or should not run it, or ""."""

    code: Code
    complaint: Callable[[Problem], str]


def choose(problem: Problem, options: Options) -> Choice | Rejection:
    """The kernel for `problem`, or the first rule that it breaks."""
    if options.kernel == "reference":
        return Choice("reference", "asked for")
    kernels = _BY_DEVICE.get(problem.device.type, ())
    if not kernels:
        return Rejection(Code.DEVICE, f"there is no kernel for the device {problem.device.type!r}")
    if options.kernel not in ("auto", *kernels):
        return Rejection(
            Code.DEVICE, f"the kernel {options.kernel!r} does not run on {problem.device.type!r}"
        )
    passed = ""  # why the preferred kernel does not run it, where that is worth a word
    first = 0 if options.kernel == "auto" else kernels.index(options.kernel)
    for kernel in kernels[first:]:
        rejection = _judge(problem, kernel, options.profit and not problem.unbounded)
        if rejection is None:
            about = f"{problem.dtype}, head dims {problem.head_dim} and {problem.value_dim}"
            return Choice(kernel, about + passed)
        if options.kernel == kernel or (kernel == "cute" and not cute.not_blackwell(problem)):
            passed = f"; {kernel}: {rejection.reason}"
    assert rejection is not None
    return rejection


def _judge(problem: Problem, kernel: str, profit: bool) -> Rejection | None:
    """The first rule that the problem breaks."""
    for rule in [*SUPPORTS[kernel], *(PAYS[kernel] if profit else ())]:
        complaint = rule.complaint(problem)
        if complaint:
            return Rejection(rule.code, complaint)
    return None


def _no_triton(problem: Problem) -> str:
    return "" if importlib.util.find_spec("triton") else "Triton is not installed"


def _old_device(problem: Problem) -> str:
    if torch.version.hip is not None:
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
    widest = max(_hint(problem.head_dim), _hint(problem.value_dim))
    if problem.dtype != torch.float32 or float32_precision() != "ieee" or widest <= MAX_IEEE_DIM:
        return ""
    return (
        f"fp32 without TF32 and a head dim of {widest}: with more than {MAX_IEEE_DIM} Triton takes "
        "minutes to compile it"
    )


def _hint(size: Size, otherwise: int = 1 << 20) -> int:
    """A size, or what it was at capture; unknown sizes count as large. Adds no guard."""
    known = shapes.size_hint(size)
    return otherwise if known is None else known


@dataclass(frozen=True)
class Gain:
    """From how many rows and keys on the fused form is no slower, for head dims up to `head_dim`.

    inference, training: the smaller of rows and keys; None where it never pays.
    """

    head_dim: int
    inference: int | None
    training: int | None


# Measured on an H200 (torch 2.11, Triton 3.6), silu, no mask, B·N = 8192, H = 4, N of 64 to 8192,
# against stock Inductor. With fp32 in full precision Triton multiplies on the vector units, where
# cuBLAS is 1.1 to 50 times faster. The backward recomputes the scores, 9 products to the 6 of a
# backward that has stored them, so wide heads pay for inference only.
_GAINS: dict[str, tuple[Gain, ...]] = {
    "half": (Gain(128, 1, 1), Gain(256, 256, None)),
    "tf32": (Gain(32, 1, 1), Gain(64, 256, 1024)),
    "ieee": (),
}


def _gain(problem: Problem) -> str:
    precision = "half" if problem.dtype != torch.float32 else float32_precision()
    widest = max(_hint(problem.head_dim), _hint(problem.value_dim))
    gain = next((gain for gain in _GAINS[precision] if widest <= gain.head_dim), None)
    least = None if gain is None else gain.training if problem.training else gain.inference
    step = "training" if problem.training else "inference"
    where = f"{step} with head dim {widest} in {_PRECISIONS[precision]}"
    if least is None:
        return f"the unfused form is faster for {where}"
    shorter = min(_hint(problem.rows), _hint(problem.cols))
    if shorter >= least:
        return ""
    return f"{where} pays from {least} rows and keys on, this has {shorter}"


_PRECISIONS = {"half": "16 bits", "tf32": "TF32", "ieee": "fp32 without TF32"}

# From how many MiB of scores on the fused form is chosen on a CPU: for inference, for training;
# half of that where masks may leave scores out. Two cores of an EPYC 9004, L3 32 MiB, torch 2.13;
# silu, B = 2, H = 4, D = 64, N = 256, 512, 768, 1024, 2048; stock Inductor's time / ours in fp32:
# inference .80 .86 .96 1.00 1.62, training .66 .74 .79 1.17 1.29. Smaller scores stay in the cache,
# larger ones are fresh pages in each call. Ours multiplies fp16 and bf16 in fp32: for bf16 there
# are instructions (.44 .48 at 512, .75 .55 at 2048, in smaller blocks), and stock's
# fp16 is slow (8.6 and 9.4 at 256). fp64 is taken to be like fp32.
_CPU_GAINS: dict[torch.dtype, tuple[int, int]] = {
    torch.float32: (16, 32),
    torch.float64: (16, 32),
    torch.bfloat16: (256, 256),
}
_SHORT = 32  # jagged training on a CPU is slower up to this greatest length, else always faster


def _cpu_gain(problem: Problem) -> str:
    step = "training" if problem.training else "inference"
    longest = max(_hint(problem.rows), _hint(problem.cols))
    if problem.jagged:
        short = problem.training and longest <= _SHORT
        return f"jagged training pays from {_SHORT + 1} rows or keys on" if short else ""
    least = _CPU_GAINS.get(problem.dtype, (0, 0))[problem.training]
    if cpu_tiles.zero((problem.program.weight,), problem.program.aux) is not None:
        least //= 2
    sizes = (problem.batch, problem.heads, problem.rows, problem.cols)
    taken = math.prod(map(_hint, sizes)) * problem.dtype.itemsize / 2**20
    if taken >= least:
        return ""
    return (
        f"{step} in {problem.dtype} on a CPU pays from {least} MiB of scores on, these take "
        f"{taken:.3g}"
    )


# The first that supports the problem runs it: so "cute" that is asked for may still give "triton".
_BY_DEVICE = {"cuda": ("cute", "triton"), "cpu": ("cpu",)}
SUPPORTS: dict[str, tuple[Rule, ...]] = {
    "cute": (
        Rule(Code.DEVICE, cute.not_blackwell),
        Rule(Code.DEVICE, cute.no_cutlass),
        Rule(Code.DTYPE, cute.not_taken),
    ),
    "triton": (
        Rule(Code.DEVICE, _no_triton),
        Rule(Code.DEVICE, _old_device),
        Rule(Code.DTYPE, _float_dtypes),
        Rule(Code.DTYPE, _aux_dtypes),
        Rule(Code.HEAD_DIM, _head_dims),
        Rule(Code.HEAD_DIM_LARGE, _wide_in_full_precision),
    ),
    "cpu": (),
}
PAYS: dict[str, tuple[Rule, ...]] = {
    "cute": (),
    "triton": (Rule(Code.SLOWER, _gain),),
    "cpu": (Rule(Code.SLOWER, _cpu_gain),),
}
