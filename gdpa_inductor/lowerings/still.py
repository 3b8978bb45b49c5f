"""Terms that may be summed past the ends of their operands.

A kernel loads what lies past the end of Q, K, V or DO as zeros. There the score and the gradient
are 0, and what a term gives is multiplied by another such zero; so it needs no mask if it is
finite, whatever the operands between the products and the masks are. `silu(c·s)` is, a bias may be
infinite.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ..expr import OPS, Expr, fold

_Values = frozenset[Any] | None  # what a term may be at score 0 and gradient 0; None: anything
_BOTH: _Values = frozenset((False, True))
_MOST = 16  # values that are followed
_LARGEST = 2.0**14  # so that neither fp16 nor a sum of products overflows
_DTYPES = {"f": torch.float32, "i": torch.int64, "b": torch.bool}


def still(names: Sequence[str], variants: Sequence[Sequence[Expr]]) -> frozenset[str]:
    """Which terms may do without a mask past the ends, in each of the variants of all of them.

    names: "p" and "ds" are multiplied by zeros there; the others are summed as they are.
    """
    return frozenset(
        name
        for name, *terms in zip(names, *variants, strict=True)
        if all(_bounded(term, _LARGEST if name in ("p", "ds") else 0.0) for term in terms)
    )


def _bounded(term: Expr, most: float) -> bool:
    (values,) = fold([term], _leaf, _applied)
    return values is not None and all(abs(value) <= most for value in values)


def _leaf(node: Expr) -> _Values:
    if node.is_const:
        return frozenset((node.value,))
    if node.op in ("s", "g"):
        return frozenset((0.0,))
    return _BOTH if node.kind == "b" else None


def _applied(node: Expr, given: list[Any]) -> _Values:
    params = OPS[node.op].params
    args, literals = given[: len(given) - params], given[len(given) - params :]
    if node.op == "where" and args[0] is not None:
        ways = [args[1] if condition else args[2] for condition in args[0]]
        return None if any(way is None for way in ways) else _few(itertools.chain(*ways))
    if node.op == "div" and args[0] is not None and _is_size(node.args[1]):
        return args[0]  # no size is below 1, so the largest values are those of no division
    if any(arg is None for arg in args):
        return _BOTH if node.kind == "b" else None
    kinds = [_DTYPES[arg.kind] for arg in node.args]
    return _few(
        OPS[node.op].torch(*map(_tensor, values, kinds), *literals).item()
        for values in itertools.product(*args)
    )


def _is_size(x: Expr) -> bool:
    return x.op == "scalar" or (x.op == "float" and _is_size(x.args[0]))


def _tensor(value: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(value, dtype=dtype)


def _few(values: Iterable[Any]) -> _Values:
    found = frozenset(itertools.islice(values, _MOST + 1))
    return found if len(found) <= _MOST and all(map(math.isfinite, found)) else None
