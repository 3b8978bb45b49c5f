"""P, dS and terms of aux operands of all scores, by one Triton kernel (`lowerings/weights.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...program.expr import Expr
from ..call import Call
from .inputs import Inputs
from .launch import run
from .plan import Output


def lower(call: Call, terms: Mapping[str, Expr]) -> list[Any]:
    """These terms by name, contiguous [B,H,M,N] in the query's dtype. Inductor IR in and out."""
    size = tuple(call.problem.sizes.values())
    outputs = [Output(name, term, size, call.problem.dtype) for name, term in terms.items()]
    return run("weights", outputs, Inputs(call))
