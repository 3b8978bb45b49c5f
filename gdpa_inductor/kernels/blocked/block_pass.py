"""One pass over a block of scores: the score program or its derivative, as one compiled loop.

`Pass` is the loop in plain torch, over tensors [b,h,rows,cols] of a block. `compiled` has Inductor
compile it to vectorised C++. Sizes and strides stay symbolic, so one kernel serves all block sizes.
Without a C++ compiler the torch form runs.

The arguments are a flat list: the score, its gradient in a backward, the places for the results,
the sums, and the operands that the program reads. Along each axis an operand has the block's size
or 1; a table [..., T] has one dim more. All results are written in place.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..._compat import dynamo, inductor
from ...program.expr import AXES, GRAD, SCORE, Expr, dtype_of, fold, postorder, torch_apply

log = logging.getLogger("gdpa_inductor")

_LEAVES = ("aux", "scalar", *AXES)


@dataclass(frozen=True)
class Sum:
    """A term that is summed over the axes that an operand lacks, for the operand's gradient.

    A loop cannot add to places in a fixed order and on several threads. So of a table it writes the
    term and the place, for `add_by_place`. They have the axes of the table and of the place.
    """

    term: Expr
    axes: frozenset[str]
    number: int = -1  # of the operand; a row sum has none
    place: Expr | None = None  # of a table
    place_axes: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Pass:
    """The terms to compute for every score. None for those that are not wanted."""

    weight: Expr | None
    score_grad: Expr | None = None
    sums: tuple[Sum, ...] = ()
    program: tuple[Expr, ...] = ()  # the roots of the score program, if `StoredPass` needs them
    # The weight overwrites the score, and dS overwrites dP. Else each result has its own tensor.
    in_place: bool = False
    dtype: torch.dtype | None = None  # to compute in; None is that of the score

    @functools.cached_property
    def roots(self) -> tuple[Expr, ...]:
        terms = (self.weight, self.score_grad, *(s.term for s in self.sums))
        return tuple(term for term in terms if term is not None)

    def of_slope(self, summed: Sum) -> float | None:
        """The constant that makes dS the term of a sum, as of a bias beside a scaled score."""
        slope = self.score_grad
        if slope is None or summed.term is slope:
            return None if slope is None else 1.0
        scaled = slope.op == "mul" and slope.args[0] is summed.term and slope.args[1].is_const
        return 1 / slope.args[1].value if scaled and slope.args[1].value else None

    @functools.cached_property
    def own_sums(self) -> tuple[Sum, ...]:
        """The sums of other terms."""
        return tuple(summed for summed in self.sums if self.of_slope(summed) is None)

    @functools.cached_property
    def places(self) -> tuple[Expr, ...]:
        return tuple(s.place for s in self.sums if s.place is not None)

    @functools.cached_property
    def reads_grad(self) -> bool:
        return GRAD in postorder(self.roots)

    @functools.cached_property
    def rounds_places(self) -> bool:
        """Whether a term without a score is rounded to 16 bits, probably for a mask."""
        return any(
            node.op in ("bf16", "f16") and not {SCORE, GRAD} & set(postorder([node]))
            for node in postorder(self.roots)
        )

    @functools.cached_property
    def buffers(self) -> int:
        """How many arguments are contiguous blocks of scores. They come first."""
        places = 0 if self.in_place else sum(t is not None for t in (self.weight, self.score_grad))
        return 1 + self.reads_grad + places

    @functools.cached_property
    def operands(self) -> tuple[Expr, ...]:
        """The leaves that `__call__` takes as tensors."""
        terms = (*self.roots, *self.places, *self.program)
        return tuple(node for node in postorder(terms) if node.op in _LEAVES)

    def terms(
        self, score: Tensor, grad: Tensor | None, leaves: Iterable[Tensor]
    ) -> tuple[Tensor, ...]:
        """The terms, as `roots` and `places`; they broadcast to the scores. leaves: those of
        `operands`.
        """
        dtype = self.dtype or score.dtype
        tensors = dict(zip(self.operands, leaves, strict=True))

        def leaf(node: Expr) -> Tensor:
            if node.op == "s":
                return score.to(dtype)
            if node is GRAD:
                assert grad is not None
                return grad.to(dtype)
            if node.op == "const":
                kind = dtype_of(node.kind, dtype)
                return torch.full((), node.value, dtype=kind, device=score.device)  # type: ignore[arg-type]
            return _as_kind(tensors[node], node.kind, dtype)

        return tuple(fold((*self.roots, *self.places), leaf, torch_apply(dtype)))

    def __call__(self, score: Tensor, *rest: Tensor) -> None:
        arguments = iter(rest)
        grad = next(arguments) if self.reads_grad else None
        places = []
        for root, replaced in ((self.weight, score), (self.score_grad, grad)):
            if root is not None:
                place = replaced if self.in_place else next(arguments)
                assert place is not None
                places.append(place)
        totals = [next(arguments) for _ in self.sums]
        looked_up = [next(arguments) for _ in self.places]
        terms = self.terms(score, grad, arguments)
        for total, summed, term in zip(totals, self.sums, terms[len(places) :], strict=False):
            missing = [d for d, axis in enumerate(AXES) if axis not in summed.axes]
            full = term.expand_as(score)
            kind = total.dtype if total.dtype != full.dtype else None
            part = full.sum(missing, keepdim=True, dtype=kind) if missing else full
            total.copy_(total + part if summed.place is None else part)
        for place, term in zip(places, terms, strict=False):
            place.copy_(term)
        for place, term in zip(looked_up, terms[len(self.roots) :], strict=True):
            place.copy_(term)


def storable(operand: Tensor) -> Tensor:
    """An operand with bools as bytes."""
    # Inductor's vectorised load of bools branches for each element (torch 2.13): a pass with a
    # random mask takes 7 times as long.
    return operand.view(torch.uint8) if operand.dtype == torch.bool else operand


def _as_kind(operand: Tensor, kind: str, dtype: torch.dtype) -> Tensor:
    if kind in "ft":
        return operand.to(dtype)
    # By way of int32, as a comparison of bytes is not vectorised either.
    return operand.to(torch.int32) != 0 if kind == "b" else operand.to(torch.int64)


Runner = Callable[..., object]
Strided = tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]  # with its shape and its strides
Layout = tuple[torch.dtype, tuple[str, ...]]  # with what `_layout` says of each dimension
_VECTOR = 16  # bytes that a GPU reads at once, of what is known to be aligned so
_RETRY = 60.0  # seconds


@dataclass
class Compiled:
    """What was compiled, by key. Beyond `most`, what was used longest ago goes.

    A hit takes no lock. Compiling holds Dynamo's, because torch's tracers and Inductor's settings
    are of the process. Where it fails, the plain form runs, and it is tried again later.
    """

    most: int
    runners: OrderedDict[object, Runner] = field(default_factory=OrderedDict)
    failures: dict[object, float] = field(default_factory=dict)  # by key, when it failed
    warned: set[tuple[str, type]] = field(default_factory=set)  # devices and kinds of errors

    def get(
        self,
        key: object,
        build: Callable[[], Runner],
        plain: Runner,
        device: str,
        kind: Callable[[], object] | None = None,
    ) -> Runner:
        """kind: A key of all that fail if this one does."""
        runner = self._known(key)
        if runner is None:
            tried = key if kind is None else kind()
            if self._is_due(tried):
                with dynamo.compile_lock():
                    runner = self._known(key) or self._build(key, build, device, tried)
        return runner or plain

    def clear(self) -> None:
        self.runners.clear()
        self.failures.clear()
        self.warned.clear()

    def _known(self, key: object) -> Runner | None:
        try:
            self.runners.move_to_end(key)
            return self.runners[key]
        except KeyError:  # it is new, or another thread has dropped it
            return None

    def _is_due(self, tried: object) -> bool:
        return time.monotonic() - self.failures.get(tried, -math.inf) > _RETRY

    def _build(
        self, key: object, build: Callable[[], Runner], device: str, tried: object
    ) -> Runner | None:
        if not self._is_due(tried):  # it failed while this thread waited
            return None
        try:
            runner = self.runners[key] = build()
        except Exception as error:
            kind = device, type(getattr(error, "inner_exception", error))
            level = logging.DEBUG if kind in self.warned else logging.WARNING
            self.warned.add(kind)
            about = device, type(error).__name__, error
            log.log(level, "a score program runs uncompiled on the device %r: %s: %s", *about)
            self.failures[tried] = time.monotonic()
            while len(self.failures) > self.most:
                del self.failures[next(iter(self.failures))]
            return None
        while len(self.runners) > self.most:
            self.runners.popitem(last=False)
        return runner


RUNNERS, FIXED = Compiled(4096), Compiled(1024)


def compiled(work: Pass, tensors: Sequence[Tensor], lengths_vary: bool = False) -> Runner:
    """A callable for `tensors`. Each kind of layout is compiled once, whatever its sizes.

    lengths_vary: many sizes are to come. Then nothing is compiled for a single one of them, nor for
    rows or columns of one score, and operands that happen to be contiguous are like others.
    """
    if lengths_vary and 1 in tensors[0].shape[2:]:
        return work
    device = tensors[0].device
    if device.type == "cpu" and work.rounds_places and inductor.drops_roundings():
        return work
    if device.type != "cpu" and not lengths_vary:
        return fixed(work, tensors)
    signature = tuple(map(_strided, tensors))
    build = lambda: _runner(work, signature, lengths_vary, device)
    kind = lambda: (work, _layouts(work, signature, lengths_vary), device)
    return RUNNERS.get((work, signature, lengths_vary, device), build, work, device.type, kind)


def fixed(work: Runner, tensors: Sequence[Tensor], tag: str = "") -> Runner:
    """Compiled for these very sizes: a GPU's kernel is faster where they are numbers.

    tag: what else than the graph decides on the kernel, for the caches of torch.
    """
    aligned = tuple(t.data_ptr() % _VECTOR == 0 for t in tensors)
    device = tensors[0].device
    key = (work, *map(_strided, tensors), aligned, device)
    build = lambda: inductor.compile_graph(work, tensors, dynamic=False, aot=True, tag=tag).run
    return FIXED.get(key, build, work, device.type)


def _strided(tensor: Tensor) -> Strided:
    return tensor.dtype, tuple(tensor.shape), tensor.stride()


def _runner(
    work: Pass, signature: tuple[Strided, ...], lengths_vary: bool, device: torch.device
) -> Runner:
    variant = _variant(work, _layouts(work, signature, lengths_vary), device)
    if variant.fits(_tensors(signature, "meta")):
        return variant.run
    if lengths_vary:
        return work
    # The compiler assumed more than the layout says: compile for these very sizes.
    aot = device.type != "cpu"
    return inductor.compile_graph(work, _tensors(signature, device), dynamic=False, aot=aot).run


def _layouts(work: Pass, signature: tuple[Strided, ...], lengths_vary: bool) -> tuple[Layout, ...]:
    first = work.buffers if lengths_vary else len(signature)
    return tuple(_layout(*item, i >= first) for i, item in enumerate(signature))


@functools.lru_cache(maxsize=1024)
def _variant(
    work: Pass, layouts: tuple[Layout, ...], device: torch.device
) -> inductor.CompiledGraph:
    signature = tuple(_example(layout, number) for number, layout in enumerate(layouts))
    aot = device.type != "cpu"
    return inductor.compile_graph(work, _tensors(signature, device), dynamic=True, aot=aot)


def _tensors(signature: tuple[Strided, ...], device: str | torch.device) -> list[Tensor]:
    """Uninitialised tensors: on the CPU they take address space, and no memory until written."""
    return [
        torch.empty_strided(shape, stride, dtype=dtype, device=device)
        for dtype, shape, stride in signature
    ]


def _layout(
    dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], loose: bool
) -> Layout:
    """What the compiler may rely on, per dimension."""
    # "single": size 1. "packed": the stride of a contiguous tensor. "unit", "none": stride 1, 0.
    kinds: list[str] = []
    packed = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            kinds.append("single")
            continue
        contiguous = stride == packed and not loose
        kinds.append("packed" if contiguous else {1: "unit", 0: "none"}.get(stride, "any"))
        packed = stride * size
    return dtype, tuple(reversed(kinds))


# Sizes that the compiler sees as hints. Distinct primes, so that equal symbols mean equal axes; few
# heads, so that it spreads the rows over the threads as well. Each table has a size of its own.
_HINTS = {"b": 7, "h": 3, "q_idx": 509, "kv_idx": 521}
_TABLE = 1 << 14


def _example(layout: Layout, number: int) -> Strided:
    """A shape and strides of this layout, for operand `number`: no other has its "any" strides."""
    dtype, kinds = layout
    sizes = [*_HINTS.values(), _TABLE + 2 * number + 1]
    shape = [1 if kind == "single" else size for size, kind in zip(sizes, kinds, strict=False)]
    reach = max((n for n, kind in zip(shape, kinds, strict=True) if kind == "unit"), default=1)
    strides: list[int] = []
    packed = 1
    for size, kind in zip(reversed(shape), reversed(kinds), strict=True):
        # Odd, and past every packed stride: the compiler can take it for no size and no other
        # stride, and so makes a symbol of its own of it.
        beyond = 2 * max(reach, packed) + 2 * number + 1
        strides.append({"packed": packed, "none": 0, "any": beyond}.get(kind, 1))
        if kind != "single":
            packed = strides[-1] * size
            reach = max(reach, packed)
    return dtype, tuple(shape), tuple(reversed(strides))
