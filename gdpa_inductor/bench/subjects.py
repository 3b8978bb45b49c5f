"""What is measured, of whatever kind a case is: a formula, dense or jagged, or a model."""

import copy

import torch
from torch import Tensor, nn

from . import jagged, models, serving
from .cases import Case, Subject, formula, operands


def subject(case: Case) -> Subject:
    """The case on random data, the same every time."""
    torch.manual_seed(case.seed)
    if case.variant == "model":
        return model_subject(case)
    if case.variant == "cache":
        return serving.subject(case)
    if case.fill:
        return jagged.subject(case)
    given = operands(case)
    leaves = tuple(t for t in given if t.requires_grad)
    direction = torch.randn_like(given[0] @ given[2].new_empty(case.head_dim, given[2].shape[-1]))
    return Subject(formula(case), tuple(given), leaves, direction)


def model_subject(case: Case) -> Subject:
    """A model in training mode; leaves are what it was given with a gradient, and parameters."""
    built = models.build(case)
    autocast = torch.bfloat16 if case.dtype == "autocast" else None
    dtype = torch.float32 if autocast else getattr(torch, case.dtype)
    function = built.function
    if isinstance(function, nn.Module):
        function.to(case.device, dtype)
    given = tuple(moved(t, case.device, dtype) for t in built.given)
    empty = torch.empty(0, device=case.device)
    on = Subject(function, given, (), empty, autocast)
    with torch.no_grad():
        direction = torch.randn_like(on.running(function))
    wanted = [*(t for t in given if t.requires_grad), *parameters(function)]
    # What the loss does not reach has no gradient (a model may hold such parameters).
    used = torch.autograd.grad(on.running(function), wanted, direction, allow_unused=True)
    leaves = tuple(t for t, grad in zip(wanted, used, strict=True) if grad is not None)
    return Subject(function, given, leaves, direction, autocast)


def parameters(function: object) -> list[Tensor]:
    return list(function.parameters()) if isinstance(function, nn.Module) else []


def moved(tensor: Tensor, device: str, dtype: torch.dtype) -> Tensor:
    """The same on a device; real numbers in the dtype, with a gradient if they had one."""
    found = tensor.detach().to(device, dtype if tensor.is_floating_point() else None)
    return found.requires_grad_(tensor.requires_grad)


def reference(on: Subject, dtype: torch.dtype) -> Subject:
    """The same subject in another dtype, without autocast: a copy."""
    device = on.direction.device.type
    function = copy.deepcopy(on.function)
    if isinstance(function, nn.Module):
        function.to(dtype=dtype)
    given = tuple(moved(t, device, dtype) for t in on.given)
    before = [*on.given, *parameters(on.function)]
    after = [*given, *parameters(function)]
    stands = {id(old): new for old, new in zip(before, after, strict=True)}
    leaves = tuple(stands[id(leaf)] for leaf in on.leaves)
    return Subject(function, given, leaves, on.direction.to(dtype))
