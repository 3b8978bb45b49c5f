"""Compare the weights of recorded operations with those of a score program, lane by lane.

The recorded operations may round where the program does not. So they are evaluated as they are and
in fp64, each with the scores moved by one rounding up and down. These results span a range. The
program, in its own precision or in fp64, must be in this range, or be NaN or infinite where one of
them is. `gradients` compares the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..program.expr import AXES, Expr, dtype_of, fold, postorder, torch_apply
from . import draws
from .elements import CASTS, Evaluator
from .fused import Fused
from .pointwise import Index
from .ranges import SLACK, outside
from .record import Event, Log, Ref
from .samples import CASES, COUNT, Lanes
from .verdict import Incomplete

Side = tuple[Ref, int, Index]  # a factor of a product: its place, when, and which elements
Scored = dict[Event, tuple[Index, Tensor]]  # products: at which index, and in which lanes
_DECIDE = ("eq", "ne", "lt", "le", "gt", "ge", "sign")  # where derivatives choose


def apart(left: Tensor, right: Tensor, where: Tensor) -> Tensor:
    """Lanes in which two values are not the same; NaN is one value."""
    both_nan = left.isnan() & right.isnan() if left.is_floating_point() else torch.zeros_like(where)
    return where & (left.double() != right.double()) & ~both_nan


@dataclass
class Recorded:
    """The weights of one evaluation, from these scores."""

    ev: Evaluator
    weight: Tensor
    score: Tensor


@dataclass
class Points:
    """One sampled score in each lane, and the factors that both graphs read there.

    at:         The coordinates of the scores.
    exact:      Evaluates what no score is in.
    unsampled:  Writes that only one side has, and that no lane reads.
    """

    log: Log
    lanes: Lanes
    call: Fused
    at: dict[str, Tensor]
    unsampled: set[Event] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.exact = Evaluator(self.log, self.lanes, {})
        if self.call.cu_key is not None:
            start, _ = self.call.span(self.exact, self.call.cu_key)
            self.key_row = start + self.at["kv_idx"]
            self.at["k"] = self.key_row.clamp(0, self.call.key.sizes[0] - 1)
        if self.call.pages is not None:
            self.page = self.call.page_of(self.exact, self.at)
            self.at["page"] = self.page.clamp(0, self.call.key.sizes[0] - 1)

    def exists(self) -> tuple[Tensor, Tensor]:
        """(lanes whose row exists, lanes whose key exists). On a jagged side they may not exist."""
        row = key = torch.ones(COUNT, dtype=torch.bool)
        if self.call.cu_query is not None:
            row = self.at["q_idx"] < self.call.span(self.exact, self.call.cu_query)[1]
        if self.call.cu_key is not None:
            key = self.at["kv_idx"] < self.call.span(self.exact, self.call.cu_key)[1]
            row = row & (self.at["k"] == self.key_row)  # else no place of the values
        return row & self.exact.valid, key

    @property
    def missing(self) -> Tensor:
        """Lanes whose key lies in no page, though eager raises no error."""
        if self.call.pages is None:
            return torch.zeros(COUNT, dtype=torch.bool)
        return self.exact.valid & (self.at["page"] != self.page)

    def readable(self, sides: Sequence[Side]) -> Tensor:
        """Lanes in which eager raises no error when it reads these elements."""
        ev = Evaluator(self.log, self.lanes, {})
        for side in sides:
            ev.element(*side)
        return ev.valid

    def split(
        self, products: Sequence[Event], sides: Sequence[Side], gaps: list[Tensor] | None = None
    ) -> tuple[Side, Side, Scored]:
        """Decide which of two sides has the weights.

        Returns (weights, values, the products that give the scores). Scores that were overwritten
        are in no weight. gaps: Gets the distances of numbers that are compared.
        """
        for weight, value in (sides, sides[::-1]):
            distances: list[Tensor] = []
            scored = self.scored(products, weight, distances)
            if scored:
                if gaps is not None:
                    gaps += distances
                return weight, value, scored
        for weight, value in (sides, sides[::-1]):
            if not bool(self.value_apart(value).any()):
                return weight, value, {}
        raise Incomplete("the weights are made from no product")

    def scored(self, products: Sequence[Event], weight: Side, gaps: list[Tensor]) -> Scored:
        """The products that give the scores of a weight. gaps: As in `split`."""
        scores = {event: self.scores(event.results[0].dtype) for event in products}
        ev = Evaluator(self.log, self.lanes, scores, gaps=gaps)
        ev.element(*weight)
        return ev.touched

    def scores(self, dtype: torch.dtype) -> Tensor:
        """Scores that are drawn, one for each lane."""
        return self.lanes.reals(self.lanes.hash("score"), dtype, self.lanes.special_scores)

    def value_apart(self, side: Side) -> Tensor:
        (before,), (after,) = self._read([side], [self.value_side])
        return apart(before, after, self.exact.valid)

    def factors_apart(self, pair: Sequence[Side], channel: Tensor) -> Tensor:
        """[2, lanes]: where (A, B) are not (query, key), and where they are not (key, query)."""
        (left, right), (query, key) = self._read(pair, self.factor_sides(channel))
        valid = self.exact.valid
        differ = lambda a, b: apart(left, a, valid) | apart(right, b, valid)
        return torch.stack([differ(query, key), differ(key, query)])

    def _read(
        self, before: Sequence[Side], after: Sequence[Side]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The elements of both graphs. Writes that one of them alone misses are noted."""
        with self.exact.noting() as theirs:
            left = [self.exact.element(*side) for side in before]
        with self.exact.noting() as mine:
            right = [self.exact.element(*side) for side in after]
        self.unsampled |= theirs ^ mine
        return left, right

    @property
    def value_side(self) -> Side:
        """The elements that the fused call reads of its value."""
        call = self.call
        return call.value, call.event.number, call.key_at(self.at, self.at["e"], "value")

    def factor_sides(self, channel: Tensor) -> list[Side]:
        """The elements that the fused call reads of its query and key."""
        call, time = self.call, self.call.event.number
        return [
            (call.query, time, call.query_at(self.at, channel)),
            (call.key, time, call.key_at(self.at, channel)),
        ]


