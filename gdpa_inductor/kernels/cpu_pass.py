"""One pass over a block of scores on the CPU: the score program, or its derivative, in a single fused loop.

`Pass` is that loop in plain torch, over 4-D tensors [b,h,n,m] of one block. `compiled` has Inductor turn it into vectorised
C++ that serves every block size (sizes and strides stay symbolic); where there is no C++ compiler the torch form itself runs.

What goes in is a flat list: the score, in the backward its gradient, the places for the results, the sums, the operands
that the program reads (each with the block's size or 1 along an axis). All results are written in place.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import _compat
from ..expr import GRAD, Expr, fold, postorder, torch_apply
from ..score_mod import AXES

log = logging.getLogger("gdpa_inductor")

_LEAVES = ("aux", "scalar", *AXES)


@dataclass(frozen=True)
class Sum:
    """A term whose sum over the axes that an operand lacks is added to that operand's gradient."""

    term: Expr
    axes: frozenset[str]


@dataclass(frozen=True)
class Pass:
    """Forward: `weight` replaces the score. Backward: `weight` and `score_grad`, if asked, go to tensors of their own."""

    weight: Expr | None
    score_grad: Expr | None = None
    sums: tuple[Sum, ...] = ()
    in_place: bool = False

    @functools.cached_property
    def roots(self) -> tuple[Expr, ...]:
        terms = (self.weight, self.score_grad, *(s.term for s in self.sums))
        return tuple(term for term in terms if term is not None)

    @functools.cached_property
    def reads_grad(self) -> bool:
        return GRAD in postorder(self.roots)

    @functools.cached_property
    def operands(self) -> tuple[Expr, ...]:
        """The leaves that need a tensor, in the order in which `__call__` takes them."""
        return tuple(node for node in postorder(self.roots) if node.op in _LEAVES)

    def __call__(self, score: Tensor, *rest: Tensor) -> None:
        given: Iterator[Tensor] = iter(rest)
        grad = next(given) if self.reads_grad else None
        terms = (self.weight, self.score_grad)
        if self.in_place:
            places = [score]
        else:
            places = [next(given) for term in terms if term is not None]
        totals = [next(given) for _ in self.sums]
        leaves = dict(zip(self.operands, given, strict=True))

        def leaf(node: Expr) -> Tensor:
            if node.op == "s":
                return score
            if node is GRAD:
                assert grad is not None
                return grad
            if node.op == "const":
                dtype = {"f": score.dtype, "i": torch.int64, "b": torch.bool}[node.kind]
                return torch.full((), node.value, dtype=dtype)  # type: ignore[arg-type]
            return _as_kind(leaves[node], node.kind, score.dtype)

        found = fold(self.roots, leaf, torch_apply(score.dtype))
        for total, asked, term in zip(totals, self.sums, found[len(places) :], strict=True):
            missing = [d for d, axis in enumerate(AXES) if axis not in asked.axes]
            full = term.expand_as(score)
            total.add_(full.sum(missing, keepdim=True) if missing else full)
        for place, term in zip(places, found, strict=False):
            place.copy_(term)


def storable(operand: Tensor) -> Tensor:
    """Truth values as bytes: torch 2.13's vectorised load of bools takes a branch per element, 7 times slower."""
    return operand.view(torch.uint8) if operand.dtype == torch.bool else operand


def _as_kind(operand: Tensor, kind: str, dtype: torch.dtype) -> Tensor:
    if kind == "f":
        return operand.to(dtype)
    # Through int32, because a comparison of bytes is not vectorised either.
    return operand.to(torch.int32) != 0 if kind == "b" else operand


Runner = Callable[..., object]
Signature = tuple[
    tuple[torch.dtype, tuple[int, ...], tuple[int, ...]], ...
]  # dtype, shape, strides
_lock = threading.RLock()


def compiled(work: Pass, tensors: Sequence[Tensor]) -> Runner:
    """A callable for `tensors` and for all of the same shapes and strides. Each kind of layout is compiled once."""
    with _lock:
        return _runner(work, tuple((t.dtype, tuple(t.shape), t.stride()) for t in tensors))


@functools.lru_cache(maxsize=4096)
def _runner(work: Pass, signature: Signature) -> Runner:
    try:
        variant = _variant(work, tuple(_layout(*item) for item in signature))
        if variant.fits(_tensors(signature, "meta")):
            return variant.run
        # The compiler assumed more than the layout says: compile for these very sizes.
        return _compat.compile_graph(work, _tensors(signature, "cpu"), dynamic=False).run
    except Exception as error:
        log.warning(
            "a score program runs uncompiled on the CPU: %s: %s", type(error).__name__, error
        )
        return work


@functools.lru_cache(maxsize=1024)
def _variant(work: Pass, layouts: tuple[Layout, ...]) -> _compat.CompiledGraph:
    signature = tuple(_example(layout, number) for number, layout in enumerate(layouts))
    return _compat.compile_graph(work, _tensors(signature, "cpu"), dynamic=True)


def _tensors(signature: Signature, device: str) -> list[Tensor]:
    """Uninitialised tensors; those on the CPU take address space, and no memory until they are written."""
    return [
        torch.empty_strided(shape, stride, dtype=dtype, device=device)
        for dtype, shape, stride in signature
    ]


Layout = tuple[torch.dtype, tuple[str, ...]]


def _layout(dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> Layout:
    """What the compiler may rely on, per dimension.

    "single": size 1. "packed": the stride of a contiguous tensor. "unit", "none": stride 1, 0. "any": another stride.
    """
    kinds: list[str] = []
    packed = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            kinds.append("single")
            continue
        kinds.append("packed" if stride == packed else {1: "unit", 0: "none"}.get(stride, "any"))
        packed = stride * size
    return dtype, tuple(reversed(kinds))


# Sizes that the compiler sees as hints. Distinct primes, so that equal symbols mean equal axes; few heads, so that
# it spreads the rows over the threads as well.
_HINTS = dict(zip(AXES, (7, 3, 509, 521), strict=True))


def _example(layout: Layout, number: int) -> tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]:
    """A shape and strides of this layout, the strides found in no other operand `number`."""
    dtype, kinds = layout
    shape = [
        1 if kind == "single" else size for kind, size in zip(kinds, _HINTS.values(), strict=True)
    ]
    strides = [1] * len(kinds)
    packed, extent = (
        1,
        max((s for s, kind in zip(shape, kinds, strict=True) if kind == "unit"), default=1),
    )
    for d in reversed(range(len(kinds))):
        if kinds[d] == "packed":
            strides[d] = packed
        elif kinds[d] == "any":
            strides[d] = 2 * max(extent, packed) + 2 * number + 1
        elif kinds[d] == "none":
            strides[d] = 0
        if kinds[d] != "single":
            packed = strides[d] * shape[d]
            extent = max(extent, packed)
    return dtype, tuple(shape), tuple(strides)
