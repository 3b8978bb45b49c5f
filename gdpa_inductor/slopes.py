"""Derivatives of score expressions, in their own vocabulary.

`SLOPES` has a line per operation of `expr.OPS` that has a gradient, its vector-Jacobian product:
`slope(g, y, *args)` gives one cotangent per argument, None where it is zero. What is not listed has
none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .expr import GELU_ALPHA, GELU_BETA, GRAD, Expr, Literal, call, postorder

Slope = Callable[..., tuple[Expr | None, ...]]
_FP32_SIXTH = 11184811 / 2**26


def _where(c: Expr, x: Expr | Literal, y: Expr | Literal) -> Expr:
    return call("where", c, x, y)


def _keep(g: Expr, condition: Expr) -> Expr:
    return _where(condition, g, 0.0)


def _square(x: Expr) -> Expr:
    return x * x


def d_sigmoid(g: Expr, y: Expr, _x: Expr) -> tuple[Expr]:
    return (g * (y * (1.0 - y)),)


def d_silu(g: Expr, _y: Expr, x: Expr) -> tuple[Expr]:
    t = call("sigmoid", x)
    return (g * (t * (1.0 + x * (1.0 - t))),)


def d_gelu(g: Expr, _y: Expr, x: Expr) -> tuple[Expr]:
    cdf = 0.5 * (1.0 + call("erf", x * math.sqrt(0.5)))
    pdf = call("exp", x * x * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))
    return (g * (cdf + x * pdf),)


def gelu_tanh_argument(x: Expr) -> Expr:
    """u of gelu_tanh(x) = x/2 · (1 + tanh u)."""
    return x * (GELU_BETA + (GELU_BETA * GELU_ALPHA) * _square(x))


def d_gelu_tanh(g: Expr, _y: Expr, x: Expr) -> tuple[Expr]:
    t = call("tanh", gelu_tanh_argument(x))
    slope = GELU_BETA + (3.0 * GELU_BETA * GELU_ALPHA) * _square(x)
    return (g * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope),)


def d_hardswish(g: Expr, _y: Expr, x: Expr) -> tuple[Expr]:
    """NaN at NaN: so have torch's vectors; its single elements pass all of g there."""
    inner = _where(call("ge", x, 3.0), g, g * (x * (1.0 / 3.0) + 0.5))
    return (_where(call("le", x, -3.0), 0.0, inner),)  # not g · 0, which g may make NaN


def _within(x: Expr, low: Expr | Literal, high: Expr | Literal) -> Expr:
    return call("and", call("gt", x, low), call("lt", x, high))


def d_hardsigmoid(g: Expr, _y: Expr, x: Expr) -> tuple[Expr]:
    """torch's sixth is that of fp32 in fp64 too."""
    return (_keep(g * _FP32_SIXTH, _within(x, -3.0, 3.0)),)


def d_hardtanh(g: Expr, _y: Expr, x: Expr, low: Expr, high: Expr) -> tuple[Expr | None, ...]:
    """None at NaN: torch's vectors have none there, its single elements all of it."""
    return (_keep(g, _within(x, low, high)), None, None)


def d_leaky_relu(g: Expr, _y: Expr, x: Expr, slope: Expr) -> tuple[Expr | None, ...]:
    return (_where(call("gt", x, 0.0), g, g * slope), None)


def d_erf(g: Expr, _y: Expr, x: Expr) -> tuple[Expr]:
    return (g * (call("exp", -(x * x)) * (2.0 / math.sqrt(math.pi))),)


def d_where(g: Expr, _y: Expr, c: Expr, _x: Expr, _z: Expr) -> tuple[Expr | None, ...]:
    return (None, _keep(g, c), _where(c, 0.0, g))


def _d_clamp(inside: str) -> Callable[..., tuple[Expr | None, ...]]:
    """torch's clamp passes the gradient at the bound itself."""
    return lambda g, y, x, bound: (_keep(g, call(inside, x, bound)), None)


def d_elu(g: Expr, _y: Expr, x: Expr, alpha: Expr, scale: Expr, slope: Expr) -> tuple[Expr]:
    """NaN at NaN: so have torch's vectors; its single elements pass all of g there."""
    a, c, k = _floats(alpha, scale, slope)
    return (_where(call("gt", x, 0.0), g * c, g * (a * c * k) * call("exp", x * k)),)


def d_softplus(g: Expr, _y: Expr, x: Expr, beta: Expr, threshold: Expr) -> tuple[Expr]:
    b, t = _floats(beta, threshold)
    return (_where(call("gt", x * b, t), g, g * call("sigmoid", x * b)),)


