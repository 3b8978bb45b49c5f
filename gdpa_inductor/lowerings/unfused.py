"""A call without a kernel: the reference formula, traced to ATen and lowered by Inductor."""

from __future__ import annotations

from typing import Any

from .._compat import lowering, shapes
from ..operands import score_shape
from ..reference import reference, reference_backward
from .call import Call, extern_call


def unfused(call: Call) -> Any:
    """The output, or the wanted gradients. The formula holds all scores in a tensor."""
    nodes, fakes = call.nodes, call.fakes
    if any(shapes.size_hint(size) is None for size in score_shape(fakes.operands)):
        # Inductor cannot multiply matrices whose sizes are known at run time only (torch 2.13).
        return extern_call(call.signature, nodes)

    def forward(*flat: Any) -> Any:
        return reference(nodes.operands.filled(flat))

    def backward(grad_out: Any, *flat: Any) -> Any:
        return reference_backward(grad_out, nodes.operands.filled(flat), nodes.needs)

    flat, fake = nodes.operands.flat(), fakes.operands.flat()
    if call.backward:
        return lowering.inline_formula(backward, [nodes.grad_out, *flat], [fakes.grad_out, *fake])
    return lowering.inline_formula(forward, flat, fake)
