"""P, dS and terms of aux operands of all scores, by one Triton kernel (`lowerings/weights.py`)."""

from __future__ import annotations

from typing import Any

from ..call import Call
from .inputs import Inputs
from .launch import run
from .plan import Output


def lower(call: Call) -> list[Any]:
    """These terms, contiguous [B,H,M,N] in the query's dtype. Inductor IR in and out."""
    size, dtype = tuple(call.problem.sizes.values()), call.problem.dtype
    terms = call.problem.program.summed_terms(call.needs).items()
    return run("weights", [Output(name, term, size, dtype) for name, term in terms], Inputs(call))
