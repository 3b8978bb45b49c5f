"""Decide a claim: does a fused call give the result of the operations that it replaces?

    before   out[i,j,k] = sum_c W[i,j,c] · V[i,c,k]        W = pointwise operations of S = A · B
    after    out[b,h,q,e] = sum_c P(s, b,h,q,c, operands) · value[b,h,c,e],    s = query · key

Sampled elements of the output lead to both sums. For sampled c the factors must be equal:

- The rows of query and key are those of A and B.
- The values are those of V.
- The weights W equal the score program P, including NaN and infinity, and so do their gradients.

`judged` is the verdict on a pair of graphs: it runs both, and decides each claim on the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.fx import GraphModule

from .._compat import shapes
from .._compat.autograd import plain_torch
from ..program.expr import AXES
from . import draws
from .aim import aimed, scores_at_turns
from .autograd import (
    check_dropped,
    check_hooks,
    check_reach,
    check_saved,
    check_tangent,
    check_views,
    note_view,
)
from .compare import Points, SampledWeights, Scored, Side, apart
from .elements import Evaluator
from .fused import Fused
from .gradients import ROUGH, factors_apart, gradients_apart, slopes
from .interpret import Claim, Claims, SideBySide
from .pointwise import Index
from .record import SIZE_OF_ELEMENTS, Event, Log, Ref
from .samples import COUNT, Lanes, cases, mixed, near, positions
from .verdict import Fault, Incomplete, Verdict


def judged(before: GraphModule, after: GraphModule, claims: Claims | None = None) -> Verdict | None:
    """What `validate` says that has no memory."""
    whole = SideBySide(_agree, claims or {})
    try:
        whole.run(before, after)
        check_saved(whole)
        check_views(whole)
        check_dropped(whole)
        check_hooks(whole)
    except Fault as fault:
        return Verdict(str(fault), fault.node)
    except Incomplete as reason:
        return Verdict(str(reason), whole.node, invalid=False)
    except Exception as error:  # whatever an interpretation may raise, the model stays as it is
        message = f"{type(error).__name__}: {error}"
        message = SIZE_OF_ELEMENTS if shapes.asks_for_elements(error) else message
        return Verdict(message, whole.node, invalid=False)
    return None


def _agree(whole: SideBySide, claim: Claim) -> bool:
    with plain_torch():
        proof = Proof(whole.log, claim)
        result = proof.decide()
        check_tangent(claim)
    if result is False:
        return False
    of_sums = isinstance(result, Agreement) and _has_sums(result.weights.call.event)
    check_reach(whole, replace(claim, of_sums=of_sums))
    whole.proved.append(claim)
    note_view(whole, claim)
    if isinstance(result, Agreement):
        with plain_torch():
            proof.check_gradients(result)
    return True


@dataclass(frozen=True)
class _Read:
    """A call, and the index at which its result was read."""

    event: Event
    index: Index


Sided = Callable[[_Read, Tensor], Side]


@dataclass(frozen=True)
class Agreement:
    """A sum that both graphs compute: its weights, its values, and lanes in which it has a term.

    value: None where the weights alone are summed.
    """

    weights: SampledWeights
    value: Side | None
    valid: Tensor


class Proof:
    """One claim. before, after: The places of the two tensors. seed: The seed of the samples."""

    def __init__(self, log: Log, claim: Claim, seed: int = 0) -> None:
        self.log, self.claim, self.seed = log, claim, seed
        self.before, self.after = log.ref(claim.before), log.ref(claim.after)
        self.owned: Tensor | None = None  # as `_traced` has it

    def decide(self) -> bool | Agreement:
        """Whether the claim holds, and how. If it does not, raises Fault.

        If no fused call is behind the tensors, a claim that does not hold gives False.
        """
        self.before.require_known()
        if 0 in self.before.sizes:
            return True
        traced = self._traced(Lanes(self.seed), self._output_index())
        if isinstance(traced, bool):
            return traced
        call = Fused(traced[1].event, traced[1].index)
        lanes, output, row, key, owned = self._sampled(call, traced[1])
        if call.jagged:  # now the lanes know whose row is read
            traced = self._traced(lanes, output, owned)
            assert not isinstance(traced, bool)
            self.owned = owned
        second, fused, valid = traced
        at = {**call.coordinates(lanes, fused.index, row), "kv_idx": key}
        points = Points(self.log, lanes, call, at)
        agreement = self._compared(second, points, valid, (self.after, self.log.now, output))
        # From now on these are results like any other. But other weights may be made of the same
        # scores, and one call may have the results of several second products.
        scored = agreement.weights.scored
        for event in (*scored, call.event):
            event.again = event.again or event.side
        for event in (second.event, *scored, call.event):
            event.side = "both"
        self.log.literals.clear()
        return agreement

    def check_gradients(self, agreement: Agreement) -> None:
        """Raise Fault unless the factors pass their gradients to the same elements."""
        weights = agreement.weights
        if not weights.training or self.log.nested:
            return
        weighed, slope = slopes(weights)
        points = weights.points
        wrong: Tensor | None = torch.zeros(COUNT, dtype=torch.bool)
        if agreement.value is not None:
            wrong = factors_apart(weights, [agreement.value], [points.value_side])
        if wrong is None:  # the same writes come before both
            return
        wrong = wrong & (weighed != 0)
        if len(weights.scored) == 1:  # of several, some may be detached
            ((event, (index, read)),) = weights.scored.items()
            rows, channel = self._rows(event, index)
            others = factors_apart(weights, rows, points.factor_sides(channel))
            if others is None:
                return
            wrong |= others & (slope != 0) & read
        if bool((wrong & agreement.valid & weights.valid).any()):
            raise self._fault("another gradient of a factor")

    def _fault(self, reason: str) -> Fault:
        return Fault(reason, self.claim.after_node)

    # The two sums

    def _output_index(self) -> Index:
        return tuple(positions(self.before.sizes, self.seed, "output", self._literals()))

    def _products(self, side: str) -> list[Event]:
        """The products that one graph has, or that a claim has decided: of `before` those of ATen,
        of `after` fused calls.
        """
        space = "aten" if side == "before" else "gdpa"
        return [e for e in self.log.products if e.space == space and side in (e.side, e.again)]

    def _sums(self) -> list[Event]:
        """Sums over one dimension that the graph before the rewrite alone has."""
        own = [e for e in self.log.events if e.name == "sum" and e.side == "before"]
        return [e for e in own if len(e.arguments.get("dim") or ()) == 1]

    def _traced(
        self, lanes: Lanes, index: Index, owned: Tensor | None = None
    ) -> tuple[_Read, _Read, Tensor] | bool:
        """The two sums behind the elements of the output, and the lanes in which they are.

        If there is no fused call, the result is whether the elements are equal. owned: The lanes
        whose row the fused call computes for the lane's sequence.
        """
        # Exact in every dtype that the result may be cast to on the way.
        elements = lanes.reals(lanes.hash("result"), torch.bfloat16, lanes.lane < 0)
        sums: dict[str, _Read] = {}
        values: list[Tensor] = []
        valid = torch.ones(COUNT, dtype=torch.bool) if owned is None else owned
        for side, place in (("after", self.after), ("before", self.before)):
            of_rows = "after" in sums and _is_of_rows(sums["after"])
            products = self._sums() if of_rows else self._products(side)
            ev = Evaluator(self.log, lanes, dict.fromkeys(products, elements))
            values.append(ev.element(place, self.log.now, index))
            missing = None if owned is None or ev.owned is None else ev.owned & ev.valid & ~owned
            if missing is not None and bool(missing.any()):
                raise self._fault("a row of a sequence is not computed")
            valid = valid & ev.valid
            if len(ev.touched) > 1:
                raise Incomplete("the output is made from several products")
            for event, (read, _) in ev.touched.items():
                sums[side] = _Read(event, read)
        right, left = values
        agree = not bool(apart(left, right, valid).any())
        if "after" not in sums:
            return agree and "before" not in sums
        fused = sums["after"]
        unknown = Fused(fused.event, fused.index).jagged and lanes.sequence is None  # whose row
        scaled = _has_sums(fused.event) and self._is_scaled(lanes, index, fused, right, valid)
        if "before" not in sums or not (agree or unknown or scaled):
            raise self._fault("the result of the fused call is used as something else")
        return sums["before"], sums["after"], valid

    def _is_scaled(
        self, lanes: Lanes, index: Index, fused: _Read, elements: Tensor, valid: Tensor
    ) -> bool:
        """Whether elements that are made of a fused call's are these, by a factor for each lane."""
        drawn = lanes.reals(lanes.hash("result"), torch.bfloat16, lanes.lane < 0).double()
        one = torch.ones(COUNT, dtype=torch.float64)
        ev = Evaluator(self.log, lanes, {fused.event: one}, wide=True)
        wanted = drawn * ev.element(self.after, self.log.now, index).double()
        far = (elements.double() - wanted).abs() > ROUGH * wanted.abs()
        return not bool((far & wanted.isfinite() & elements.isfinite() & valid).any())

    def _sampled(self, call: Fused, fused: _Read) -> tuple[Lanes, Index, Tensor, Tensor, Tensor]:
        """Lanes, the output's index in them, row and key of a score, and whether the row is one of
        the lane's sequence."""
        index, known = list(self._output_index()), self._literals()
        row = positions([call.rows], self.seed, "row", known)[0]
        if call.cu_query is None:
            row = fused.index[2]
        elif not torch.equal(index[0], fused.index[0]):
            raise Incomplete("the rows of a jagged output are not its first dimension")
        key = near(row % max(call.keys, 1), call.keys, self.seed, known)
        sequence = positions([call.batch], self.seed, "sequence", ())[0] if call.jagged else None
        if call.jagged and call.cu_query is None:
            sequence = fused.index[0]
        total = max(call.total, 1)
        step = max(total // call.batch, 1), max(call.rows, call.keys, 1)
        lanes = Lanes(self.seed, self._around(call, row, key), sequence, total, step)
        owned = torch.ones(COUNT, dtype=torch.bool)
        if call.cu_query is not None:
            start, length = call.span(Evaluator(self.log, lanes, {}), call.cu_query)
            index[0] = (start + row).clamp(0, total - 1)
            row = (index[0] - start).clamp(min=0)
            owned = (index[0] >= start) & (index[0] < start + length)
        return lanes, tuple(index), row, key, owned

    def _around(self, call: Fused, row: Tensor, key: Tensor) -> Tensor:
        """Integers near which a mask may change its mind."""
        named = [0, 1, call.rows, call.keys, *self._literals()]
        one = torch.tensor(named)[mixed(cases() + 31, self.seed) % len(named)]
        near = [row, key, row, key, one, one, row + 1, key + 1, row - 1, key - 1]
        apart = [(row - key).abs(), row - key, key - row, torch.maximum(row, key) + 1]
        sums = [one + row, one + key, one - row, one - key]
        sizes = [*call.places.values(), *([call.key.sizes[0]] if call.pages is not None else [])]
        ends = [torch.zeros_like(row), *(torch.full_like(row, n - 1) for n in sizes)]
        places = [x for n in sizes for x in positions([n] * 3, self.seed, f"{n}", ())]
        return torch.stack([*near, *ends, *apart, *sums, *places], 1)

    def _literals(self) -> list[int]:
        """Integers that one of the graphs names, sizes among them."""
        return sorted(self.log.literals)[:64]

    # The factors

    def _compared(self, second: _Read, points: Points, valid: Tensor, result: Side) -> Agreement:
        """Raise Fault unless the factors are equal."""
        call = points.call
        if call.sums:
            return self._compared_sums(second, points, valid, result)
        left, right = _factors(second.event)
        *batch, j, k = second.index
        if left.sizes[-1] != call.keys:
            raise self._fault(f"the sum runs over {call.keys} keys, not {left.sizes[-1]}")
        time, products = second.event.number, self._products("before")
        sides = lambda m: [(left, time, (*batch, j, m)), (right, time, (*batch, m, k))]
        settled, gaps = points.lanes.drawn, list[Tensor]()
        side, value, scored = points.split(products, sides(points.at["kv_idx"]), gaps)
        if gaps:
            points = aimed(points, gaps, settled)
            side, value, scored = points.split(products, sides(points.at["kv_idx"]))
        if call.pages is not None:  # Eager may read a page that is not there for the keys alone.
            read = (self._rows(product, index)[0] for product, (index, _) in scored.items())
            valid = valid & points.readable([side for sides in read for side in sides])
        valid = self._check_values(points, value, valid)
        weights = self._agreed(points, side, scored, valid, result)
        if call.program.seeds:
            is_left = side[0] == left
            sided = lambda read, m: _weights_of(read, is_left, m)
            self._check_draws(weights, second, sided, result[2])
        return Agreement(weights, value, valid)

    def _check_draws(
        self, weights: SampledWeights, second: _Read, sided: Sided, output: Index
    ) -> None:
        """Each score has a number of its own. Raises Fault where others have the same.

        sided: The weights that a second product reads for some keys.
        """
        points, call = weights.points, weights.call
        (recorded,) = weights.recorded(wide=False)
        known = recorded.ev.drawn
        numbers = math.prod([call.batch, call.heads, call.rows, call.keys])
        draws.decide(self.log, list(known), numbers)
        for read, at in self._other_scores(points, second, output):
            ev = weights.evaluator(weights.scores)
            ev.element(*sided(read, at["kv_idx"]))
            apart = torch.stack([at[x] != points.at[x] for x in AXES]).any(0)
            draws.check_apart(known, ev.drawn, apart)

    def _other_scores(
        self, points: Points, second: _Read, output: Index
    ) -> Iterator[tuple[_Read, dict[str, Tensor]]]:
        """Second products and coordinates, where one index of the output or the key is another."""
        call, key = points.call, points.at["kv_idx"]
        yield second, {**points.at, "kv_idx": positions([call.keys], self.seed, "key", ())[0]}
        for d in range(call.cu_query is not None, len(output)):  # a token is its sequence's
            (moved,) = positions([self.before.sizes[d]], self.seed, f"other {d}", ())
            index = (*output[:d], moved, *output[d + 1 :])
            traced = self._traced(points.lanes, index, self.owned)
            assert not isinstance(traced, bool)
            row = points.at["q_idx"] if call.cu_query is not None else traced[1].index[2]
            at = call.coordinates(points.lanes, traced[1].index, row)
            yield traced[0], {**at, "kv_idx": key}

    def _compared_sums(
        self, second: _Read, points: Points, valid: Tensor, result: Side
    ) -> Agreement:
        """The same of sums of weights alone."""
        event, call = second.event, points.call
        (dim,), place = event.arguments["dim"], event.args[0]
        dim %= len(place.sizes)
        if place.sizes[dim] != call.keys or call.jagged:
            raise self._fault(f"rows of {call.keys} keys are summed, not of {place.sizes[dim]}")
        rest = second.index[dim + 1 :] if event.arguments["keepdim"] else second.index[dim:]
        side = lambda m: (place, event.number, (*second.index[:dim], m, *rest))
        settled, gaps, products = points.lanes.drawn, list[Tensor](), self._products("before")
        scored = points.scored(products, side(points.at["kv_idx"]), gaps)
        if gaps:
            points = aimed(points, gaps, settled)
            scored = points.scored(products, side(points.at["kv_idx"]), [])
        weights = self._agreed(points, side(points.at["kv_idx"]), scored, valid, result)
        return Agreement(weights, None, valid)

    def _agreed(
        self, points: Points, side: Side, scored: Scored, valid: Tensor, result: Side
    ) -> SampledWeights:
        """The weights of both sides. Raises Fault unless they are equal."""
        training = self.claim.before.requires_grad
        own = result if _has_sums(points.call.event) else None
        weights = SampledWeights(points, side, scored, training, own)
        if weights.training and not self.log.nested:
            scores = scores_at_turns(weights)
            weights = weights if scores is None else replace(weights, aimed=scores)
        for product, (index, read) in scored.items():
            self._check_scores(points, product, index, valid & read)
        self._check_weights(weights, valid)
        for missed in points.unsampled:
            raise Incomplete(f"no sample lies where `{missed.name}` writes")
        return weights

    def _check_values(self, points: Points, value: Side, valid: Tensor) -> Tensor:
        """Both sums read the same values. Returns the lanes in which there is a score."""
        row, exists = points.exists()
        padding = points.exact.element(*value) != 0
        if bool((padding & valid & row & ~exists).any()):
            raise self._fault("keys past the end of a sequence count")
        valid = valid & row & exists
        if bool((points.missing & valid).any()):
            raise self._fault("a key is read from a page that is not there")
        if bool((points.value_apart(value) & valid).any()):
            raise self._fault("other values are summed")
        return valid

    def _check_scores(self, points: Points, product: Event, index: Index, valid: Tensor) -> None:
        """The scores of both sides are products of the same rows."""
        width, own = points.call.width, _factors(product)[0].sizes[-1]
        if own != width:
            raise self._fault(f"the scores are products of {width} channels, not {own}")
        differ = points.factors_apart(*self._rows(product, index))
        if bool((differ[0] & valid).any()) and bool((differ[1] & valid).any()):
            raise self._fault("the scores are products of other rows")

    def _check_weights(self, weights: SampledWeights, valid: Tensor) -> None:
        """The recorded operations on a score are the score program, and so are their gradients."""
        if write := weights.untracked:
            raise self._fault(f"`{write}` writes where autograd does not see it")
        wrong = weights.apart(valid, wide=False)
        wrong = weights.apart(valid, wide=True) if bool(wrong.any()) else wrong
        if bool(wrong.any()):
            raise self._fault(f"other weights: {weights.example(wrong)}")
        reason = gradients_apart(weights, valid, wide=False) if weights.training else ""
        if reason and (reason := gradients_apart(weights, valid, wide=True)):
            raise self._fault(reason)

    def _rows(self, product: Event, index: Index) -> tuple[list[Side], Tensor]:
        """One term of each score: an element of either factor, and its channel."""
        left, right = _factors(product)
        *batch, i, j = index
        channel = positions([left.sizes[-1]], self.seed, "channel", ())[0]
        sides = [(left, (*batch, i, channel)), (right, (*batch, channel, j))]
        return [(place, product.number, at) for place, at in sides], channel


def _has_sums(event: Event) -> bool:
    return event.name == "attention_sums"


def _is_of_rows(read: _Read) -> bool:
    """Whether row sums are read of a fused call, and not its output."""
    return _has_sums(read.event) and Fused(read.event, read.index).sums


def _weights_of(second: _Read, is_left: bool, key: Tensor) -> Side:
    place = _factors(second.event)[not is_left]
    *batch, j, k = second.index
    return place, second.event.number, (*batch, j, key) if is_left else (*batch, key, k)


def _factors(event: Event) -> tuple[Ref, Ref]:
    at = 1 if event.name in ("addmm", "baddbmm") else 0
    return event.args[at], event.args[at + 1]
