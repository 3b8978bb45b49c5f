"""What rows claim by their traits, measured: jumps of values and slopes, slopes that multiply."""

import math

import pytest
import torch

from gdpa_inductor.program.expr import OPS, Trait, aux, differentiate
from tests.literals import LITERALS
from tests.program.test_expr import evaluate, term_of

# Functions of one real, with the literals that they are tried with.
ROWS = [
    pytest.param(name, signature, literals, id=f"{name}-{literals}")
    for name, row in OPS.items()
    for signature in row.kinds
    for literals in LITERALS.get(name, [()])
    if signature.split(">")[0] == "f" + "f" * row.params and signature[-1] == "f"
]
LARGEST = 0.01  # a step beyond which a function jumps; softplus bends less at its threshold


def jumps(function) -> torch.Tensor:
    """Where a function jumps: intervals of a grid are halved 40 times, towards the larger step."""
    grid = torch.arange(-24.0, 24.0, 1 / 64, dtype=torch.float64) + 1 / 256
    low, high = grid[:-1].clone(), grid[1:].clone()
    for _ in range(40):
        middle = (low + high) / 2
        below = (function(middle) - function(low)).abs()
        above = (function(high) - function(middle)).abs()
        left = below >= above
        low, high = torch.where(left, low, middle), torch.where(left, middle, high)
    ends = torch.stack([function(low), function(high)])
    step = (ends[1] - ends[0]).abs()
    return low[(step > LARGEST * ends.abs().amax(0).clamp(1.0)) & ends.isfinite().all(0)]


@pytest.mark.parametrize(("name", "signature", "literals"), ROWS)
def test_what_jumps_is_marked(name: str, signature: str, literals: tuple[float, ...]) -> None:
    """DECIDES: the value jumps. TURNS: the slope jumps elsewhere than at 0, whose sign is exact."""
    term, traits = term_of(name, signature, literals), OPS[name].traits
    found = jumps(lambda x: evaluate(term, [x]))
    assert not len(found) or Trait.DECIDES in traits, f"its value jumps at {found.tolist()}"
    (slope,) = differentiate(term, [aux(0)])
    if slope is not None:
        found = jumps(lambda x: evaluate(slope, [x], torch.ones_like(x)).expand_as(x))
        found = found[found.abs() > 1e-6]
        turns = Trait.TURNS | Trait.DECIDES
        assert not len(found) or traits & turns, f"its slope jumps at {found.tolist()}"


SMOOTH = [p for p in ROWS if Trait.SMOOTH in OPS[p.values[0]].traits]


@pytest.mark.parametrize("coming", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize(("name", "signature", "literals"), SMOOTH)
def test_a_smooth_slope_leaves_no_gradient_finite(name, signature, literals, coming) -> None:
    """SMOOTH: the slope multiplies what comes in. One that chooses may have 0 for an infinity."""
    (slope,) = differentiate(term_of(name, signature, literals), [aux(0)])
    x = torch.linspace(-200.0, 200.0, 4001, dtype=torch.float64)
    if slope is not None:
        assert not evaluate(slope, [x], torch.full_like(x, coming)).isfinite().any()


def test_the_measure_finds_jumps() -> None:
    found = jumps(lambda x: torch.where(x > 1.7, 1.0, torch.sigmoid(x)))
    assert found.tolist() == pytest.approx([1.7])
    assert len(jumps(torch.exp)) == 0
