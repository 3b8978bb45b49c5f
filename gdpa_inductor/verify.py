"""`gdpa.verify`: the fused graph against the user's own, once, on the first real inputs.

Both run on copies of the inputs under one state of the random number generators. Outputs, what the
graph writes into its inputs, and gradients are compared. The rule, for each of these tensors:

    max |fused - exact|  <=  10 · max |eager - exact|  +  64 ulp of max |exact|

where eager is the unfused graph as it is, and exact the same graph on fp64 inputs, with fp64 for
each floating dtype that it names. It is wider than the rule for single kernels, because everything
else in the graph is Inductor's work too. Where the graph does not run in fp64, the bound is
sqrt(ulp) · max |eager|, by the shortest dtype of its inputs and outputs. NaN and infinity must
be where eager or exact has them; not everywhere there (docs/numerics.md, docs/masks.md).
Dropouts on the weights keep what the fused calls keep. Not compared, with a warning: a graph that
draws other random numbers (Inductor draws others than eager), and one that cannot be run on copies.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from ._compat import autograd, fx, operators
from .drawn import Seeds, as_drawn
from .patterns import Result
from .rejection import GDPAError

log = logging.getLogger("gdpa_inductor")
Graph = Callable[..., Any]
Named = list[tuple[str, Tensor]]


def verified(compiled: Graph, original: GraphModule, result: Result) -> Graph:
    """`compiled`, which on its first call is compared with `original`, the graph before the
    rewrite.

    Raises (at that call, and at all after it):
        GDPAError: they differ; it names the tensor, by how much, and the rewritten regions.
    """
    seeds = as_drawn(original, result.matches)
    pending = [True]
    failure: list[str] = []

    def run(*args: Any) -> Any:
        if pending:
            try:
                text = difference(compiled, original, args, seeds)
            except Exception as error:
                about = type(error).__name__, str(error).split("\n", 1)[0]
                log.warning("gdpa.verify: not compared, a run on copies raised %s: %s", *about)
                text = ""
            pending.clear()  # not where it was interrupted
            if text:
                regions = "\n".join(f"  {match}" for match in result.matches)
                failure.append(f"gdpa.verify: {text}\nrewritten regions:\n{regions}")
        if failure:
            raise GDPAError(failure[0])
        return compiled(*args)

    return run


def difference(
    compiled: Graph, original: Graph, args: Sequence[Any], seeds: Seeds | None = None
) -> str:
    """The first breach of the rule, or "". seeds: Those of dropouts of the original."""
    seeds, text = seeds or Seeds(), ""
    for draw in seeds.ways:
        with torch.random.fork_rng(devices=_devices(args)):
            draw()
            eager, drew = _results(original, args)
        # Fused code draws in another order, so the numbers differ where both are right.
        if drew or not seeds.is_known:
            log.warning("gdpa.verify: the graph draws random numbers and is not compared")
            return ""
        text = _breach(compiled, original, args, eager)
        if not text:
            break
    return text


def _breach(compiled: Graph, original: Graph, args: Sequence[Any], eager: Named) -> str:
    fused, _ = _results(compiled, args)
    if [name for name, _ in fused] != [name for name, _ in eager]:
        return f"there are {len(fused)} outputs, inputs and gradients, not {len(eager)}"
    exact = _exact(original, args, eager)
    ulp = max((torch.finfo(t.dtype).eps for _, t in eager if t.is_floating_point()), default=0.0)
    for (name, theirs), mine, truth in zip(eager, (t for _, t in fused), exact, strict=True):
        text = breach(mine, theirs, truth, ulp)
        if text:
            return f"{name} {text}"
    return ""


_PLAIN = (Tensor, torch.nn.Parameter)


def _results(
    graph: Graph, args: Sequence[Any], dtype: torch.dtype | None = None
) -> tuple[Named, bool]:
    """Outputs, inputs afterwards and gradients, by name; and whether random numbers were drawn."""
    copies = _Copies(dtype)
    inputs = [copies.of(x, f"input {i}") for i, x in enumerate(args)]
    devices = _devices(args)
    with torch.random.fork_rng(devices=devices):
        before = _generator_states(devices)
        with _InFp64() if dtype is not None else contextlib.nullcontext():
            returned = graph(*inputs)
        outputs = [x for y in fx.tree_leaves(returned) for x in _parts(y)]
        gradients = _gradients(outputs, list(copies.leaves.values()))
        drew = any(not torch.equal(a, b) for a, b in zip(before, _generator_states(devices)))
    named_tensors = [(f"output {i}", x.detach()) for i, x in enumerate(outputs)]
    named_tensors += [
        (f"input {i}, as the graph left it,", x.detach())
        for i, y in enumerate(inputs)
        for x in _parts(y)
    ]
    named = zip(copies.leaves, gradients)
    named_tensors += [(f"the gradient of {name}", x) for name, y in named for x in _parts(y)]
    return named_tensors, drew


def _devices(args: Sequence[Any]) -> list[int]:
    """The GPUs of tensors."""
    indices = {x.device.index for x in args if isinstance(x, Tensor) and x.device.type == "cuda"}
    return sorted(indices)


def _parts(value: Any) -> list[Tensor]:
    """A tensor, or the one that holds the elements of a nested tensor."""
    if not isinstance(value, Tensor):
        return []
    return [value.values() if value.is_nested else value]


class _Copies:
    """Copies of inputs that stand to each other as these do.

    Tensors that share memory have copies that share memory, with the same strides. A view has a
    view. What is no leaf of autograd has a copy that is none, and may be written into.
    """

    def __init__(self, dtype: torch.dtype | None) -> None:
        self.dtype = dtype  # of floating copies, if not their own
        self.leaves: dict[str, Tensor] = {}  # those of the copies that want gradients, by name
        self._copies: dict[int, Tensor] = {}
        self._memory: dict[tuple[int, torch.dtype], Tensor] = {}

    def of(self, value: Any, name: str) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self._copies:
            self._copies[id(value)] = self._copied(value, name)
        return self._copies[id(value)]

    def _copied(self, value: Tensor, name: str) -> Tensor:
        plain = type(value) in _PLAIN and value.layout == torch.strided
        base, is_own_leaf = autograd.base_of(value), value.requires_grad and value.is_leaf
        if plain and type(base) in _PLAIN and not is_own_leaf:
            geometry = value.shape, value.stride(), value.storage_offset()
            with torch.set_grad_enabled(value.requires_grad):
                return self.of(base, f"the base of {name}").as_strided(*geometry)
        copy = self._strided(value) if plain else self._cast(value.detach().clone())
        if not value.requires_grad:
            return copy
        if value.is_leaf or not plain:
            self.leaves[name] = copy.requires_grad_()
            return copy
        self.leaves[name] = torch.zeros_like(copy).requires_grad_()
        return _WithGradient.apply(self.leaves[name], copy)

    def _strided(self, value: Tensor) -> Tensor:
        value = value.detach()
        storage = value.untyped_storage()
        key = storage.data_ptr(), value.dtype
        if key not in self._memory:
            whole = value.as_strided((storage.nbytes() // value.element_size(),), (1,), 0)
            self._memory[key] = self._cast(whole.clone())
        size, stride, offset = tuple(value.shape), value.stride(), int(value.storage_offset())
        return operators.strided_view(self._memory[key], size, stride, offset)

    def _cast(self, value: Tensor) -> Tensor:
        return value.to(self.dtype) if self.dtype and value.is_floating_point() else value


class _InFp64(operators.TorchDispatchMode):
    """Every cast to floats, and every tensor of floats that is made, is of fp64."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        options = dict(kwargs or {})
        dtype = options.get("dtype")
        if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
            options["dtype"] = torch.float64
        return function(*args, **options)


