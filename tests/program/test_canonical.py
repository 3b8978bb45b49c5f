"""Names for programs that models write out by hand, and scales that are folded."""

import math

import pytest

from gdpa_inductor.program.canonical import canonical
from gdpa_inductor.program.expr import SCORE, call

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
