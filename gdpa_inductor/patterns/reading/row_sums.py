"""Read row sums of the weights, and the division of the weights by them.

    (P / f(R)) V   →   (P V) / f(R),   R = sum over the keys of a term of the score

f(R) is one number for a row, so it may be divided by after the product. The model's nodes of f stay
as they are: here f(R) is an operand like any other, and R is a second result of the op.

Where the divisor vanishes, eager has NaN or infinity in each weight, and in their sum NaN. So the
division stays where it is unless weights vanish with their divisor, or a clamp keeps it from 0.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from ...program.expr import Expr, call, postorder
from ...rejection import Code
from ..host import facts, functions, places, products
from ..host.sizes import same_shape
from ..result import Refused
from .frame import Digits
from .kinds import real
from .reading import RowFactor, RowSum
from .views import tensor_of
from .weights import Element, Weights

_ROUNDINGS = {"bf16": torch.bfloat16, "f16": torch.float16}
_CLAMPS = frozenset(["clamp", "clip", "clamp_min"])
# Of numbers that are not negative, these are 0 only where R is.
_KEEPING = (
    functions.VIEWS
    | functions.CASTS
    | _CLAMPS
    | frozenset(["add", "abs", "detach", "getitem", "sqrt", "mul", "div", "truediv", "reciprocal"])
)
_POSITIVE = frozenset(["abs", "relu", "sigmoid", "exp", "exp2", "softplus", "sqrt"])
_OF_SIGNS = frozenset(["add", "mul", "maximum", "minimum", "clamp_max", "detach", *_ROUNDINGS])
_CALLS_OF_POSITIVE = frozenset(["relu", "sigmoid", "exp", "softplus", "softmax", "square"])


def read(
    weights: Weights, weight: Expr, keys: Digits, dtype: torch.dtype
) -> tuple[Expr, RowSum | None, RowFactor | None]:
    """(the weights without a factor that is made of row sums, these sums, the factor)

    dtype: Of the second product.
    """
    shadow = weights.shadow
    if shadow.sums is None or shadow.summed is None:
        return weight, None, None
    _check_width(shadow.sums.node, dtype)
    at, dim = _place(weights, shadow.summed), shadow.sums.dim
    if at.branches or at.index[dim] != weights.space.resolve(keys):
        reason = f"{places.describe(shadow.sums.node)} sums along another dimension than the keys"
        raise Refused(Code.NORMALISED, reason)
    term = real(weights.read(shadow.summed, at))
    weight, factor = _without_factor(weights, weight, dtype)
    left = {x for x in postorder([weight, term]) if _is_of_sums(weights, x)}
    if left:
        more = "more than a row is divided by the result"
        more = "what it divides is rounded" if weight.op in _ROUNDINGS else more
        reason = f"{places.describe(shadow.sums.node)} sums weights, and {more}"
        raise Refused(Code.NORMALISED, reason)
    if factor is not None:
        _check_zero(weights, weight, term, factor)
    if factor is not None and dtype == torch.float16:
        reason = "in fp16 the product may overflow before it is divided by the row sums"
        advice = "use bf16, or divide after the second product"
        raise Refused(Code.NORMALISED, reason, change=advice)
    index = list(at.index)
    index[dim:] = [*([()] if shadow.sums.keepdim else []), *index[dim:][1:]]
    return weight, RowSum(term, tuple(index)), factor


def _check_width(sum_: Node, dtype: torch.dtype) -> None:
    if facts.tensors(sum_)[0].dtype == torch.float64 != dtype:
        reason = f"{places.describe(sum_)} sums in fp64, where a kernel would sum in fp32"
        raise Refused(Code.NORMALISED, reason, change="sum the weights in their own dtype")


def _place(weights: Weights, summed: Node) -> Element:
    """The element of what is summed that belongs to the weight."""
    known: dict[Node, set[Element]] = {}
    for node, at in weights.memo:
        known.setdefault(node, set()).add(at)
    shape = tensor_of(summed).shape

    def alike(node: Node) -> list[Node]:
        # An element of the result is made of one element of each of these.
        return [n for n in node.all_input_nodes if same_shape(tensor_of(n).shape, shape)]

    for node in facts.walk([summed], alike):
        if len(known.get(node, ())) == 1:
            (at,) = known[node]
            return at
    raise Refused(Code.NORMALISED, "what is summed along rows is not made of the weights")


def _is_of_sums(weights: Weights, x: Expr) -> bool:
    sums = weights.shadow.sums
    return sums is not None and x.op == "aux" and weights.operands[x.value].leaf in sums.derived


def _without_factor(
    weights: Weights, weight: Expr, dtype: torch.dtype
) -> tuple[Expr, RowFactor | None]:
    if _ROUNDINGS.get(weight.op) == dtype:  # in another one what is not divided may overflow
        inner, factor = _without_factor(weights, weight.args[0], dtype)
        return (weight, None) if factor is None else (call(weight.op, inner), factor)
    if weight.op not in ("mul", "div"):
        return weight, None
    pairs = [weight.args] if weight.op == "div" else [weight.args, weight.args[::-1]]
    for rest, by in pairs:
        if _is_of_sums(weights, by):
            return rest, RowFactor(weight.op, weights.operands[by.value])
    return weight, None


def _check_zero(weights: Weights, weight: Expr, term: Expr, factor: RowFactor) -> None:
    sums, node = weights.shadow.sums, factor.operand.leaf
    assert sums is not None
    if facts.name(node) in _CLAMPS and _is_positive(facts.argument(node, 1, "min")):
        return
    term, weight = _bare(term), _bare(weight)
    absolute = _bare(term.args[0]) is weight if term.op == "abs" else False
    alike = absolute or (term is weight and _never_negative(weights, weight))
    way = facts.walk([node], lambda n: n.all_input_nodes if n is not sums.node else ())
    if not alike or not all(n is sums.node or _keeps_zero(n) for n in way):
        reason = "divides weights by sums that may be 0 where the weights are not"
        advice = "clamp the sums from below, or divide after the second product"
        raise Refused(Code.NORMALISED, f"{places.describe(sums.node)} {reason}", change=advice)


def _bare(x: Expr) -> Expr:
    """A term without what keeps its zeros."""
    return _bare(x.args[0]) if x.op in (*_ROUNDINGS, "detach") else x


def _keeps_zero(node: Node) -> bool:
    called = facts.name(node)
    numbers = [] if called in functions.VIEWS else [x for x in node.args if not isinstance(x, Node)]
    signs = all(_is_positive(x) for x in numbers if isinstance(x, (int, float)))
    real = all(t.is_floating_point() for t in facts.tensors(node))
    return called in _KEEPING and signs and real and len(node.all_input_nodes) == 1


def _is_positive(number: object) -> bool:
    return isinstance(number, (int, float)) and number > 0


def _never_negative(weights: Weights, x: Expr) -> bool:
    """Whether all weights of a row have one sign."""
    of_signs = [_never_negative(weights, arg) for arg in x.args if arg.kind == "f"]
    match x.op:
        case "const":
            return bool(x.value >= 0)
        case "s":
            return _score_is_never_negative(weights)
        case "mul" if x.args[0] is x.args[1]:
            return True
        case "div":
            divisor = set(postorder([x.args[1]]))
            return of_signs[0] and all(n.args or n.is_const or n.op == "scalar" for n in divisor)
        case "float":
            return x.args[0].kind == "b"
        case "pow":
            return x.args[1].value % 2 == 0
        case "clamp_min":
            return of_signs[-1]
    return x.op in _POSITIVE or (x.op in (*_OF_SIGNS, "where") and all(of_signs))


def _score_is_never_negative(weights: Weights) -> bool:
    assert weights.score is not None
    source = weights.shadow.source(weights.score[0])
    factors = [] if source is None else map(products.origin, products.operands(source))
    return all(facts.name(n) in _CALLS_OF_POSITIVE for n in factors) and source is not None
