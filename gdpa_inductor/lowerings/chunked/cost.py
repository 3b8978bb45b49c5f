"""When the chunked form pays: estimates of its time and of stock Inductor's, not measurements.

Both do their products at one rate. Stock writes and reads all scores in memory; here they stay in
the cache. In exchange the backward computes S again, and the CPU starts every chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...kernels.chunked import chunks
from ...problem import Problem
from .. import gpu
from ..backends import hint

# Of stock's time: an estimate that is level is not sure to win; what profit="memory" allows.
LEAST, SLACK = 0.98, 1.2


@dataclass(frozen=True)
class Rates:
    """Of a GPU. products: multiplications and additions a second, by precision. memory, cache:
    bytes a second. call, launch: seconds of the CPU for the operator, and for each kernel of it.
    """

    products: dict[str, float]
    memory: float
    cache: float
    call: float
    launch: float


# Of the order of an H200's. Only ratios count, and those of other GPUs are much alike.
RATES = Rates(
    {"half": 600e12, "tf32": 300e12, "ieee": 45e12, "double": 55e12},
    memory=4e12,
    cache=6e12,
    call=40e-6,
    launch=10e-6,
)


def precision(problem: Problem) -> str:
    if problem.dtype == torch.float64:
        return "double"
    return "half" if problem.dtype.itemsize == 2 else gpu.float32_precision()


@dataclass(frozen=True)
class Estimate:
    """Seconds, and how many kernels."""

    stock: float
    chunked: float
    launches: int


def estimate(problem: Problem) -> Estimate:
    """For a forward, or for a training step."""
    batch, heads, rows, cols = (
        hint(size) for size in (problem.batch, problem.heads, problem.rows, problem.cols)
    )
    dim, value_dim = hint(problem.head_dim), hint(problem.value_dim)
    scores = batch * heads * rows * cols
    per_product = 2 * scores / RATES.products[precision(problem)]
    size = scores * problem.dtype.itemsize
    # Forward: S and P are written and read. Backward: P, S and dP are read, dP and dS written, dS
    # is read twice; here S is written once more. The backward has each product twice.
    stock_passes, our_passes = (11, 12) if problem.training else (4, 4)
    products = (dim + value_dim) * (3 if problem.training else 1)
    again = dim if problem.training else 0
    rate = RATES.cache if size <= chunks.SCORES // 2 else RATES.memory
    kernels = _launches(problem, scores)
    busy = per_product * (products + again) + our_passes * size / RATES.cache
    calls = 2 if problem.training else 1
    return Estimate(
        stock=per_product * products + stock_passes * size / rate,
        chunked=max(busy, calls * RATES.call + kernels * RATES.launch),
        launches=kernels,
    )


def _launches(problem: Problem, scores: int) -> int:
    """As many chunks as their memory asks for; the library's calls and the program for each."""
    size = scores * problem.dtype.itemsize
    found = 3 * -(-size // chunks.SCORES)
    if problem.training:
        found += 6 * -(-2 * size // chunks.SCORES)
    return found


def expected(problem: Problem) -> str:
    """The launches, for the report."""
    return f"about {estimate(problem).launches} launches"


def slower(problem: Problem) -> str:
    return _complaint(problem, LEAST)


def frugally_slower(problem: Problem) -> str:
    return _complaint(problem, SLACK)


def _complaint(problem: Problem, allowed: float) -> str:
    found = estimate(problem)
    ratio = found.chunked / found.stock
    if ratio <= allowed:
        return ""
    step = "training" if problem.training else "inference"
    return (
        f"{step} with head dims {problem.head_dim} and {problem.value_dim} in chunks is estimated "
        f"at {ratio:.2f} times the unfused form's time"
    )


def not_on_cpu(problem: Problem) -> str:
    return "on a CPU its own kernel is faster" if problem.device.type == "cpu" else ""


def padded_to_all(problem: Problem) -> str:
    """Jagged sides are padded to their bound, here as in the unfused form."""
    return "a jagged side without a bound is padded to all its rows" if problem.unbounded else ""


def strange_dtypes(problem: Problem) -> str:
    """Why the libraries do not multiply these operands, or ""."""
    for dtype in (problem.dtype, problem.value_dtype):
        if dtype not in _FLOATS:
            return f"chunks take fp16, bf16, fp32 and fp64 operands, not {dtype}"
    strange = [str(dtype) for dtype in problem.aux_dtypes if dtype.is_complex]
    return f"an operand between the products is {strange[0]}" if strange else ""


_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
