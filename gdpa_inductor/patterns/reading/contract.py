"""The contract with torch: what ATen's functions compute, and what autograd makes of them.

A score program has derivatives of its own, so they have to be those of the installed torch, also at
bounds, kinks, ties, infinity and NaN. `rule_of` gives the rule of the vocabulary that holds there:

- Where supported versions of torch differ, the rules are tried on the installed one, and the first
  that agrees is taken. The program's text then says which one it was.
- On a version that no test has run on, every rule is tried before it is used.

Each name is tried once in a process, when a model first uses it. The tests run the same cases
(`contract_cases`) at many more places and in all dtypes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ..._compat import autograd, operators, versions
from ...program.expr import GRAD, Expr, aux, const, differentiate, dtype_of, fold, torch_apply
from ...rejection import Code
from ..host import facts
from ..result import Refused
from .contract_cases import BY_KEY, TorchCall, X
from .kinds import Unknown
from .precision import ROUNDING, ROUNDS_OPERANDS, in_16_bits
from .reading import kind_of
from .vocabulary import POINTWISE, Rule, key_of

# Where rules are tried: kinks and bounds of the cases, and beside them.
_PLACES: dict[str, list[Any]] = {
    "f": [-math.inf, -3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 20.0, math.inf, math.nan],
    "i": [-3, -1, 0, 1, 2, 3, 8],
    "b": [False, True],
}
_MEETING: dict[str, list[Any]] = {
    **_PLACES,
    "f": [-1.0, 0.0, 1.0, math.inf, math.nan],
    "i": [-1, 0, 2],
}  # of several
_COMING = 1.5  # the gradient of the result
_CLOSE = 1e-4  # of fp32: what is sought are other slopes, not other roundings


def rule_of(node: Node) -> Rule:
    """The rule for a call of ATen. Raises Refused where none is known to hold on this torch."""
    name = facts.name(node)
    rule = holding(key_of(name, operators.overload_name(node.target)))
    if rule is None:
        another = f"has another `{name}` than the versions that were tested"
        raise Refused(Code.UNKNOWN_TORCH, f"torch {torch.__version__} {another}")
    return rule


@functools.cache
def holding(key: str) -> Rule | None:
    """The rule of a name that holds on the installed torch, or None."""
    rules = POINTWISE[key]
    if len(rules) == 1 and versions.is_tested():
        return rules[0]
    cases = [x for x in BY_KEY.get(key, []) if x.decides or not versions.is_tested()]
    with autograd.plain_torch():
        holds = (rule for rule in rules if not any(differs(case, rule) for case in cases))
        return next(holds, None)


def eager(case: TorchCall, operands: Sequence[Tensor]) -> Tensor:
    tensors = iter(operands)
    args = [next(tensors) if x is X else x for x in case.args]
    function = getattr(torch.ops.aten, case.name)
    if not case.options and all(x is X or x is None for x in case.args):
        # A packet tries others first, and prints the tensors for each error.
        function = getattr(function, "Tensor", function)
    result = function(*args, **case.options)
    return result[0] if isinstance(result, tuple) else result


def expression(case: TorchCall, rule: Rule, kind: str, dtype: torch.dtype | None = None) -> Expr:
    """The case by a rule. kind: that of the result. dtype: that of the operands, if in 16 bits."""
    leaves = iter([aux(number, kind) for number, kind in enumerate(case.kinds)])
    args = [next(leaves) if x is X else None if x is None else const(x) for x in case.args]
    if dtype in ROUNDING and case.name in ROUNDS_OPERANDS:
        args = [x if x is None else in_16_bits(x, None, dtype, False) for x in args]
    options = {k: v if isinstance(v, str) else const(v) for k, v in case.options.items()}
    return rule(kind, *args, **options)


def evaluate(
    root: Expr, operands: Sequence[Tensor], dtype: torch.dtype, grad: Tensor | None = None
) -> Tensor:
    def leaf(node: Expr) -> Tensor:
        if node is GRAD:
            assert grad is not None
            return grad
        if node.op == "aux":
            return operands[node.value]
        return torch.full((), node.value, dtype=dtype_of(node.kind, dtype))

    return fold([root], leaf, torch_apply(dtype))[0]


def slopes(case: TorchCall, rule: Rule, dtype: torch.dtype | None = None) -> list[Expr | None]:
    own = [aux(number) for number, kind in enumerate(case.kinds) if kind == "f"]
    return differentiate(expression(case, rule, "f", dtype), own)


def places(case: TorchCall, grids: dict[str, list[Any]], dtype: torch.dtype) -> list[Tensor]:
    """One tensor for each operand; together they run over the product of the grids."""
    axes = [torch.tensor(grids[kind], dtype=dtype_of(kind, dtype)) for kind in case.kinds]
    rows = torch.meshgrid(*(torch.arange(len(axis)) for axis in axes), indexing="ij")
    operands = [axis[row.flatten()] for axis, row in zip(axes, rows, strict=True)]
    divides = case.name in ("remainder", "floor_divide") or "rounding_mode" in case.options
    if divides and len(operands) == 2:
        defined = operands[1] != 0
        operands = [x[defined] for x in operands]
    return operands


def differs(case: TorchCall, rule: Rule) -> bool:
    """True if the installed torch has other values or gradients than the rule."""
    operands = places(case, _PLACES if len(case.kinds) == 1 else _MEETING, torch.float32)
    for x in operands:
        x.requires_grad_(x.is_floating_point())
    result = eager(case, operands)
    detached = [x.detach() for x in operands]
    try:
        root = expression(case, rule, kind_of(result.dtype))
    except (Unknown, Refused):
        return True
    if _differ(evaluate(root, detached, torch.float32), result.detach()):
        return True
    if not result.requires_grad:
        return False
    grad = torch.full_like(result, _COMING)
    leaves = [x for x in operands if x.requires_grad]
    expected = torch.autograd.grad(result, leaves, grad, allow_unused=True)
    # Where torch's vectors and single elements have different slopes at NaN, nothing is compared.
    skip = detached[0].isnan() if case.at_nan is not None else None
    none = torch.zeros_like(grad)
    for slope, gradient in zip(slopes(case, rule), expected, strict=True):
        actual = none if slope is None else evaluate(slope, detached, torch.float32, grad)
        if _differ(actual, none if gradient is None else gradient, skip):
            return True
    return False


def _differ(actual: Tensor, expected: Tensor, skip: Tensor | None = None) -> bool:
    actual, expected = actual.expand_as(expected).double(), expected.double()
    close = torch.isclose(actual, expected, _CLOSE, _CLOSE, equal_nan=True)
    return not bool((close if skip is None else close | skip).all())
