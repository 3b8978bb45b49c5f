"""`gdpa.verify`: the fused graph against the user's own, once, on the first real inputs.

Both run on copies of the inputs under one state of the random number generators. Outputs, what the
graph writes into its inputs, and gradients are compared. The rule, for each of these tensors:

    max |fused - exact|  <=  10 · max |eager - exact|  +  64 ulp of max |exact|

where eager is the unfused graph as it is, and exact the same graph on fp64 inputs. It is wider than
the rule for single kernels, because everything else in the graph is Inductor's work too. Where the
graph does not run in fp64, the bound is sqrt(ulp) · max |eager|. NaN must be where eager has it.
Not compared: a graph that draws random numbers (Inductor draws others than eager), with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ._compat import fx
from .patterns import Result
from .rejection import GDPAError

log = logging.getLogger("gdpa_inductor")
Graph = Callable[..., Any]


def verified(compiled: Graph, original: Graph, result: Result) -> Graph:
    """`compiled`, which on its first call is compared with `original`, the graph before the
    rewrite.

    Raises (at that call):
        GDPAError: they differ; it names the tensor, by how much, and the rewritten regions.
    """
    pending = [True]

    def run(*args: Any) -> Any:
        if pending:
            pending.clear()
            fault = difference(compiled, original, args)
            if fault:
                regions = "\n".join(f"  {match}" for match in result.matches)
                raise GDPAError(f"gdpa.verify: {fault}\nrewritten regions:\n{regions}")
        return compiled(*args)

    return run


def difference(compiled: Graph, original: Graph, args: Sequence[Any]) -> str:
    """The first breach of the rule, or ""."""
    eager, drew = _results(original, args)
    if drew:
        log.warning("gdpa.verify: the graph draws random numbers and is not compared")
        return ""
    fused, _ = _results(compiled, args)
    exact = _exact(original, args, eager)
    for (name, theirs), mine, truth in zip(eager, (t for _, t in fused), exact, strict=True):
        fault = breach(mine, theirs, truth)
        if fault:
            return f"{name} {fault}"
    return ""


Named = list[tuple[str, Tensor]]


def _results(
    graph: Graph, args: Sequence[Any], dtype: torch.dtype | None = None
) -> tuple[Named, bool]:
    """Outputs, inputs afterwards and gradients, by name; and whether random numbers were drawn."""
    copies = [_copy(x, dtype) for x in args]
    devices = {x.device.index for x in args if isinstance(x, Tensor) and x.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)):
        before = _generator_states(devices)
        outputs = [x for x in fx.tree_leaves(graph(*copies)) if isinstance(x, Tensor)]
        gradients = _gradients(outputs, copies)
        drew = any(not torch.equal(a, b) for a, b in zip(before, _generator_states(devices)))
    found = [(f"output {i}", x.detach()) for i, x in enumerate(outputs)]
    tensors = [(i, x) for i, x in enumerate(copies) if isinstance(x, Tensor)]
    found += [(f"input {i}, as the graph left it,", x.detach()) for i, x in tensors]
    found += [(f"the gradient of input {i}", g) for i, g in gradients]
    return found, drew


def _copy(value: Any, dtype: torch.dtype | None) -> Any:
    if not isinstance(value, Tensor):
        return value
    made = value.detach().clone()
    if dtype is not None and made.is_floating_point():
        made = made.to(dtype)
    return made.requires_grad_(value.requires_grad)


def _gradients(outputs: Sequence[Tensor], inputs: Sequence[Any]) -> list[tuple[int, Tensor]]:
    """For cotangents that are fixed and not all alike."""
    asked = [x for x in outputs if x.requires_grad]
    leaves = [(i, x) for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.requires_grad]
    # A leaf that the graph wrote into in place is no leaf any more.
    leaves = [(i, x) for i, x in leaves if x.is_leaf]
    if not asked or not leaves:
        return []
    cotangents = [_cotangent(x) for x in asked]
    found = torch.autograd.grad(asked, [x for _, x in leaves], cotangents, allow_unused=True)
    return [(i, torch.zeros_like(x) if g is None else g) for (i, x), g in zip(leaves, found)]


def _cotangent(output: Tensor) -> Tensor:
    steps = torch.arange(output.numel(), device=output.device, dtype=torch.float64)
    return (steps.mul(0.7).cos() + 0.25).to(torch.bfloat16).to(output.dtype).view(output.shape)


def _generator_states(devices: set[int]) -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(index) for index in sorted(devices))]


def _exact(original: Graph, args: Sequence[Any], eager: Named) -> list[Tensor | None]:
    """The original on fp64 inputs; None for each tensor where it cannot be had."""
    try:
        found, _ = _results(original, args, torch.float64)
    except (RuntimeError, TypeError, ValueError) as error:
        log.info("gdpa.verify: no fp64 run of the graph: %s", error)
        return [None] * len(eager)
    if [name for name, _ in found] != [name for name, _ in eager]:
        return [None] * len(eager)
    return [tensor for _, tensor in found]


def breach(fused: Tensor, eager: Tensor, exact: Tensor | None) -> str:
    """How one tensor breaks the rule of the module, or ""."""
    if fused.shape != eager.shape or fused.dtype != eager.dtype:
        described = f"{fused.dtype} {tuple(fused.shape)}", f"{eager.dtype} {tuple(eager.shape)}"
        return f"is {described[0]}, unfused {described[1]}"
    if not eager.dtype.is_floating_point or eager.numel() == 0:
        return "" if torch.equal(fused, eager) else "differs from the unfused one"
    if not torch.equal(fused.isnan(), eager.isnan()):
        return "has NaN in other places than the unfused one"
    mine, theirs = fused.double(), eager.double()
    finite = mine.isfinite() & theirs.isfinite()
    ulp = torch.finfo(eager.dtype).eps
    if exact is None:
        bound, error = ulp**0.5 * _largest(theirs, finite), _largest(mine - theirs, finite)
    else:
        truth = exact.double()
        finite &= truth.isfinite()
        error = _largest(mine - truth, finite)
        bound = 10 * _largest(theirs - truth, finite) + 64 * ulp * _largest(truth, finite)
    return "" if error <= bound else f"is off by {error:.3e}, allowed {bound:.3e}"


def _largest(values: Tensor, where: Tensor) -> float:
    return float(values[where].abs().max()) if bool(where.any()) else 0.0
