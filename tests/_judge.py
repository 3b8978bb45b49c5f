"""Runs a function eagerly and compiled, forward and backward, and compares by the error rule."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from tests.operands import recast, split_spec
from tests.tolerances import FP64_RELATIVE, error_of


@dataclass(frozen=True)
class Results:
    """Outputs and gradients by name; without gradients also the operands as the call left them."""

    outputs: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor]


def results(
    function: Callable, operands: Mapping[str, object], *, training: bool = True, seed: int = 0
) -> Results:
    """Call on `operands`; gradients are those of a fixed random weighting of the outputs.

    The operands are used as they are (and may be changed by the call): pass a fresh copy.
    """
    torch.manual_seed(seed)
    with contextlib.nullcontext() if training else torch.no_grad():
        returned = function(**operands)
    returned = returned if isinstance(returned, tuple) else (returned,)
    outputs = {f"output {i}": value.detach().clone() for i, value in enumerate(returned)}
    if not training:
        # What the call did to its arguments is part of what it means.
        left = {f"{name} afterwards": x for name, x in operands.items() if torch.is_tensor(x)}
        return Results({**outputs, **left}, {})
    leaves = {name: x for name, x in operands.items() if getattr(x, "requires_grad", False)}
    differentiable = [value for value in returned if value.requires_grad]
    if not differentiable or not leaves:
        return Results(outputs, {})
    weights = [_weighting(value, i) for i, value in enumerate(differentiable)]
    grads = torch.autograd.grad(differentiable, list(leaves.values()), weights, allow_unused=True)
    gradients = {
        f"gradient of {name}": torch.zeros_like(leaf) if grad is None else grad
        for (name, leaf), grad in zip(leaves.items(), grads)
    }
    return Results(outputs, gradients)


def _weighting(value: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(value.shape, generator=generator, dtype=torch.float64)
    # The same cotangent in every precision.
    return drawn.to(torch.bfloat16).to(value)


def difference(
    fused: Results,
    eager: Results,
    exact: Results,
    *,
    noise: Mapping[str, float] | None = None,
    gradient_relative: float = FP64_RELATIVE,
) -> str:
    """The first breach of the error rule, or ""; the keywords are those of `error_of`."""
    for direction, kind in (("forward", "outputs"), ("backward", "gradients")):
        mine, theirs, truth = (getattr(side, kind) for side in (fused, eager, exact))
        if mine.keys() != theirs.keys():
            return f"{kind}: {sorted(mine)} where eager has {sorted(theirs)}"
        for name in theirs:
            fault = error_of(
                mine[name],
                theirs[name],
                truth[name],
                direction=direction,
                noise=(noise or {}).get(name, 0.0),
                relative=gradient_relative if direction == "backward" else FP64_RELATIVE,
            )
            if fault:
                return f"{name}: {fault}"
    return ""


def compare(
    function: Callable,
    compiled: Callable,
    operands: Mapping[str, object],
    *,
    training: bool = True,
    seed: int = 0,
    specs: Mapping[str, str] | None = None,
    gradient_relative: float = FP64_RELATIVE,
) -> str:
    """The first difference between `compiled` and eager on the same values, or "".

    `specs`, when given, say which dims vary (the letters b, n, m): they are marked dynamic.
    `gradient_relative` is the bound of fp64 gradients, for functions whose own is less exact.
    """
    dtype = floating_dtype(operands)
    judge = {"training": training, "seed": seed}
    eager = results(function, recast(operands, dtype), **judge)
    exact = results(function, recast(operands, torch.float64), **judge)
    fresh = recast(operands, dtype)
    if specs is not None:
        mark_dynamic(specs, fresh)
    mine = results(compiled, fresh, **judge)
    return difference(mine, eager, exact, gradient_relative=gradient_relative)


def check_step(
    mine: Mapping[str, torch.Tensor],
    eager: Mapping[str, torch.Tensor],
    exact: Mapping[str, torch.Tensor],
    noise: Mapping[str, float] | None = None,
) -> None:
    """The error rule for a step of a model: its output or loss, which comes first, and gradients.

    exact: The same in fp64. noise: See `noise_of_model`.
    """
    for number, (name, theirs) in enumerate(eager.items()):
        direction = "backward" if number else "forward"
        own = (noise or {}).get(name, 0.0)
        fault = error_of(mine[name], theirs, exact[name], direction=direction, noise=own)
        assert not fault, f"{name}: {fault}"


def noise_of(
    function: Callable,
    operands: Mapping[str, object],
    exact: Results,
    eps: float,
    *,
    draws: int = 4,
) -> dict[str, float]:
    """How exact every result can be expected to be: the larger of two figures over a few draws.

    Each draw moves every element of the operands by one `eps`, up or down. The figures: how far the
    result moves in fp64; and eager's own error there, in the operands' precision. The second is the
    error rule's measure without the luck of one draw, and sees roundings outside of the region.
    """
    largest: dict[str, float] = {}
    for draw in range(draws):
        moved = _moved(operands, eps, torch.Generator().manual_seed(draw))
        rounded = recast(moved, floating_dtype(operands))
        same = recast(rounded, torch.float64)
        other, eager, truth = (results(function, x) for x in (moved, rounded, same))
        for mine, theirs in ((other, exact), (eager, truth)):
            for name, worst in _distances(mine, theirs):
                largest[name] = max(largest.get(name, 0.0), worst)
    return largest


def noise_of_model(
    model: torch.nn.Module,
    step: Callable[[], Mapping[str, torch.Tensor]],
    exactly: Callable[[], Mapping[str, torch.Tensor]],
    draws: int = 8,
) -> dict[str, float]:
    """How exact every result of a training step can be expected to be: its largest error over a few
    models a rounding away.

    `step` runs `model` as it then is, `exactly` does so in fp64. The model is left as it was.
    """
    largest: dict[str, float] = {}
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    try:
        for draw in range(draws):
            _move(model, before, torch.Generator().manual_seed(draw))
            mine, truth = step(), exactly()
            for name, value in mine.items():
                error = (value.double() - truth[name]).abs().max().item()
                largest[name] = max(largest.get(name, 0.0), error)
    finally:
        model.load_state_dict(before, strict=False)
    return largest


def _move(
    model: torch.nn.Module, values: Mapping[str, torch.Tensor], generator: torch.Generator
) -> None:
    """Set each element of the parameters to that of `values`, one rounding up or down."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            sign = torch.randint(0, 2, p.shape, generator=generator) * 2 - 1
            p.copy_(values[name] * (1 + torch.finfo(p.dtype).eps * sign.to(p.device)))