class _WithGradient(torch.autograd.Function):
    """The second argument, in the memory that it has, with the gradient of the first."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, value: Tensor) -> Tensor:
        return operators.strided_view(value, tuple(value.shape), value.stride(), 0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def _gradients(outputs: Sequence[Tensor], leaves: Sequence[Tensor]) -> list[Tensor]:
    """For cotangents that are fixed and not all alike."""
    differentiable = [x for x in outputs if x.requires_grad]
    grads: Sequence[Tensor | None] = [None] * len(leaves)
    if differentiable and leaves:
        cotangents = [_cotangent(x) for x in differentiable]
        grads = torch.autograd.grad(differentiable, leaves, cotangents, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads)]


def _cotangent(output: Tensor) -> Tensor:
    steps = torch.arange(output.numel(), device=output.device, dtype=torch.float64)
    return (steps.mul(0.7).cos() + 0.25).to(torch.bfloat16).to(output.dtype).view(output.shape)


def _generator_states(devices: Sequence[int]) -> list[Tensor]:
    return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]


def _exact(original: Graph, args: Sequence[Any], eager: Named) -> list[Tensor | None]:
    """The original on fp64 inputs; None for each tensor where it cannot be had."""
    try:
        tensors, _ = _results(original, args, torch.float64)
    except Exception as error:
        log.info("gdpa.verify: no fp64 run of the graph: %s", error)
        return [None] * len(eager)
    if [name for name, _ in tensors] != [name for name, _ in eager]:
        return [None] * len(eager)
    return [tensor for _, tensor in tensors]


def breach(fused: Tensor, eager: Tensor, exact: Tensor | None, coarsest: float) -> str:
    """How a tensor breaks the rule, or "". coarsest: The ulp of the graph's shortest dtype."""
    if fused.shape != eager.shape or fused.dtype != eager.dtype:
        described = f"{fused.dtype} {tuple(fused.shape)}", f"{eager.dtype} {tuple(eager.shape)}"
        return f"is {described[0]}, unfused {described[1]}"
    if not eager.dtype.is_floating_point or eager.numel() == 0:
        return "" if torch.equal(fused, eager) else "differs from the unfused one"
    worse = fused.isnan() & ~eager.isnan() | fused.isinf() & eager.isfinite()
    if exact is not None:
        worse &= ~(fused.isnan() & exact.isnan() | (fused.double() == exact))
    if bool(worse.any()):
        return "has NaN or infinity where the unfused one has none"
    mine, theirs = fused.double(), eager.double()
    finite = mine.isfinite() & theirs.isfinite()
    if exact is None:
        bound, error = coarsest**0.5 * _largest(theirs, finite), _largest(mine - theirs, finite)
    else:
        truth = exact.double()
        finite &= truth.isfinite()
        error = _largest(mine - truth, finite)
        ulp = torch.finfo(eager.dtype).eps
        bound = 10 * _largest(theirs - truth, finite) + 64 * ulp * _largest(truth, finite)
    return "" if error <= bound else f"is off by {error:.3e}, allowed {bound:.3e}"


def _largest(values: Tensor, where: Tensor) -> float:
    return float(values[where].abs().max()) if bool(where.any()) else 0.0
