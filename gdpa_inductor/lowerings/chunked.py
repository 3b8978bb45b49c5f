"""The chunked backend: matrix products of torch's library, on some of the scores at a time.

It takes any device, dtype and head dim. All other backends are preferred to it. `chunk_costs` says
from measured rates when it is faster than the unfused form. Stock Inductor writes all scores to
memory and reads them again. In chunks, in fp16 and bf16, one kernel computes S and the program, so
S is not stored at all. In exchange, the backward computes S again, the products of a chunk are
smaller, and the CPU launches every chunk.

On Hopper it has the backward at head dims above 128, where that of Triton loses and CuTe has none.
One kernel computes P and dS there (`kernels/blocked/fused.py`). The forward is CuTe's or Triton's.
"""

from __future__ import annotations

import torch

from ..problem import Problem
from ..rejection import Code
from .backends import Backend, Rule
from .blocked import lower_in_chunks
from .chunk_costs import SLACK, described, padded_to_all, slower


def not_on_cpu(problem: Problem) -> str:
    return "on a CPU the `cpu` kernel is faster" if problem.device.type == "cpu" else ""


def unsummed_tables(problem: Problem) -> str:
    """On a CPU the loop over blocks adds in the order of the elements, in chunks too."""
    if problem.device.type == "cpu" or not problem.training:
        return ""
    if not any(spec.is_table for spec in problem.program.aux):
        return ""
    return "chunks on a GPU do not add the gradient of a looked-up table in a fixed order"


def strange_dtypes(problem: Problem) -> str:
    for dtype in (problem.dtype, problem.value_dtype):
        if dtype not in _FLOATS:
            return f"chunks take fp16, bf16, fp32 and fp64 operands, not {dtype}"
    strange = [str(dtype) for dtype in problem.aux_dtypes if dtype.is_complex]
    return f"an operand between the products is {strange[0]}" if strange else ""


def copied_pages(problem: Problem) -> str:
    return "" if problem.page is None else "keys and values are copied from their pages"


_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

_NEVER = (
    Rule(Code.SLOWER, not_on_cpu, quiet=True),
    Rule(Code.SLOWER, copied_pages, quiet=True),
)
BACKEND = Backend(
    name="chunked",
    devices=("cuda", "cpu", "xpu", "mps"),
    refuses=(
        Rule(Code.DTYPE, strange_dtypes),
        Rule(Code.LOWERING, padded_to_all),
        Rule(Code.LOWERING, unsummed_tables),
    ),
    pays=(*_NEVER, Rule(Code.SLOWER, slower, quiet=True)),
    frugal=(*_NEVER, Rule(Code.SLOWER, lambda problem: slower(problem, SLACK), quiet=True)),
    about=described,
    by_name=("xpu", "mps"),  # it has not been run there
    lower=lower_in_chunks,
)
