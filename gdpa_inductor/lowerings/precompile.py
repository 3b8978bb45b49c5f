"""Have workers compile kernels as soon as the graph is rewritten, before it is lowered.

Inductor lowers a backward only when it is first called, after the forward has run. So its kernels
would be compiled late. Which kernels are needed is a guess here; the lowering decides.
"""

from __future__ import annotations

import logging

import torch
from torch.fx import GraphModule, Node

from ..ops import ATTENTION, BACKWARD
from ..options import REFERENCE
from .backends import backend
from .call import Call
from .choose import select

log = logging.getLogger("gdpa_inductor")


def begin(gm: GraphModule) -> None:
    """Begin to compile the kernels of each gdpa::attention in a rewritten graph and its bodies.

    If this fails, the lowering compiles them.
    """
    for body in gm.modules():
        for node in body.graph.nodes if isinstance(body, GraphModule) else ():
            if node.target is not ATTENTION.op:
                continue
            try:
                for call in _calls(node):
                    choice = select(call.problem, call.options.kernel, profit=False)
                    if choice and choice.kernel != REFERENCE:
                        backend(choice.kernel).precompile(call)
            except Exception as error:
                log.debug("nothing is compiled early: %s: %s", type(error).__name__, error)


def _calls(node: Node) -> list[Call]:
    """The forward that a node calls, and the backward that will follow if gradients are wanted."""
    example = lambda x: x.meta["example_value"]
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), example)
    arguments = ATTENTION.bind(*args, **kwargs)
    operands, options = arguments.operands, arguments.options["kernel_options"]
    calls = [Call.of_fakes(ATTENTION, operands, options)]
    needs = tuple(x.requires_grad for x in operands.differentiable)
    if any(needs) and torch.is_grad_enabled():
        calls.append(Call.of_fakes(BACKWARD, operands, options, needs))
    return calls
