"""Fast forms of silu, tanh-gelu and their slopes, together with the scale of the score.

They are for fp16 and bf16. y is the score, x = c·y the argument of the activation, and
h = c/2 · (1 + t):

    silu       t = tanh(c/2 · y)                  p = c/2 · y · t + c/2 · y
               ∂p/∂y = p · (c - h) + h
    gelu_tanh  t = tanh(y · (cβ + c³βα · y²))     p = y · h
               ∂p/∂y = p · (1 - t) · (cβ + 3c³βα · y²) + h

The scale costs nothing, and the slope uses terms of the weight. With the product by dP, silu needs
6 instructions and a tanh, and gelu 10. The forms from differentiation need 9 and 14.
"""

from __future__ import annotations

from dataclasses import dataclass

from .expr import Expr, call, const, postorder
from .ops.activations import GELU_ALPHA, GELU_BETA, d_gelu_tanh, d_silu


@dataclass(frozen=True)
class Gate:
    """An activation of x = c·y. weight: p above; half: h; slope: ∂p/∂y."""

    scale: float
    weight: Expr
    half: Expr
    slope: Expr


def _silu(y: Expr, c: float) -> Gate:
    u = y * (0.5 * c)
    t = call("tanh", u)
    weight, h = u * t + u, t * (0.5 * c) + 0.5 * c
    return Gate(c, weight, h, weight * (c - h) + h)


def _gelu_tanh(y: Expr, c: float) -> Gate:
    beta, alpha, square = c * GELU_BETA, c**3 * GELU_BETA * GELU_ALPHA, y * y
    t = _tanh_of_gelu(y, c)
    h = t * (0.5 * c) + 0.5 * c
    weight = y * h
    rise = square * (3.0 * alpha) + beta
    # 1 - t before rise: where it is 0 their product must not be infinite.
    return Gate(c, weight, h, weight * (1.0 - t) * rise + h)


def _tanh_of_gelu(y: Expr, c: float) -> Expr:
    beta, alpha = c * GELU_BETA, c**3 * GELU_BETA * GELU_ALPHA
    return call("tanh", y * (y * y * alpha + beta))


def gelu_tanh_halves(term: Expr) -> tuple[Expr, float]:
    """(y·t + y, c/2) of a tanh-gelu, which is their product."""
    y, c = _scaled(term.args[0])
    return y * _tanh_of_gelu(y, c) + y, 0.5 * c


_FORMS = {"silu": _silu, "gelu_tanh": _gelu_tanh}
_SLOPES = {"silu": d_silu, "gelu_tanh": d_gelu_tanh}


def gated(term: Expr, weight: Expr) -> Expr:
    """A term of the program `weight`, or of its derivative, with the activations in these forms."""
    known = postorder([weight, term])  # a term on whole tiles may have activations of its own
    gates = {node: _scaled(node.args[0]) for node in known if node.op in _FORMS}
    # Terms are interned: a slope is the one object that building it again gives.
    slopes = {_SLOPES[node.op](const(1.0), node, *node.args)[0]: node for node in gates}
    sigmoids = {call("sigmoid", *node.args): node for node in gates if node.op == "silu"}
    terms: dict[Expr, Expr] = {}

    def gate(node: Expr) -> Gate:
        score, scale = gates[node]
        return _FORMS[node.op](terms[score], scale)

    def rewritten(node: Expr) -> Expr:
        if node in gates:
            return gate(node).weight
        if node in slopes:
            form = gate(slopes[node])
            return form.slope * (1.0 / form.scale)
        if node in sigmoids:  # its tanh is paid for already
            form = gate(sigmoids[node])
            return form.half * (1.0 / form.scale)
        inner, scale = _scaled(node)
        if inner in slopes and gate(slopes[inner]).scale == scale:
            return gate(slopes[inner]).slope
        if inner.op == "mul" and inner.args[1] in slopes:
            form = gate(slopes[inner.args[1]])
            if form.scale == scale:
                return terms[inner.args[0]] * form.slope
        return call(node.op, *(terms[a] for a in node.args)) if node.args else node

    for node in postorder([term]):
        terms[node] = rewritten(node)
    return terms[term]


def _scaled(x: Expr) -> tuple[Expr, float]:
    """y and c of c·y, or x and 1."""
    if x.op in ("mul", "div") and x.args[1].is_const and x.kind == "f":
        factor = float(x.args[1].value)
        scale = factor if x.op == "mul" or not factor else 1.0 / factor
        # c³ y² stays far from the ends of fp32, and c·y does not overflow where y does not.
        if 2.0**-10 <= abs(scale) <= 1.0:
            return x.args[0], scale
    return x, 1.0
