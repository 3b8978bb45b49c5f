"""Rewrite terms into the operations that a kernel can emit.

The emitter of a kernel lists its own operations. Any other operation is replaced by a form from its
row: `plain` has full accuracy, and `fast` uses approximate instructions.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from .expr import OPS, Expr, call, postorder


def emitted(roots: Sequence[Expr], own: Container[str], fast: bool) -> list[Expr]:
    """The same terms, in the operations `own` only. fast: Use the forms for 16 bits (`expr.Op`).

    Raises ValueError if an operation is neither in `own` nor has a form.
    """
    forms: dict[Expr, Expr] = {}

    def written(root: Expr) -> Expr:
        for node in postorder([root]):
            if node not in forms:
                forms[node] = replaced(node)
        return forms[root]

    def replaced(node: Expr) -> Expr:
        if not node.args:
            return node
        args = [forms[a] for a in node.args]
        form = _form(node, args, own, fast)
        result = call(node.op, *args) if form is None else written(form)
        forms[result] = result
        return result

    return [written(root) for root in roots]


def _form(node: Expr, args: Sequence[Expr], own: Container[str], fast: bool) -> Expr | None:
    op = OPS.get(node.op)
    if op is None:  # an instruction
        return None
    if fast and op.fast is not None and node.kind == "f":  # integers have no fast forms
        form = op.fast(*args)
        if form is not None:
            return form
    if node.op in own:
        return None
    form = None if op.plain is None else op.plain(*args)
    if form is None:
        raise ValueError(f"{node.op} has no form in the operations of this kernel")
    return form
