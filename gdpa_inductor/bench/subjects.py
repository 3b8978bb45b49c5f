"""What is measured, of whatever kind a case is: a formula, dense or jagged, or a model."""

import torch

from . import jagged
from .cases import Case, Subject, formula, operands
from .clients import CLIENTS


def subject(case: Case) -> Subject:
    """The case on random data, the same every time."""
    torch.manual_seed(0)
    if case.fill:
        return jagged.subject(case)
    if case.variant == "model":
        return model_subject(case)
    given = operands(case)
    leaves = tuple(t for t in given if t.requires_grad)
    return Subject(formula(case), tuple(given), leaves, torch.randn_like(given[2]))


def model_subject(case: Case) -> Subject:
    """A client in training mode; leaves are its parameters."""
    dtype = getattr(torch, case.dtype)
    width = case.heads * case.head_dim
    model = CLIENTS[case.activation](case).to(case.device, dtype)
    x = torch.randn(case.batch, case.length, width, device=case.device, dtype=dtype)
    with torch.no_grad():
        direction = torch.randn_like(model(x))
    # What the loss does not reach has no gradient (a client may hold such parameters).
    used = torch.autograd.grad(model(x), list(model.parameters()), direction, allow_unused=True)
    leaves = [p for p, grad in zip(model.parameters(), used, strict=True) if grad is not None]
    return Subject(model, (x,), tuple(leaves), direction)
