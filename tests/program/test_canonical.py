"""Names for programs that models write out by hand, and scales that are folded."""

import math

import pytest
import torch

from gdpa_inductor.program.canonical import canonical
from gdpa_inductor.program.expr import OPS, SCORE, Expr, Op, call, differentiate, fold, torch_apply

X, BETA = SCORE + 0.25, math.sqrt(2 / math.pi)
NAMED = {
    "silu": (X * call("sigmoid", X), call("sigmoid", X) * X),
    "gelu": (
        0.5 * X * (1.0 + call("erf", X / math.sqrt(2))),
        X * 0.5 * (call("erf", X * math.sqrt(0.5)) + 1.0),
        X * (0.5 * (1.0 + call("erf", X / math.sqrt(2)))),
    ),
    "gelu_tanh": (
        0.5 * X * (1.0 + call("tanh", BETA * (X + 0.044715 * call("pow", X, 3.0)))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_names(name):
    for spelled in NAMED[name]:
        assert canonical(spelled) is call(name, X)


def test_names_are_not_given_to_what_is_close():
    near = 0.5 * X * (1.0 + call("erf", X * 0.7071))
    assert canonical(near).op != "gelu"
    assert canonical(call("clamp_min", X, 0.0)).op == "clamp_min"
    assert canonical(X * call("sigmoid", X * 1.702)).op == "mul"


def test_scales_are_folded():
    assert canonical(call("silu", X * 0.5 * 0.25)) is call("silu", X * 0.125)
    assert canonical(call("silu", X * 2.0 * -4.0)) is call("silu", X * -8.0)


@pytest.mark.parametrize("scales", [(4.0, 0.5), (1e38, 1e-38), (1e-38, 1e38), (0.5, 4.0)])
def test_scales_that_overflow_or_vanish_between_are_not(scales):
    """x·4 may be infinite where x·2 is not, and x/2 may vanish where 2x does not."""
    written = X * scales[0] * scales[1]
    assert canonical(written) is written


# Where gradient times score is not finite, the product rule of these formulas is not either, and
# the derivative of the function may be (docs/numerics.md). No other spelling may differ.
BY_PRODUCT_RULE = {"silu", "gelu", "gelu_tanh"}
FAR = [19.9, 88.0, 90.0, 104.0, 800.0, 1e4, 1e10, 1e20, 3e38, 1e308, math.inf]
POINTS = [math.nan, *(sign * x for sign in (1, -1) for x in (0.0, 5e-324, 1e-40, 0.7, 2.5, *FAR))]
COMING = [1.5, -0.75, 0.0, 1e38, math.inf, -math.inf, math.nan]
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-11}


def gradient(term: Expr, x: torch.Tensor, coming: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The value of a term, and its gradient by autograd: what a model has that spells it so."""
    leaf = x.clone().requires_grad_()
    value = evaluate(term, leaf, coming)
    return value.detach(), torch.autograd.grad(value, leaf, coming)[0]


def evaluate(term: Expr, x: torch.Tensor, coming: torch.Tensor) -> torch.Tensor:
    given = {"s": x, "g": coming}
    kinds = {"f": x.dtype, "i": torch.int64, "b": torch.bool}

    def leaf(node: Expr) -> torch.Tensor:
        found = given.get(node.op)
        return torch.tensor(node.value, dtype=kinds[node.kind]) if found is None else found

    return fold([term], leaf, torch_apply(x.dtype))[0].expand_as(x)


def differences(name: str, spelling: Expr, dtype: torch.dtype) -> list[str]:
    """Where the spelling of an operation is another function than the operation."""
    grid = torch.cartesian_prod(torch.tensor(POINTS, dtype=dtype), torch.tensor(COMING).to(dtype))
    x, coming = (column.contiguous() for column in grid.unbind(1))
    (slope,) = differentiate(call(name, SCORE), [SCORE])
    wanted = gradient(spelling, x, coming)
    found = evaluate(call(name, SCORE), x, coming), evaluate(slope, x, coming)
    known = x.isfinite() & ~(coming * x).isfinite() & ~wanted[1].isfinite()
    known &= torch.tensor(name in BY_PRODUCT_RULE)
    seen = []
    for what, want, got in zip(("value", "gradient"), wanted, found, strict=True):
        near = torch.isclose(got, want, TOLERANCE[dtype], 1e-37, equal_nan=True)
        wrong = ~near & ~(known & (what == "gradient"))
        seen += [
            f"{what} at {x[i]} under {coming[i]}: {got[i]}, of the formula {want[i]}"
            for i in wrong.nonzero().flatten().tolist()
        ]
    return seen


SPELLED = [
    pytest.param(name, spelling, id=f"{name}-{number}")
    for name, row in OPS.items()
    for number, spelling in enumerate(row.spelled(SCORE) if row.spelled else ())
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "spelling"), SPELLED)
def test_a_spelling_is_the_operation_everywhere(torchs_own_loops, name, spelling, dtype):
    """Values and gradients: at NaN, infinities and zeros, of subnormal and of large numbers."""
    assert differences(name, spelling, dtype)[:4] == []


def test_a_spelling_that_differs_at_infinity_is_seen(monkeypatch):
    """Softsign by hand: its slope is 0 where that of the formula is NaN."""
    size = 1.0 + call("abs", SCORE)
    slope = lambda g, y, x: (g * call("pow", 1.0 + call("abs", x), -2.0),)
    row = Op(("f>f",), torch.nn.functional.softsign, "", vjp=slope)
    monkeypatch.setitem(OPS, "of a test", row)
    seen = differences("of a test", SCORE / size, torch.float64)
    assert "gradient at inf under 1.5: 0.0, of the formula nan" in seen
