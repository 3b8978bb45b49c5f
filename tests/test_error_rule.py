"""The error rule itself: what it lets pass, and what not."""

import pytest
import torch

from gdpa_inductor.error_rule import FACTORS, error_of

EXACT = torch.linspace(-3, 3, 1000, dtype=torch.float64)


@pytest.mark.parametrize(("direction", "dtype"), FACTORS)
def test_errors_up_to_a_multiple_of_eagers_pass(direction: str, dtype: torch.dtype):
    """Both factors bind: the smaller one where all errors are alike, the larger one where one is
    large.
    """
    factors, step = FACTORS[direction, dtype], 64 * torch.finfo(dtype).eps
    eager = (EXACT + step * torch.where(torch.arange(1000) % 2 == 0, 1.0, -1.0)).to(dtype)
    for scale, passes in ((0.95, True), (1.05, False)):
        fused = (EXACT + scale * factors.mean * (eager.double() - EXACT)).to(dtype)
        assert (error_of(fused, eager, EXACT, direction=direction) is None) == passes
        fused = eager.clone()
        fused[500] = EXACT[500] + scale * factors.maximum * step
        assert (error_of(fused, eager, EXACT, direction=direction) is None) == passes


def test_special_values_must_be_where_eager_has_them():
    eager = torch.tensor([1.0, torch.nan, torch.inf])
    exact = eager.double()
    assert error_of(eager.clone(), eager, exact, direction="forward") is None
    for other in ([1.0, 1.0, torch.inf], [1.0, torch.nan, -torch.inf], [torch.nan] * 3):
        wrong = error_of(torch.tensor(other), eager, exact, direction="forward")
        assert wrong == "NaN or infinity in other places than eager"


@pytest.mark.parametrize("fused", [torch.ones(2), torch.ones(3).half()])
def test_shape_and_dtype_are_eagers(fused: torch.Tensor):
    assert error_of(fused, torch.ones(3), torch.ones(3).double(), direction="forward")
