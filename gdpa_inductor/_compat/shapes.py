"""Symbolic sizes: facts about them without a guard, and their sympy expressions.

A size is an int or a SymInt. `size_expr` and what follows it work on sizes as Inductor has them,
which are sympy expressions.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch


def statically_known_true(condition: bool | torch.SymBool) -> bool:
    """Whether a condition is known to be true without a guard."""
    if isinstance(condition, bool):
        return condition
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(condition))


def known_equal(left: int | torch.SymInt, right: int | torch.SymInt) -> bool:
    """Whether two sizes are known to be equal without a guard."""
    if statically_known_true(left == right):
        return True
    # torch below 2.15 does not see it of 2·(s//2) and s, for an even s.
    from torch.utils._sympy.functions import FloorDiv, Mod

    pair = size_expr(left), size_expr(right)
    floors = pair[0].atoms(FloorDiv) | pair[1].atoms(FloorDiv)
    node: Any = next((s.node for s in (left, right) if isinstance(s, torch.SymInt)), None)
    whole = {}
    for floor in floors if node is not None else ():
        rest = node.shape_env.create_symintnode(Mod(*floor.args), hint=None)
        if statically_known_true(rest == 0):
            whole[floor] = floor.args[0] / floor.args[1]
    return bool(whole) and (pair[0].xreplace(whole) - pair[1].xreplace(whole)).expand() == 0


def asks_for_elements(error: Exception) -> bool:
    """Whether an error says that a size depends on data, so that torch does not know it."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    return isinstance(error, GuardOnDataDependentSymNode)


def size_hint(size: int | torch.SymInt) -> int | None:
    """The hint of a size: its value when the graph was captured, or None. Adds no guard."""
    if isinstance(size, int):
        return size
    node = size.node
    return int(node.hint) if node.has_hint() else None


def contiguous_strides(size: Sequence[Any], order: Sequence[int] | None = None) -> tuple[Any, ...]:
    """The strides of a contiguous tensor. order: The dims, outermost first; by default in order."""
    dims = range(len(size)) if order is None else order
    strides: list[Any] = [1] * len(size)
    for inner, outer in itertools.pairwise(reversed(dims)):
        extent = size[inner]
        strides[outer] = strides[inner] * (max(extent, 1) if isinstance(extent, int) else extent)
    return tuple(strides)


def dense_strides(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The strides of a dense tensor with the dims in the order of this tensor's strides.

    They are contiguous strides in three cases: a first dim of size 1 may be broadcast, a dim is
    expanded, or the last dim is not contiguous.
    """
    # Symbolic strides have the order of their hints, and torch's guards keep later calls to it
    # (tests/test_ops.py).
    known = [size_hint(stride) for stride in tensor.stride()]
    lies = [0 if stride is None else stride for stride in known]
    dims, first = list(range(tensor.dim())), tensor.shape[0] if tensor.dim() else 1
    single = isinstance(first, int) and first == 1
    if tensor.dim() == 4 and lies[-1] == 1 and 0 not in lies and not single:
        dims.sort(key=lambda d: (-lies[d], d) if d < 3 else (0, d))
    return contiguous_strides(tensor.shape, dims)


def hint_of(number: Any) -> Any:
    """The hint of a symbolic number, or None; a plain number as it is."""
    node = getattr(number, "node", None)
    if node is None or not isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return number
    hint = node.hint if node.has_hint() else None
    if hint is not None:
        return hint
    expression = node.expr
    return int(expression) if expression.is_number else None


def size_bounds(size: torch.SymInt) -> tuple[int | None, int | None]:
    """The smallest and largest value that a size may have, as far as known. Adds no guard."""
    bounds = size.node.shape_env.bound_sympy(size.node.expr)
    low, high = (int(end) if end.is_Integer else None for end in (bounds.lower, bounds.upper))
    return low, high


def guarded_equal(left: Any, right: Any) -> bool:
    """Whether two ragged sizes of nested tensors are equal now; a guard is added only if so."""
    hints = [getattr(size.node, "hint", None) for size in (left, right)]
    if None in hints or not bool(hints[0] == hints[1]):
        return False
    return bool(left == right)


def exact_quotient(
    size: int | torch.SymInt, divisor: int | torch.SymInt
) -> int | torch.SymInt | None:
    """`size // divisor` where it is known that nothing remains: 5·s-5 by s-1 is 5. No guard."""
    if isinstance(size, int) and isinstance(divisor, int):
        return size // divisor if divisor and size % divisor == 0 else None
    import sympy

    top, bottom = (s if isinstance(s, int) else s.node.expr for s in (size, divisor))
    quotient = sympy.cancel(sympy.sympify(top) / sympy.sympify(bottom))
    if quotient.is_Integer:
        return int(quotient)
    if sympy.fraction(quotient)[1] != 1 or not quotient.is_polynomial():
        return None
    whole, part = size_hint(size), size_hint(divisor)
    hint = None if whole is None or not part else whole // part
    node: Any = (divisor if isinstance(size, int) else size).node
    return node.shape_env.create_symintnode(sympy.expand(quotient), hint=hint)


@contextlib.contextmanager
def without_guards(fake_mode: Any) -> Iterator[None]:
    """A context without guards of `fake_mode`, for comparisons that decide nothing."""
    with contextlib.ExitStack() as stack:
        if fake_mode.shape_env is not None:
            stack.enter_context(fake_mode.shape_env.suppress_guards())
        yield


def expression_of(number: Any) -> Any:
    """The sympy expression of a symbolic number."""
    return number.node.expr


def is_constant(number: Any) -> bool:
    """Whether a symbolic number has the same value for all inputs."""
    return bool(number.node.is_constant() or number.node.expr.is_number)


def without_hint(expression: Any, like: Any) -> Any:
    """An integer expression as a SymInt without a hint, in the shape environment of `like`."""
    return like.node.shape_env.create_symintnode(expression, hint=None)


def size_expr(size: int | torch.SymInt) -> Any:
    """A size as a sympy expression, as Inductor has it."""
    import sympy

    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def listed_work_tiles(total: Any, batch: Any, rows: int) -> Any:
    """The most work tiles that the sequences of a jagged side have, as a size of Inductor."""
    from torch.utils._sympy.functions import FloorDiv

    return FloorDiv(total, rows) + batch


def work_tiles_each(longest: Any, rows: int) -> Any:
    """How many work tiles the longest sequence has. An empty one has one."""
    import sympy
    from torch.utils._sympy.functions import CeilDiv

    return sympy.Max(1, CeilDiv(longest, rows))
