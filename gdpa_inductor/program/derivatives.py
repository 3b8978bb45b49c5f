"""Reverse mode on terms, by the vector-Jacobian products of their operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .expr import GRAD, OPS, Expr, postorder


def differentiate(output: Expr, wrt: Sequence[Expr], seed: Expr = GRAD) -> list[Expr | None]:
    """The gradients of the leaves `wrt`, for the gradient `seed` of `output`.

    None stands for zero.
    """
    order = list(postorder([output]))
    active: set[Expr] = set(wrt)
    for node in order:
        if _vjp(node) is not None and any(a in active for a in node.args):
            active.add(node)
    cotangents: dict[Expr, Expr] = {output: seed} if output in active else {}
    for node in reversed(order):
        g, vjp = cotangents.get(node), _vjp(node)
        if g is None or vjp is None or node not in active:
            continue
        for arg, part in zip(node.args, vjp(g, node, *node.args), strict=False):
            if part is not None and arg in active:
                cotangents[arg] = cotangents[arg] + part if arg in cotangents else part
    return [cotangents.get(leaf) for leaf in wrt]


def _vjp(node: Expr) -> Callable[..., tuple[Expr | None, ...]] | None:
    return OPS[node.op].vjp if node.op in OPS else None
