"""The CPU backend: where its blocked kernel is faster than the unfused form."""

from __future__ import annotations

import math

import torch

from ..kernels.blocked import tiling
from ..operands import dtype_name
from ..problem import Problem
from ..rejection import Code
from .backends import Backend, Rule, hint, one_query
from .blocked import lower_on_cpu

# The fewest MiB of scores for which the fused form is chosen on a CPU: (inference, training). If a
# mask may leave scores out, half of that is enough.
#
# Measured as stock Inductor's time / ours, on two cores of an EPYC 9004, L3 32 MiB, torch 2.13:
# silu, B = 2, H = 4, D = 64.
#     fp32, N = 256, 512, 768, 1024, 2048: inference .80 .86 .96 1.00 1.62,
#                                          training .66 .74 .79 1.17 1.29
#     bf16, in smaller blocks: .44 .48 at 512, .75 .55 at 2048
#     fp16: 8.6 and 9.4 at 256
# Stock's small scores stay in the cache, and its large ones are fresh pages in each call. Our
# kernel multiplies fp16 and bf16 in fp32. CPUs have instructions for bf16, which stock uses;
# stock's fp16 is slow. fp64 is assumed to be like fp32.
_GAINS: dict[torch.dtype, tuple[int, int]] = {
    torch.float32: (16, 32),
    torch.float64: (16, 32),
    torch.bfloat16: (256, 256),
}
_WIDEST = 256  # the widest head dim that was measured
_SHORT = 32  # jagged training is slower if no sequence is longer than this, else always faster


def _gain(problem: Problem) -> str:
    step = "fusing training" if problem.training else "fusing inference"
    longest = max(hint(problem.rows), hint(problem.cols))
    if problem.jagged:
        short = problem.training and longest <= _SHORT
        if not short:
            return ""
        return f"sequences have at most {longest} rows; on a CPU {step} pays from {_SHORT + 1} rows"
    least = _GAINS.get(problem.dtype, (0, 0))[problem.training]
    if tiling.zero((problem.program.weight,), problem.program.aux) is not None:
        least //= 2
    scores = math.prod(map(hint, problem.sizes.values())) * problem.dtype.itemsize / 2**20
    if scores >= least:
        return ""
    dtype = dtype_name(problem.dtype)
    size = f"{scores:.3g}" if scores >= 1 else f"{scores:.2g}"
    return f"the scores are {size} MiB; on a CPU {step} in {dtype} pays from {least} MiB"


def _wide(problem: Problem) -> str:
    """A gain in time is not sure. It still saves memory."""
    widest = max(hint(problem.head_dim), hint(problem.value_dim))
    if widest <= _WIDEST:
        return ""
    return f"a head dim of {widest}: on a CPU fusing is known to pay up to {_WIDEST}"


BACKEND = Backend(
    name="cpu",
    devices=("cpu",),
    refuses=(),
    pays=(
        Rule(Code.TOO_SMALL, one_query),
        Rule(Code.HEAD_DIM_LARGE, _wide),
        Rule(Code.SLOWER, _gain),
    ),
    frugal=(Rule(Code.TOO_SMALL, one_query), Rule(Code.SLOWER, _gain)),
    lower=lower_on_cpu,
)
