"""Choose the backend that runs a problem, or say why none does.

The rewrite calls `choose` before it changes the graph. So each problem that `choose` accepts must
lower. A `Choice` names the backend. A refusal is a `Rejection`, which is falsy. After the rewrite
`begin` has workers compile kernels, before the graph is lowered.
"""

from __future__ import annotations

import logging
import operator
from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node

from ..ops import ATTENTION, BACKWARD, FORWARDS, with_cotangents
from ..options import LADDER, REFERENCE, Options, Profit
from ..problem import Problem
from ..rejection import Code, Rejection
from .backends import Backend, backend, backends
from .call import Call

log = logging.getLogger("gdpa_inductor")


@dataclass(frozen=True)
class Choice:
    """The chosen backend."""

    kernel: str  # a value of the option `kernel`, not "auto"
    reason: str
    doubt: str = ""  # why the backend would not be taken, had the user not asked for it by name

    def __str__(self) -> str:
        return f"{self.kernel} ({self.reason})"


def choose(problem: Problem, options: Options) -> Choice | Rejection:
    """The backend for `problem`, or the reason to leave it as it is."""
    return select(problem, options.kernel, options.profit)


def select(problem: Problem, kernel: str, profit: Profit) -> Choice | Rejection:
    """The backend for `problem`, or the reason to leave it as it is.

    If several backends can run it, one that is faster than the unfused form comes first. With a
    name as `kernel`, its cost model counts only before the rewrite: a lowering passes profit=False.
    """
    choice: Choice | Rejection
    steps = LADDER[False if problem.unbounded else profit]
    for step in steps if kernel == "auto" else steps[-1:]:
        choice = _select(problem, kernel, step)
        if choice:
            break
    return choice


def _select(problem: Problem, kernel: str, profit: Profit) -> Choice | Rejection:
    if kernel == REFERENCE:
        return Choice(REFERENCE, "asked for")
    device = problem.device.type
    known = [x for x in backends() if x.runs_on(device, kernel)]
    if not known:
        return Rejection(Code.DEVICE, f"there is no kernel for the device {device!r}")
    names = [x.name for x in known]
    if kernel != "auto" and kernel not in names:
        others = ", ".join(names)
        return Rejection(
            Code.DEVICE, f"gdpa.kernel={kernel!r} does not run on {device!r}; there is: {others}"
        )
    # A backend that the user asked for may refuse. Those after it come next.
    first = 0 if kernel == "auto" else names.index(kernel)
    return first_of(problem, known[first:], kernel, profit)


def first_of(
    problem: Problem, candidates: list[Backend], kernel: str, profit: Profit
) -> Choice | Rejection:
    """The first backend that takes the problem, or a refusal.

    A refusal has the code of the last rule that is not quiet, and the reasons of the others.
    """
    refusals: list[tuple[str, Rejection]] = []
    first: Rejection | None = None
    for candidate in candidates:
        explicit = kernel == candidate.name
        refusal = candidate.refusal(problem, profit, explicit)
        if refusal is None:
            about = f"{problem.dtype}, head dims {problem.head_dim} and {problem.value_dim}"
            more = candidate.about(problem)
            doubt = candidate.doubt(problem) if explicit else ""
            reason = about + "".join(f", {text}" for text in (more, doubt) if text)
            return Choice(candidate.name, reason + _others(refusals), doubt)
        rule, rejection = refusal
        first = rejection if first is None else first
        if explicit or not rule.quiet:
            refusals.append((candidate.name, rejection))
        # A backend that the user asked for, and that does not pay: no other is tried.
        if explicit and rule in candidate.profits(profit):
            break
    last = refusals.pop()[1] if refusals else first
    assert last is not None
    return Rejection(last.code, last.reason + _others(refusals))


def _others(refusals: list[tuple[str, Rejection]]) -> str:
    return "".join(f"; {name}: {rejection.reason}" for name, rejection in refusals)


def begin(gm: GraphModule) -> None:
    """Begin to compile the kernels of each gdpa::attention in a rewritten graph and its bodies.

    Inductor lowers a backward only when it is first called, after the forward has run. So its
    kernels would be compiled late. Which kernels are needed is a guess here; the lowering decides.
    If this fails, the lowering compiles them.
    """
    for body in gm.modules():
        for node in body.graph.nodes if isinstance(body, GraphModule) else ():
            if all(node.target is not forward.op for forward in FORWARDS):
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
    calls = [Call.of_fakes(ATTENTION.of(operands.program), operands, options)]
    needs = tuple(x.requires_grad for x in operands.differentiable)
    if any(needs) and torch.is_grad_enabled():
        if operands.program.summed is not None:
            operands, reached = with_cotangents(operands, *example(node))
            needs = tuple(map(operator.and_, needs, reached))
            needs += (False,) * (len(operands.aux) + 3 - len(needs))
        calls.append(Call.of_fakes(BACKWARD, operands, options, needs))
    return calls
