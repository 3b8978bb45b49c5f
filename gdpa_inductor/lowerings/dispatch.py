"""The Inductor lowerings of this package's operators.

A call of gdpa::attention or gdpa::attention_backward becomes a `Call`. The backend that `select`
names lowers it. If there is no backend, or its lowering fails, the chunked form runs instead. If
that fails too, the reference formula runs (`unfused`). Both are slower but correct, and the formula
has M×N intermediates. Each is counted under `fallback`, and the log has the reason. The option
`strict` raises instead.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import torch

from .._compat import dynamo, lowering, shapes
from ..operands import score_shape
from ..ops import BACKWARD, FORWARDS, Signature
from ..options import CHUNKED, REFERENCE
from ..reference import reference, reference_backward
from ..rejection import GDPAError
from . import tables
from .backends import backend
from .call import Call, extern_call
from .choose import Choice, select

log = logging.getLogger("gdpa_inductor")


def register() -> None:
    for signature in _LOWERINGS:
        lowering.register_lowering(signature.op, _LOWERINGS[signature])
    lowering.register_lowering(torch.ops.gdpa.kept.default, lowering.copied)
    lowering.register_lowering(torch.ops.gdpa.look_up.default, tables.lower)
    lowering.register_lowering(torch.ops.gdpa.look_up_backward.default, tables.lower_backward)


def _lower(signature: Signature, *args: Any, **kwargs: Any) -> Any:
    call = Call.of(signature, args, kwargs)
    choice = select(call.problem, call.options.kernel, profit=False)
    if not choice:
        return _fall_back(call, str(choice))
    if call.options.kernel not in ("auto", choice.kernel):
        log.warning("asked for the %s kernel, but got %s", call.options.kernel, choice)
    if choice.doubt:
        warn_of(choice)
    if choice.kernel == REFERENCE:
        return unfused(call)
    try:
        result = backend(choice.kernel).lower(call)
    except Exception as error:
        log.debug("the %s lowering of %s failed", choice.kernel, call.problem, exc_info=True)
        return _fall_back(call, f"{type(error).__name__}: {error}")
    dynamo.counters["gdpa"][f"lowered_{choice.kernel}"] += 1
    if call.problem.jagged:
        dynamo.counters["gdpa"]["lowered_varlen"] += 1
    about = (signature.name, choice.kernel, choice.reason, call.problem.program)
    log.info("%s lowered to the %s kernel (%s): %s", *about)
    return result


@functools.cache
def warn_of(choice: Choice) -> None:
    """That a backend is not trusted with a problem. Once in a process for each choice."""
    why = "the %s kernel runs because it was asked for by name: %s"
    log.warning(why, choice.kernel, choice.doubt)


# One object for each op, so that a second registration is recognised as the same.
_LOWERINGS = {
    signature: functools.partial(_lower, signature) for signature in (*FORWARDS, BACKWARD)
}


def _fall_back(call: Call, reason: str) -> Any:
    dynamo.counters["gdpa"]["fallback"] += 1
    if call.options.strict:
        raise GDPAError(f"gdpa.strict: the lowering fell back to the unfused formula: {reason}")
    chunked, device = backend(CHUNKED), call.problem.device.type
    runs = chunked.runs_on(device, call.options.kernel)
    if runs and chunked.refusal(call.problem, profit=False) is None:
        try:
            result = chunked.lower(call)
            log.warning("gdpa::attention fell back to the chunked formula: %s", reason)
            return result
        except Exception:
            log.debug("the chunked lowering of %s failed", call.problem, exc_info=True)
    log.warning("gdpa::attention fell back to the unfused formula: %s", reason)
    return unfused(call)


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