def _moved(
    operands: Mapping[str, object], eps: float, generator: torch.Generator
) -> dict[str, object]:
    """The operands in fp64, every element moved by `eps`, up or down."""
    moved = recast(operands, torch.float64)
    for value in moved.values():
        if torch.is_tensor(value) and value.is_floating_point():
            sign = torch.randint(0, 2, value.shape, generator=generator) * 2 - 1
            with torch.no_grad():
                value *= 1 + eps * sign.to(value.device)
    return moved


def _distances(mine: Results, theirs: Results) -> Iterator[tuple[str, float]]:
    """By result: how far the two are apart at most."""
    for ours, truths in ((mine.outputs, theirs.outputs), (mine.gradients, theirs.gradients)):
        for name, truth in truths.items():
            apart = (ours[name].double() - truth.double()).abs().nan_to_num(posinf=0.0)
            yield name, apart.max().item() if apart.numel() else 0.0


def floating_dtype(operands: Mapping[str, object]) -> torch.dtype:
    """The one floating dtype of the operands."""
    dtypes = {x.dtype for x in operands.values() if torch.is_tensor(x) and x.is_floating_point()}
    return dtypes.pop() if dtypes else torch.float64


def mark_dynamic(specs: Mapping[str, str], operands: Mapping[str, object]) -> None:
    """Say which dims vary: those whose spec holds the letter b, n or m."""
    for name, value in operands.items():
        if torch.is_tensor(value):
            for axis, dim in enumerate(split_spec(specs[name])[1]):
                if set(dim) & set("bnm"):
                    torch._dynamo.maybe_mark_dynamic(value, axis)