@dataclass
class SampledWeights:
    """The weights of these points, by the recorded operations and by the score program.

    side:       The recorded weights.
    scored:     The products that give the scores.
    training:   Gradients are compared too.
    result:     What is made of the result of the fused call by a factor for each row. None where
                it is the result itself.
    aimed:      Scores, some of them where a function turns; None where they are drawn.
    valid:      The lanes in which eager raises no error.
    raised:     The lanes in which the program raises an error.
    """

    points: Points
    side: Side
    scored: Scored
    training: bool
    result: Side | None = None
    aimed: Tensor | None = None
    valid: Tensor = field(default_factory=lambda: torch.ones(COUNT, dtype=torch.bool))
    raised: Tensor = field(default_factory=lambda: torch.zeros(COUNT, dtype=torch.bool))
    _recorded: dict[bool, Recorded] = field(default_factory=dict)
    _programmed: dict[torch.dtype, Tensor] = field(default_factory=dict)
    _tied: dict[torch.dtype, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        points = self.points
        self.log, self.lanes, self.call, self.at = points.log, points.lanes, points.call, points.at

    def evaluator(self, scores: Tensor | None = None, **options: Any) -> Evaluator:
        """An evaluator of the recorded operations; of their weights, from these scores."""
        products: dict[Event, Tensor] = {}
        if scores is not None:
            products = dict.fromkeys(self.scored, scores)
        return Evaluator(self.log, self.lanes, products, **options)

    @cached_property
    def narrowest(self) -> torch.dtype:
        """The dtype whose roundings the comparison allows: casts must be those of the program."""
        kinds = [self.call.value.dtype, *(event.results[0].dtype for event in self.scored)]
        for event in self.log.events:
            if event.side == "before" and event.name not in CASTS:
                places = [x for x in event.results if isinstance(x, Ref)]
                kinds += [x.dtype for x in places if x.dtype.is_floating_point]
        return max(kinds, key=lambda d: torch.finfo(d).eps)

    @cached_property
    def eps(self) -> float:
        """A rounding. In fp64 torch uses constants of fp32 here and there."""
        return max(torch.finfo(self.narrowest).eps, 4e-9)

    @cached_property
    def scale(self) -> Tensor:
        """The size that rounding errors of a term are relative to, if its value is small."""
        _, factor = self.through_result(torch.ones(COUNT, dtype=torch.float64))
        grows = factor.abs().nan_to_num(1.0, posinf=1.0).clamp(min=1.0)
        return self.scores.double().abs().nan_to_num(posinf=0.0).clamp(1.0, 1e4) * grows

    @cached_property
    def amplitude(self) -> Tensor:
        """The factor by which operands may multiply a rounding error of a slope.

        Where an activation is flat, torch's vectorised and scalar code have different slopes in
        fp64: 0 and 5e-15. Narrower dtypes have enough slack.
        """
        leaf, size = self.leaves(self.points.exact, self.scores), self.points.exact.true.double()
        for term in self.call.reads.values():
            if term.kind == "f" and self.narrowest == torch.float64:
                operand = fold([term], leaf, self.applied(torch.float64))[0].double().abs()
                size = size * operand.nan_to_num(posinf=1.0).clamp(min=1.0)
        return size

    def through_result(self, weight: Tensor, **options: Any) -> tuple[Evaluator, Tensor]:
        """What is made of the result of the fused call, if that is `weight`. In fp64."""
        ev = Evaluator(self.log, self.lanes, {self.call.event: weight}, wide=True, **options)
        return ev, weight if self.result is None else ev.element(*self.result).double()

    @cached_property
    def scores(self) -> Tensor:
        dtype = next((e.results[0].dtype for e in self.scored), self.call.query.dtype)
        return self.points.scores(dtype) if self.aimed is None else self.aimed.to(dtype)

    # By the recorded operations

    def recorded(self, wide: bool) -> list[Recorded]:
        """The weights by the recorded operations: as they are, and, if `wide`, in fp64 too."""
        widths = (False, True) if wide else (False,)
        for width in widths:
            if width not in self._recorded:
                self._recorded[width] = self._evaluated(wide=width)
        return [self._recorded[width] for width in widths]

    def _evaluated(self, wide: bool) -> Recorded:
        eps = 2 * torch.finfo(self.narrowest).eps
        moved = torch.tensor([1.0, 1.0 + eps, 1.0 - eps], dtype=torch.float64)
        score = self.scores.double() * moved.repeat_interleave(CASES)
        score = (score if wide else score.to(self.scores.dtype)).requires_grad_(self.training)
        turns: list[Tensor] | None = None if self.aimed is None else []
        most = torch.finfo(self.narrowest).eps ** 0.5
        ev = self.evaluator(score, wide=wide, differentiate=self.training, most=most, turns=turns)
        weight = ev.element(*self.side)
        self.valid = self.valid & ev.valid
        return Recorded(ev, weight, score)

    @property
    def untracked(self) -> str:
        """A call that writes where autograd does not see it, if a gradient is asked for there."""
        return self.recorded(wide=False)[0].ev.untracked

    # By the score program

    def leaves(self, ev: Evaluator, score: Tensor, grad: Tensor | None = None) -> Any:
        """A function that gives the terms of a program without arguments."""

        def leaf(node: Expr) -> Any:
            if node.op == "s":
                return score
            if node.op == "g":
                assert grad is not None
                return grad
            if node.kind == "t":  # read where it is looked up
                number = node.value
                return lambda x: self.call.looked_up(ev, number, self.at, x).to(score.dtype)
            if node.op == "aux":
                operand = self.call.element(ev, node.value, self.at)
                return operand.to(dtype_of(node.kind, score.dtype))
            if node.op in self.at:
                return self.at[node.op]
            literal = self.call.scalars[node.value] if node.op == "scalar" else node.value
            wide = torch.float64 if node.kind == "f" else dtype_of(node.kind, score.dtype)
            filled = torch.full((COUNT,), literal, dtype=wide)  # type: ignore[arg-type]
            return filled.to(dtype_of(node.kind, score.dtype))

        return leaf

    def compute_dtypes(self, wide: bool) -> list[torch.dtype]:
        return list(dict.fromkeys([self.call.compute_dtype, *[torch.float64] * wide]))

    def programmed(self, wide: bool) -> list[Tensor]:
        """The weights by the score program: as kernels compute, and, if `wide`, in fp64 too."""
        dtypes = self.compute_dtypes(wide)
        for dtype in dtypes:
            if dtype not in self._programmed:
                leaf = self.leaves(self.points.exact, self.scores.to(dtype))
                (weight,) = fold([self.call.program.weight], leaf, self._apply(dtype))
                self._programmed[dtype] = self.through_result(weight.expand(COUNT).double())[1]
        return [self._programmed[dtype] for dtype in dtypes]

    def _apply(self, dtype: torch.dtype) -> Callable[[Expr, list[Any]], Tensor]:
        """How to apply operations of the program, as kernels do.

        Terms without a score are rounded here as in kernels: integers that become floats, and
        numbers that decide a mask or the place in a table.
        """
        narrow, apply = self.call.compute_dtype, self.applied(dtype)
        if dtype == narrow:
            return apply

        def as_in_kernels(node: Expr, values: list[Any]) -> Tensor:
            if node.op == "float" and node.args[0].kind == "i":
                return values[0].to(narrow).to(dtype)  # type: ignore[no-any-return]
            decides = node.kind == "b" or (node.kind == "i" and node.args[0].kind == "f")
            if decides and all(term.op != "s" for term in postorder([node])):
                leaf = self.leaves(self.points.exact, self.scores.to(narrow))
                return fold([node], leaf, self.applied(narrow))[0]
            return apply(node, values)

        return as_in_kernels

    def applied(self, dtype: torch.dtype) -> Callable[[Expr, list[Any]], Tensor]:
        """How to apply operations of the program, without errors.

        torch raises an error for integer division by zero, so these lanes are recorded. With 16-bit
        operands, integers that fp32 cannot hold exactly are not compared once they become floats.
        """
        apply, narrow = torch_apply(dtype), self.narrowest.itemsize == 2

        def without_errors(node: Expr, values: list[Any]) -> Tensor:
            if node.op == "lookup":
                return values[0](values[1])  # type: ignore[no-any-return]
            if node.op == "random16":
                seed = self.call.aux[node.args[0].value]
                return draws.bits(self.lanes, draws.lost_for(self.log, seed))
            if narrow and node.op == "float" and node.args[0].kind == "i":
                self.valid = self.valid & (values[0].abs() <= 1 << 24)
            if node.op in ("floordiv", "mod"):
                zero = values[1] == 0
                self.raised = self.raised | zero
                values = [values[0], torch.where(zero, 1, values[1])]
            if self.aimed is not None and node.op in _DECIDE and node.args[0].kind == "f":
                other = values[1] if len(values) > 1 else 0.0
                self._tied[dtype] = self._tied.get(dtype, False) | (values[0] == other)
            return apply(node, values)

        return without_errors

    # Both

    @property
    def tied(self) -> Tensor:
        """Cases in which both the operations and the program are exactly where a function turns.

        There a slope is one of two, and both must have the same. Cases in which a rounding of the
        score changes the weight by much more than a rounding say nothing.
        """
        tied = self._tied.get(self.call.compute_dtype)
        if self.aimed is None or tied is None:
            return torch.zeros(COUNT, dtype=torch.bool)
        recorded = self._recorded[False]
        weight = recorded.weight.detach().double().view(-1, CASES)
        low, high = weight.aminmax(dim=0)
        steady = high - low <= SLACK * self.eps * (weight[0].abs() + self.scale[:CASES])
        here = recorded.ev.tied[:CASES] & tied[:CASES] & steady & ~self.lanes.special_scores[:CASES]
        return here.repeat(COUNT // CASES)

    def apart(self, valid: Tensor, wide: bool) -> Tensor:
        """Lanes with different weights. `wide` allows more roundings, so it finds fewer lanes."""
        # The program is as exact as scores in fp64 are: then nothing is left out.
        wider = wide and self.scores.dtype != torch.float64
        expected = [x.weight.detach().double() for x in self.recorded(wider)]
        with self.points.exact.noting() as mine:
            programmed = self.programmed(wide)
        if not wide:
            self.points.unsampled |= self._recorded[False].ev.missed ^ mine
        least = SLACK * self.eps * self.scale
        return (outside(expected, programmed, self.eps, least) | self.raised) & valid & self.valid

    def example(self, wrong: Tensor) -> str:
        """One lane in words."""
        lane = int(wrong.nonzero()[0])
        place = ", ".join(f"{name}={int(x[lane])}" for name, x in self.at.items() if name in AXES)
        if self.raised[lane]:
            return f"an integer is divided by zero at {place}"
        before = self.recorded(wide=False)[0].weight.detach()[lane]
        after = self.programmed(wide=False)[0][lane]
        values = f"{float(after):.9g} for {float(before):.9g}"
        return f"{values} at {place}, s={float(self.scores.detach()[lane]):.6g}"
