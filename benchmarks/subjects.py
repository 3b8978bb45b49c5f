"""The subject of a case of any kind: a dense or jagged formula, a cache, or a model."""

import copy

import torch
from torch import Tensor, nn

from . import jagged, models, serving
from .cases import Case, Subject, formula, operands


def subject(case: Case) -> Subject:
    """The function of a case with random arguments, the same at every call."""
    torch.manual_seed(case.seed)
    if case.variant == "model":
        return model_subject(case)
    if case.variant == "cache":
        return serving.subject(case)
    if case.fill:
        return jagged.subject(case)
    inputs = operands(case)
    leaves = tuple(t for t in inputs if t.requires_grad)
    query, _, value = inputs[:3]
    direction = torch.randn_like(query @ value.new_empty(case.head_dim, value.shape[-1]))
    return Subject(formula(case), tuple(inputs), leaves, direction)


def model_subject(case: Case) -> Subject:
    """A model in training mode.

    Its leaves are the parameters, and the arguments that require gradients.
    """
    built = models.build(case)
    autocast = torch.bfloat16 if case.dtype == "autocast" else None
    dtype = torch.float32 if autocast else getattr(torch, case.dtype)
    function = built.function
    if isinstance(function, nn.Module):
        function.to(case.device, dtype)
    inputs = tuple(moved(t, case.device, dtype) for t in built.inputs)
    empty = torch.empty(0, device=case.device)
    on = Subject(function, inputs, (), empty, autocast)
    with torch.no_grad():
        direction = torch.randn_like(on.running(function))
    wanted = [*(t for t in inputs if t.requires_grad), *parameters(function)]
    # A parameter that the output does not depend on has no gradient, and is no leaf.
    used = torch.autograd.grad(on.running(function), wanted, direction, allow_unused=True)
    leaves = tuple(t for t, grad in zip(wanted, used, strict=True) if grad is not None)
    return Subject(function, inputs, leaves, direction, autocast)


def parameters(function: object) -> list[Tensor]:
    return list(function.parameters()) if isinstance(function, nn.Module) else []


def moved(tensor: Tensor, device: str, dtype: torch.dtype) -> Tensor:
    """A detached copy on a device. Floating-point tensors get the dtype.

    It requires gradients if the tensor did.
    """
    copy = tensor.detach().to(device, dtype if tensor.is_floating_point() else None)
    return copy.requires_grad_(tensor.requires_grad)


def reference(on: Subject, dtype: torch.dtype) -> Subject:
    """A copy of the subject in another dtype, without autocast."""
    device = on.direction.device.type
    function = copy.deepcopy(on.function)
    if isinstance(function, nn.Module):
        function.to(dtype=dtype)
    inputs = tuple(moved(t, device, dtype) for t in on.inputs)
    before = [*on.inputs, *parameters(on.function)]
    after = [*inputs, *parameters(function)]
    stands = {id(old): new for old, new in zip(before, after, strict=True)}
    leaves = tuple(stands[id(leaf)] for leaf in on.leaves)
    return Subject(function, inputs, leaves, on.direction.to(dtype))
