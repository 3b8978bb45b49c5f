"""Compare gradients of weights, lane by lane: by the score, and by every root of the operands.

Autograd differentiates the recorded operations. The score program has its own derivative. Either
side may read a root at several places, so the sums for each of its elements are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..program.expr import fold
from .compare import Recorded, SampledWeights, Side
from .elements import Root
from .ranges import SLACK, outside
from .samples import CASES, COUNT, bytes_of
from .verdict import Incomplete

SCORE = "score"  # as the name of a root, beside those of the operands
ROUGH = 2.0**-6  # a few roundings of bf16
_TURN_SLACK = 16  # roundings: in bf16, slopes that are half of each other are told apart


def gradients_apart(weights: SampledWeights, valid: Tensor, wide: bool) -> str:
    """Compare the gradients by the score and by every root: the first fault. `wide` finds fewer.

    Even where scores are fp64: of a narrower operand, each use rounds its gradient to that dtype.
    """
    lanes = weights.lanes
    grad = lanes.reals(lanes.hash("gradient"), torch.float32, lanes.lane < 0)
    recorded = weights.recorded(wide)
    expected = [_recorded(one, grad) for one in recorded]
    actual = [_programmed(weights, grad, dtype) for dtype in weights.compute_dtypes(wide)]
    # At NaN torch's vectors and single elements have different slopes.
    nan = torch.stack([weights.scores, *weights.programmed(wide)]).isnan().any(0)
    ok = valid & weights.valid & ~nan
    if any(one.ev.overwrites for one in recorded):
        # In torch an overwritten value gets a gradient of zeros, which meets infinity on its way.
        # Here it gets none.
        ok = ok & ~lanes.special_scores
    least = SLACK * weights.eps * weights.scale * weights.amplitude * grad.double().abs()
    for root, sums in _sums([*expected, *actual]):
        theirs, mine = sums[: len(expected)], sums[len(expected) :]
        finite = torch.stack(theirs).view(-1, CASES).isfinite().all(0).repeat(COUNT // CASES)
        wrong = outside(theirs, mine, weights.eps, least) & ok & finite
        size = grad.double().abs() * weights.amplitude
        wrong |= _at_a_turn(theirs, mine, weights.eps, size) & weights.tied & ok & finite
        if bool(wrong.any()):
            lane = int(wrong.nonzero()[0])
            what = "the scores" if root == SCORE else "an operand"
            values = f"{float(mine[0][lane]):.9g} for {float(theirs[0][lane]):.9g}"
            return f"another gradient of {what}: {values}"
    return ""


def _at_a_turn(
    theirs: Sequence[Tensor], mine: Sequence[Tensor], eps: float, size: Tensor
) -> Tensor:
    """Lanes in which no gradient is one of those expected, at the scores as they are.

    `outside` accepts all between the slopes on both sides of a score, as a rounding may decide. At
    a number where a function turns nothing rounds, and torch has one slope.
    """
    wrong = torch.ones(CASES, dtype=torch.bool)
    for expected in (x[:CASES] for x in theirs):
        for actual in (x[:CASES] for x in mine):
            slack = _TURN_SLACK * eps * (expected.abs() + size[:CASES])
            wrong &= (actual - expected).abs() > slack
    return wrong.repeat(COUNT // CASES)


def slopes(weights: SampledWeights) -> tuple[Tensor, Tensor]:
    """The recorded weights, and their derivative by the score."""
    (recorded,) = weights.recorded(wide=False)
    grad = torch.ones_like(recorded.weight)
    by_score = [x.elements for x in _recorded(recorded, grad) if x.name == SCORE]
    return recorded.weight.detach(), sum(by_score, torch.zeros(COUNT, dtype=torch.float64))


def factors_apart(
    weights: SampledWeights, theirs: Sequence[Side], mine: Sequence[Side]
) -> Tensor | None:
    """Lanes in which equal elements, multiplied, have other gradients: as if one was detached.

    None where autograd does not see a write to them.
    """
    lanes = weights.lanes
    grad = lanes.reals(lanes.hash("result"), torch.bfloat16, lanes.lane < 0).double()
    both, wrong = [], torch.zeros(COUNT, dtype=torch.bool)
    for sides in (theirs, mine):
        ev, term = weights.evaluator(differentiate=True), grad
        for side in sides:
            term = term * ev.element(*side).double()
        if ev.untracked:
            return None
        roots = ev.roots.values() if term.requires_grad else ()
        both.append(_pulled([term], [torch.ones_like(term)], roots))
    for _, (before, after) in _sums(both):
        size = torch.maximum(torch.maximum(before.abs(), after.abs()), grad.abs())
        wrong |= (size < torch.inf) & ((before - after).abs() > ROUGH * size)
    return wrong & ~lanes.special_operands


def _sums(evaluations: Sequence[Sequence[Root]]) -> Iterator[tuple[Any, list[Tensor]]]:
    """For each root and addresses in it: the gradient in each evaluation, from all that reads them.

    An evaluation is a list of roots, with gradients as their elements.
    """
    every = [x for gradients in evaluations for x in gradients]
    for place in {(x.name, bytes_of(x.address)): x for x in every}.values():
        sums = []
        for gradients in evaluations:
            total = torch.zeros(COUNT, dtype=torch.float64)
            for x in gradients:
                if x.name == place.name:
                    total = torch.where(x.address == place.address, total + x.elements, total)
            sums.append(total)
        yield place.name, sums


def _recorded(recorded: Recorded, grad: Tensor) -> list[Root]:
    weight, ev = recorded.weight, recorded.ev
    if not weight.requires_grad:
        return []
    roots = [Root(SCORE, ev.zero, recorded.score), *ev.roots.values()]
    return _pulled([weight], [grad.to(weight.dtype)], roots)


def _programmed(weights: SampledWeights, grad: Tensor, dtype: torch.dtype) -> list[Root]:
    """The program's own derivative, and from the operands back to the roots."""
    program = weights.call.program
    ev = weights.evaluator(differentiate=True)
    outer = _through_result(weights, grad, dtype)
    leaf = weights.leaves(ev, weights.scores.to(dtype), outer.pop(0).elements.to(dtype))
    apply, reads = weights.applied(dtype), weights.call.reads
    # Read with gradients, and known from then on. Of a table it is the element that is looked up:
    # its gradient, at its address, is what is summed by place.
    operands = dict(zip(reads, fold(list(reads.values()), leaf, apply), strict=True))
    if ev.untracked:
        raise Incomplete(f"`{ev.untracked}` writes where autograd does not see it")
    wanted = [program.gradients.score, *program.gradients.aux]
    with torch.no_grad():
        terms = iter(fold([x for x in wanted if x is not None], leaf, apply))
    by_score, *by_operand = [None if x is None else next(terms).expand(COUNT) for x in wanted]
    outputs, cotangents = [], []
    for number, term in enumerate(by_operand):
        if term is not None and operands[number].requires_grad:
            outputs.append(operands[number])
            cotangents.append(term.to(operands[number].dtype))
    gradients = _pulled(outputs, cotangents, ev.roots.values()) if outputs else []
    gradients += outer
    if by_score is not None and (weights.call.query.grad or weights.call.key.grad):
        gradients.append(Root(SCORE, ev.zero, by_score.double()))
    return gradients


def _through_result(weights: SampledWeights, grad: Tensor, dtype: torch.dtype) -> list[Root]:
    """The gradients of the program's weight, and of what it is multiplied with after the call."""
    if weights.result is None:
        return [Root("weight", weights.points.exact.zero, grad)]
    leaf = weights.leaves(weights.points.exact, weights.scores.to(dtype))
    (weight,) = fold([weights.call.program.weight], leaf, weights.applied(dtype))
    weight = weight.expand(COUNT).detach().double().requires_grad_()
    ev, result = weights.through_result(weight, differentiate=True)
    roots = [Root("weight", ev.zero, weight), *ev.roots.values()]
    return _pulled([result], [grad.double()], roots)


def _pulled(outputs: list[Tensor], cotangents: list[Tensor], roots: Iterable[Root]) -> list[Root]:
    """The gradients of those roots that are reached."""
    leaves = [x for x in roots if x.elements.requires_grad]
    if not leaves:
        return []
    elements = [x.elements for x in leaves]
    grads = torch.autograd.grad(outputs, elements, cotangents, retain_graph=True, allow_unused=True)
    return [Root(x.name, x.address, g.double()) for x, g in zip(leaves, grads) if g is not None]