def d_mish(g: Expr, _y: Expr, x: Expr) -> tuple[Expr]:
    t, s = call("tanh", call("softplus", x, 1.0, 20.0)), call("sigmoid", x)
    return (g * (t + x * s * (1.0 - t * t)),)


def d_pow(g: Expr, _y: Expr, x: Expr, exponent: Expr) -> tuple[Expr | None]:
    (e,) = _floats(exponent)
    if e == 0.0:
        return (None,)
    return (g * (e * x if e == 2.0 else e * call("pow", x, e - 1.0)),)


def _d_extremum(loses: str) -> Callable[..., tuple[Expr, Expr]]:
    """torch.maximum and minimum: the loser gets no gradient, ties share it equally.

    Beside a NaN nobody loses, so that both operands get all of it.
    """

    def vjp(g: Expr, _y: Expr, x: Expr, z: Expr) -> tuple[Expr, Expr]:
        shared = _where(call("eq", x, z), g * 0.5, g)
        return (
            _where(call(loses, x, z), 0.0, shared),
            _where(call(loses, z, x), 0.0, shared),
        )

    return vjp


def _floats(*literals: Expr) -> list[float]:
    return [float(x.value) for x in literals if x.value is not None]


# fmt: off
SLOPES: dict[str, Slope] = {
    # arithmetic
    "add": lambda g, y, x, z: (g, g),
    "sub": lambda g, y, x, z: (g, -g),
    "mul": lambda g, y, x, z: (g * z, g * x),
    "div": lambda g, y, x, z: (g / z, -(g * (y / z))),
    "neg": lambda g, y, x: (-g,),
    "abs": lambda g, y, x: (g * call("sign", x),),
    "pow": d_pow,
    "maximum": _d_extremum("lt"),
    "minimum": _d_extremum("gt"),
    "clamp_min": _d_clamp("ge"),
    "clamp_max": _d_clamp("le"),
    # elementary functions
    "sqrt": lambda g, y, x: (g / (2.0 * y),),
    "rsqrt": lambda g, y, x: (g * (-0.5 * (y * y * y)),),
    "exp": lambda g, y, x: (g * y,),
    "exp2": lambda g, y, x: (g * (y * math.log(2.0)),),
    "expm1": lambda g, y, x: (g * (y + 1.0),),
    "log": lambda g, y, x: (g / x,),
    "log1p": lambda g, y, x: (g / (x + 1.0),),
    "sin": lambda g, y, x: (g * call("cos", x),),
    "cos": lambda g, y, x: (-(g * call("sin", x)),),
    "tanh": lambda g, y, x: (g * (1.0 - y * y),),
    "erf": d_erf,
    # activations
    "sigmoid": d_sigmoid,
    "relu": lambda g, y, x: (_where(call("le", x, 0.0), 0.0, g),),
    "silu": d_silu,
    "gelu": d_gelu,
    "gelu_tanh": d_gelu_tanh,
    "hardswish": d_hardswish,
    "hardsigmoid": d_hardsigmoid,
    "leaky_relu": d_leaky_relu,
    "elu": d_elu,
    "softplus": d_softplus,
    "mish": d_mish,
    "hardtanh": d_hardtanh,
    # rounding: no gradient but through the narrowing casts, as autograd has it
    "bf16": lambda g, y, x: (call("bf16", g),),
    "f16": lambda g, y, x: (call("f16", g),),
    # choice
    "where": d_where,
}
# fmt: on


def differentiate(output: Expr, wrt: Sequence[Expr], seed: Expr = GRAD) -> list[Expr | None]:
    """Reverse mode: the cotangents of the leaves `wrt` for the cotangent `seed` of `output`; None
    where zero.
    """
    order = list(postorder([output]))
    active: set[Expr] = set(wrt)
    for node in order:
        if node.op in SLOPES and any(a in active for a in node.args):
            active.add(node)
    cotangents: dict[Expr, Expr] = {output: seed} if output in active else {}
    for node in reversed(order):
        g, slope = cotangents.get(node), SLOPES.get(node.op)
        if g is None or slope is None or node not in active:
            continue
        for arg, part in zip(node.args, slope(g, node, *node.args), strict=False):
            if part is not None and arg in active:
                cotangents[arg] = cotangents[arg] + part if arg in cotangents else part
    return [cotangents.get(leaf) for leaf in wrt]
