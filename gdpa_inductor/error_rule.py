"""The error rule: how far a fused result may lie from the exact one.

Both the fused result and eager's, in the same precision, are held against the formula in fp64:

    max  |fused - exact|  <=  max_factor  · max  |eager - exact|
    mean |fused - exact|  <=  mean_factor · mean |eager - exact|

Each bound is at least 2 ulp of max|exact|. NaN and infinities must be where eager has them. On
tensors of a few dozen elements eager's own error is a matter of luck. There `noise` stands beside
it: the error over a few draws of operands a rounding away. Where the inputs are fp64 there is
nothing more exact to compare with, so eager is the reference.

`gdpa prove` and the tests judge kernels by this rule. That of `verify` is wider.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class ErrorFactors(NamedTuple):
    """What multiplies eager's own maximal and mean error."""

    maximum: float
    mean: float


FACTORS = {
    ("forward", torch.float32): ErrorFactors(2.0, 2.0),
    ("backward", torch.float32): ErrorFactors(3.0, 3.0),
    ("forward", torch.float16): ErrorFactors(2.0, 1.1),
    ("backward", torch.float16): ErrorFactors(3.0, 1.5),
    ("forward", torch.bfloat16): ErrorFactors(2.0, 1.1),
    ("backward", torch.bfloat16): ErrorFactors(3.0, 1.5),
}
FLOOR_ULP = 2
# fp64 against fp64 differs by the order of the sums only; a wrong program is off by 1e-3 and more.
FP64_RELATIVE = 1e-10


def error_of(
    fused: torch.Tensor,
    eager: torch.Tensor,
    exact: torch.Tensor,
    *,
    direction: str,
    noise: float = 0.0,
    relative: float = FP64_RELATIVE,
) -> str | None:
    """None when `fused` obeys the rule, else a sentence that says how it breaks it.

    All three have one shape. `fused` and `eager` are in the precision under test, `exact` is the
    formula in fp64 on the same operands. `direction` is "forward" or "backward". `relative` is the
    bound where eager is the reference, for the few torch functions that are less than fp64 inside.
    """
    if fused.shape != eager.shape:
        return f"shape {tuple(fused.shape)}, eager has {tuple(eager.shape)}"
    if fused.dtype != eager.dtype:
        return f"dtype {fused.dtype}, eager has {eager.dtype}"
    if not eager.is_floating_point():
        return None if torch.equal(fused, eager) else "not equal"
    fused64, eager64, exact64 = (t.detach().double() for t in (fused, eager, exact))
    finite = eager64.isfinite()
    if not _same_specials(fused64, eager64):
        return "NaN or infinity in other places than eager"
    # Where only one precision overflows there is no error to speak of.
    finite &= exact64.isfinite()
    if not finite.any():
        return None
    fused64, eager64, exact64 = (t[finite] for t in (fused64, eager64, exact64))
    if eager.dtype == torch.float64:
        return _fp64_error(fused64, eager64, relative)
    return _low_precision_error(
        (fused64 - exact64).abs(),
        (eager64 - exact64).abs(),
        FLOOR_ULP * torch.finfo(eager.dtype).eps * exact64.abs().max().item(),
        FACTORS[direction, eager.dtype],
        noise,
    )


def _same_specials(fused: torch.Tensor, eager: torch.Tensor) -> bool:
    infinite = torch.where(eager.isinf(), eager, 0.0)
    return torch.equal(fused.isnan(), eager.isnan()) and torch.equal(
        torch.where(fused.isinf(), fused, 0.0), infinite
    )


def _fp64_error(fused: torch.Tensor, eager: torch.Tensor, relative: float) -> str | None:
    bound = relative * max(1.0, eager.abs().max().item())
    worst = (fused - eager).abs().max().item()
    return None if worst <= bound else f"differs from eager by {worst:.3e}, allowed {bound:.3e}"


def _low_precision_error(
    fused: torch.Tensor, eager: torch.Tensor, floor: float, factors: ErrorFactors, noise: float
) -> str | None:
    for name, got, own, factor in (
        ("maximal", fused.max(), eager.max(), factors.maximum),
        ("mean", fused.mean(), eager.mean(), factors.mean),
    ):
        bound = max(factor * max(own.item(), noise), floor)
        if not got.item() <= bound:
            return f"{name} error {got.item():.3e}, allowed {bound:.3e} (eager: {own.item():.3e})"
    return None
