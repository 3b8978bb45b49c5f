"""Decide a claim: does a fused call give the result of the operations that it replaces?

    before   out[i,j,k] = sum_c W[i,j,c] · V[i,c,k]        W = pointwise operations of S = A · B
    after    out[b,h,q,e] = sum_c P(s, b,h,q,c, operands) · value[b,h,c,e],    s = query · key

Sampled elements of the output lead to both sums. For sampled c the factors must be equal:

- The rows of query and key are those of A and B.
- The values are those of V.
- The weights W equal the score program P, including NaN and infinity, and so do their gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .aim import aimed
from .compare import SampledWeights, Side, apart
from .elements import Evaluator, Untracked
from .fused import Fused
from .gradients import factors_apart, gradients_apart, slopes
from .interpret import Claim, Fault, SideBySide
from .pointwise import Index
from .record import Event, Incomplete, Ref
from .samples import COUNT, Lanes, cases, mixed, near, positions


@dataclass
class Proof:
    """One claim. before, after: The places of the two tensors. seed: The seed of the samples."""

    whole: SideBySide
    claim: Claim
    seed: int = 0
    _decided: tuple[SampledWeights, Side, Side, Tensor] | None = None

    def decide(self) -> bool:
        """Whether the claim holds. If it does not, raises Fault.

        If no fused call is behind the tensors, a claim that does not hold gives False.
        """
        log = self.log = self.whole.log
        self.before, self.after = log.ref(self.claim.before), log.ref(self.claim.after)
        self.before.require_known()
        if 0 in self.before.sizes:
            return True
        self.products = {
            side: [e for e in log.products if e.space == space and side in (e.side, e.again)]
            for side, space in (("before", "aten"), ("after", "gdpa"))
        }
        traced = self._traced(Lanes(self.seed), self._output_index())
        if isinstance(traced, bool):
            return traced
        call = Fused(traced[1].event)
        lanes, output, row, key, owned = self._sampled(call, traced[1])
        if call.jagged:  # now the lanes know whose row is read
            traced = self._traced(lanes, output, owned)
            assert not isinstance(traced, bool)
        second, fused, valid = traced
        at = {**call.coordinates(lanes, fused.index, row), "kv_idx": key}
        training = self.claim.before.requires_grad
        weights = SampledWeights(log, lanes, self.products["before"], call, at, training)
        self._decide_weights(second, weights, valid)
        return True

    def check_gradients(self) -> None:
        """Raise Fault unless the factors pass their gradients to the same elements.

        It is called after `decide`.
        """
        if self._decided is None or not self._decided[0].training or self.log.nested:
            return
        weights, weight, value, valid = self._decided
        call, at = weights.call, weights.at
        time = call.event.number
        weighed, slope = slopes(weights, weight)
        mine = [(call.value, time, call.key_at(at, at["e"], "value"))]
        try:
            wrong = factors_apart(weights, [value], mine) & (weighed != 0)
            if len(weights.scored) == 1:  # of several, some may be detached
                ((product, (index, read)),) = weights.scored.items()
                sides, channel = self._rows(product, index)
                mine = [(call.query, time, call.query_at(at, channel))]
                mine.append((call.key, time, call.key_at(at, channel)))
                wrong |= factors_apart(weights, sides, mine) & (slope != 0) & read
        except Untracked:  # the same writes come before both
            return
        if bool((wrong & valid & weights.valid).any()):
            raise Fault("another gradient of a factor", self._node())

    # The two sums

    def _output_index(self) -> Index:
        return tuple(positions(self.before.sizes, self.seed, "output", self._literals()))

    def _traced(
        self, lanes: Lanes, index: Index, owned: Tensor | None = None
    ) -> tuple[_Read, _Read, Tensor] | bool:
        """The two sums behind the elements of the output, and the lanes in which they are.

        If there is no fused call, the result is whether the elements are equal. owned: The lanes
        whose row the fused call computes for the lane's sequence.
        """
        # Exact in every dtype that the result may be cast to on the way.
        elements = lanes.reals(lanes.hash("result"), torch.bfloat16, lanes.lane < 0)
        ends: dict[str, _Read] = {}
        values: dict[str, Tensor] = {}
        valid = torch.ones(COUNT, dtype=torch.bool) if owned is None else owned
        for side, place in (("before", self.before), ("after", self.after)):
            products = dict.fromkeys(self.products[side], elements)
            ev = Evaluator(self.log, lanes, dict.fromkeys(products, elements))
            values[side] = ev.element(place, self.log.now, index)
            if owned is not None and ev.owned is not None:
                self._refuse_missing(ev.owned & ev.valid & ~owned)
            valid = valid & ev.valid
            if len(ev.touched) > 1:
                raise Incomplete("the output is made from several products")
            if ev.touched:
                ((event, (read, _)),) = ev.touched.items()
                ends[side] = _Read(event, read)
        agree = not bool(apart(values["before"], values["after"], valid).any())
        if "after" not in ends:
            return agree and "before" not in ends
        unknown = Fused(ends["after"].event).jagged and lanes.sequence is None  # whose row it is
        if "before" not in ends or not (agree or unknown):
            raise Fault("the result of the fused call is used as something else", self._node())
        return ends["before"], ends["after"], valid

    def _refuse_missing(self, rows: Tensor) -> None:
        """Rows that the model takes out of a sequence, and the fused call does not compute."""
        if bool(rows.any()):
            raise Fault("a row of a sequence is not computed", self._node())

    def _node(self) -> str:
        return self.claim.after_node

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

    def _around(self, call: Fused, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        """Integers near which a mask may change its mind."""
        named = [0, 1, call.rows, call.keys, *self._literals()]
        one = torch.tensor(named)[mixed(cases() + 31, self.seed) % len(named)]
        row, key = q_idx, kv_idx
        near = [row, key, row, key, one, one, row + 1, key + 1, row - 1, key - 1]
        apart = [(row - key).abs(), row - key, key - row, torch.maximum(row, key) + 1]
        sums = [one + row, one + key, one - row, one - key]
        return torch.stack([*near, torch.zeros_like(row), *apart, *sums], 1)

    def _literals(self) -> list[int]:
        """Integers that one of the graphs names, sizes among them."""
        return sorted(self.log.literals)[:64]

    # The factors

    def _decide_weights(self, second: _Read, weights: SampledWeights, valid: Tensor) -> None:
        call = weights.call
        left, right = _factors(second.event)
        *batch, j, k = second.index
        if left.sizes[-1] != call.keys:
            raise Fault(f"the sum runs over {call.keys} keys, not {left.sizes[-1]}", self._node())
        time = second.event.number
        sides = lambda m: [(left, time, (*batch, j, m)), (right, time, (*batch, m, k))]
        weights.lanes.settle()
        gaps: list[Tensor] = []
        weight, value = weights.split_sides(sides(weights.at["kv_idx"]), gaps)
        if gaps:
            weights = aimed(weights, gaps)
            weight, value = weights.split_sides(sides(weights.at["kv_idx"]))
        if weights.training and not self.log.nested:
            weights.aim(weight)
        valid = self._decide_values(weights, value, valid)
        for product, (index, read) in weights.scored.items():
            self._decide_scores(weights, product, index, valid & read)
        self._decide_programs(weights, weight, valid)
        self._decided = weights, weight, value, valid
        for missed in weights.unsampled:
            raise Incomplete(f"no sample lies where `{missed.name}` writes")
        # From now on these are results like any other. But other weights may be made of the same
        # scores, and one call may have the results of several second products.
        for event in (*weights.scored, call.event):
            event.again = event.again or event.side
        for event in (second.event, *weights.scored, call.event):
            event.side = "both"
        self.log.literals.clear()

    def _decide_values(self, weights: SampledWeights, value: Side, valid: Tensor) -> Tensor:
        """Both sums read the same values. Returns the lanes in which there is a score."""
        row, exists = weights.exists()
        if bool((weights.padding(value) & valid & row & ~exists).any()):
            raise Fault("keys past the end of a sequence count", self._node())
        valid = valid & row & exists
        if bool((weights.value_apart(value) & valid).any()):
            raise Fault("other values are summed", self._node())
        return valid

    def _decide_programs(self, weights: SampledWeights, weight: Side, valid: Tensor) -> None:
        """The recorded operations on a score are the score program, and so are their gradients."""
        try:
            wrong = weights.apart(weight, valid, wide=False)
            wrong = weights.apart(weight, valid, wide=True) if bool(wrong.any()) else wrong
        except Untracked as write:
            raise Fault(f"`{write}` writes where autograd does not see it", self._node()) from None
        if bool(wrong.any()):
            raise Fault(f"other weights: {weights.example(weight, wrong)}", self._node())
        reason = gradients_apart(weights, weight, valid, wide=False) if weights.training else ""
        if reason and (reason := gradients_apart(weights, weight, valid, wide=True)):
            raise Fault(reason, self._node())

    def _decide_scores(
        self, weights: SampledWeights, product: Event, index: Index, valid: Tensor
    ) -> None:
        """The scores of both sides are products of the same rows."""
        width = _factors(product)[0].sizes[-1]
        if width != weights.call.width:
            raise Fault(
                f"the scores are products of {weights.call.width} channels, not {width}",
                self._node(),
            )
        sides, channel = self._rows(product, index)
        differ = weights.factors_apart(sides, channel)
        if bool((differ[0] & valid).any()) and bool((differ[1] & valid).any()):
            raise Fault("the scores are products of other rows", self._node())

    def _rows(self, product: Event, index: Index) -> tuple[list[Side], Tensor]:
        """One term of each score: an element of either factor, and its channel."""
        left, right = _factors(product)
        *batch, i, j = index
        channel = positions([left.sizes[-1]], self.seed, "channel", ())[0]
        sides = [(left, (*batch, i, channel)), (right, (*batch, channel, j))]
        return [(place, product.number, at) for place, at in sides], channel


@dataclass(frozen=True)
class _Read:
    """A call, and the index at which its result was read."""

    event: Event
    index: Index


def _factors(event: Event) -> tuple[Ref, Ref]:
    at = 1 if event.name in ("addmm", "baddbmm") else 0
    return event.args[at], event.args[at + 1]
