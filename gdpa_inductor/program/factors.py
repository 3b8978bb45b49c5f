"""Take a constant factor out of all weights. A kernel multiplies its sums by it instead:

    sum_j c·r(s_j) V_j  =  c · sum_j r(s_j) V_j

Tanh-gelu has such a factor: with y, c and t as in `fast`, it is c/2 · (y·t + y). That saves an
instruction for each score. Without the factor a weight may be larger. So the dtype needs the
exponents of fp32, and the factor must not be extreme.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .expr import Expr, call, postorder
from .fast import gelu_tanh_halves
from .simplify import substitute

EXTREME = 2.0**40
LEAST = 2.0**-16  # the least factor of queries: numbers that matter keep all their bits


def factored(terms: Sequence[Expr]) -> tuple[tuple[Expr, ...], float]:
    """(rests, c) with each term = c · rest. c is 1 if the terms have no common factor."""
    pairs = [split(term) for term in terms]
    factors = {factor for _, factor in pairs}
    if len(factors) > 1 or not all(1 / EXTREME <= abs(c) <= EXTREME for c in factors):
        return tuple(terms), 1.0
    return tuple(rest for rest, _ in pairs), factors.pop()


def of_queries(terms: Sequence[Expr], weight: Expr) -> tuple[tuple[Expr, ...], float]:
    """(terms, f): the terms as functions of the scaled score f·s, where f is a power of two.

    Silu takes the tanh of half of its argument. If that is 2ⁿ·s, queries in bf16 can be multiplied
    by 2ⁿ without rounding, once for all keys. f is 1 if the program `weight` uses the score in
    another way.
    """
    nodes = list(postorder([*terms, weight]))
    score = next((x for x in nodes if x.op == "s"), weight)
    users = {x for x in nodes if score in x.args}
    node, factor = score, 1.0
    if len(users) == 1:
        (user,) = users
        factor = _power_of_two(user)
        if factor != 1.0:
            node, users = user, {x for x in nodes if user in x.args}
    if not users or any(x.op != "silu" for x in users):
        return tuple(terms), 1.0
    return tuple(substitute(terms, {node: score * 2.0})), 0.5 * factor


def _power_of_two(node: Expr) -> float:
    if node.op != "mul" or not node.args[1].is_const:
        return 1.0
    factor = float(node.args[1].value)
    exact = 1 / LEAST >= factor >= LEAST and math.log2(factor).is_integer()
    return factor if exact else 1.0


def split(term: Expr, inside: bool = True) -> tuple[Expr, float]:
    """(rest, c) with term = c · rest. inside: Also look into activations and below conditions."""
    numbers = [float(x.value) if x.is_const else None for x in term.args]
    match term.op, numbers:
        case "where", [_, _, 0.0] if inside:
            condition, chosen, zero = term.args
            rest, factor = split(chosen)
            return call("where", condition, rest, zero), factor
        case "neg", _:
            rest, factor = split(term.args[0], inside)
            return rest, -factor
        case "mul", [float() as c, None]:
            rest, factor = split(term.args[1], inside)
            return rest, factor * c
        case "mul", [None, float() as c]:
            rest, factor = split(term.args[0], inside)
            return rest, factor * c
        case "div", [None, float() as c] if c:
            rest, factor = split(term.args[0], inside)
            return rest, factor / c
        case "mul", [None, None]:
            (x, factor), (y, other) = (split(arg, inside) for arg in term.args)
            return call("mul", x, y), factor * other
        case "gelu_tanh", _ if inside:
            return gelu_tanh_halves(term)
    return term, 1.0
