"""The chunked lowering: one call of an operator in the generated code, forward and backward.

`gdpa::attention_chunked` and `gdpa::attention_chunked_backward` have the arguments and results of
the public ops, on any device. Beside results they need at most 64 MiB, whatever the lengths. Jagged
sides are padded first. Generated code calls the operators by name. So this module has to be
imported before code is loaded from a cache.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..._compat import dynamo
from ...kernels.chunked import chunks, run
from ...kernels.chunked.operands import ChunkedOperands
from ...kernels.chunked.run import ChunkedGrads, Repeat
from ...operands import (
    Operands,
    aux_from_axes,
    aux_on_axes,
    aux_sums,
    check,
    score_shape,
)
from ...ops import Arguments, Signature, fake_gradients, fake_output, no_autocast
from ...program.expr import Expr, call
from ...program.expr import aux as aux_leaf
from ...sequences import Padding, pad_heads, unpad_heads
from ..call import Call, extern_call
from . import product

log = logging.getLogger("gdpa_inductor")

_LIBRARY = torch.library.Library("gdpa", "FRAGMENT")
_KEYWORDS = ("fp32_scores", "lengths_vary")
FORWARD = Signature("attention_chunked", keywords=_KEYWORDS)
BACKWARD = Signature("attention_chunked_backward", backward=True, keywords=_KEYWORDS)


def lower(call: Call) -> Any:
    """The output, contiguous. Inductor IR in and out."""
    _count(call)
    return extern_call(FORWARD, _arguments(call), _callee("forward_site", call))


def lower_backward(call: Call) -> list[Any]:
    """The wanted gradients of (query, key, value, *aux), contiguous. Inductor IR in and out."""
    _count(call)
    return extern_call(BACKWARD, _arguments(call), _callee("backward_site", call))


def _callee(maker: str, call: Call) -> tuple[str, str, str] | None:
    """The generated code calls `maker()` in place of an operator, where what the first run finds
    out serves all later ones."""
    again = call.static and not call.problem.jagged and not call.fakes.operands.scalars
    return (__name__, maker, "") if again and not any(call.needs[3:]) else None


def _arguments(call: Call) -> Arguments[Any]:
    return call.on_its_device(fp32_scores=call.options.fp32_scores, lengths_vary=not call.static)


def _count(call: Call) -> None:
    """Count the launches of a call whose sizes are known."""
    if not call.static or call.problem.jagged or 0 in score_shape(call.fakes.operands):
        return
    given = _given(call.fakes.operands, {"fp32_scores": call.options.fp32_scores})
    sums = any(call.needs[3:])
    if call.backward:
        wanted = [given.sides[number] for number in (2, 1, 0) if call.needs[number]]
        planned = run.call_of(given, wanted, call.fakes.grad_out, sums)
    else:
        planned = run.call_of(given, [given.out_side])
    found = chunks.launches(planned, (2 if call.backward else 1) - given.fused(sums))
    dynamo.counters["gdpa"]["chunked_launches"] += found
    log.info("%s in chunks: %d launches", call.signature.name, found)


class ChunkedSite:
    """One call in the generated code, where all sizes and strides are constants.

    Its first run checks operands, plans chunks and finds the recordings (`run.Repeat`). Later runs
    repeat them.
    """

    def __init__(
        self, signature: Signature, run: Callable[[Arguments[Tensor], ChunkedSite], Any]
    ) -> None:
        self.signature, self._run = signature, run
        self.repeats: tuple[Repeat, ...] = ()

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._run(self.signature.bind(*args, **options), self)


def _known(site: ChunkedSite | None) -> tuple[Repeat, ...]:
    """The recordings of a site. If there are none, a kernel may be compiled, so register it."""
    repeats = () if site is None else site.repeats
    if not repeats:
        product.register()
    return repeats


def _keep(site: ChunkedSite | None, found: tuple[Repeat, ...] | None) -> None:
    if site is not None and found is not None:
        site.repeats = found


def _attention(given: Arguments[Tensor], site: ChunkedSite | None = None) -> Tensor:
    o, repeats = given.operands, _known(site)
    if not repeats:
        check(o)
    with torch.no_grad(), no_autocast(o.query.device):
        padding = Padding.of(o)
        chunked = _given(o, given.options, padding)
        batch, heads, rows, _ = score_shape(o)
        out = o.value.new_empty(batch, heads, rows, o.value.shape[-1])
        for repeat in repeats:
            repeat.forward(chunked, out)
        if not repeats:
            _keep(site, run.forward(chunked, out))
        return unpad_heads(out, padding.query)


def _attention_backward(given: Arguments[Tensor], site: ChunkedSite | None = None) -> list[Tensor]:
    o, needs, repeats = given.operands, given.needs, _known(site)
    with torch.no_grad(), no_autocast(o.query.device):
        padding = Padding.of(o)
        chunked = _given(o, given.options, padding)
        grads = _places(chunked, needs)
        grad_out = pad_heads(given.grad_out, padding.query)
        for repeat in repeats:
            repeat.backward(chunked, grad_out, grads.matrices)
        if not repeats:
            _keep(site, run.backward(chunked, grad_out, grads))
        specs = chunked.program.aux
        totals = [None if t is None else aux_from_axes(t, s) for t, s in zip(grads.aux, specs)]
        found = (
            None if grads.query is None else unpad_heads(grads.query, padding.query),
            None if grads.key is None else unpad_heads(grads.key, padding.key),
            None if grads.value is None else unpad_heads(grads.value, padding.key),
            *(
                None if total is None else padding.unpad_aux(total, spec)
                for total, spec in zip(totals, o.program.aux)
            ),
        )
    results = zip(found, o.differentiable, strict=True)
    return [grad.to(t.dtype).contiguous() for grad, t in results if grad is not None]


def forward_site() -> ChunkedSite:
    return ChunkedSite(FORWARD, _attention)


def backward_site() -> ChunkedSite:
    return ChunkedSite(BACKWARD, _attention_backward)


def _given(o: Operands[Tensor], options: Any, padding: Padding | None = None) -> ChunkedOperands:
    """The operands as chunks take them: dense, with aux operands on four axes."""
    fp32, vary = options.get("fp32_scores", False), options.get("lengths_vary", False)
    only: Expr | None = None
    valid: list[Tensor] = []
    if padding is not None and o.jagged:
        only, valid = _existing(padding, len(o.aux))
        o = padding.pad(o)
    aux = [aux_on_axes(t, spec) for t, spec in zip(o.aux, o.program.aux, strict=True)]
    return ChunkedOperands(
        o.query, o.key, o.value, (*aux, *valid), o.scalars, o.program, only, fp32, vary
    )


def _existing(padding: Padding, number: int) -> tuple[Expr, list[Tensor]]:
    """(the condition that a score is not padding, the mask tensors that it reads).

    number: The number of the first of these tensors, as an aux operand.
    """
    rows = None if padding.query is None else padding.query.valid[:, None, :, None]
    cols = None if padding.key is None else padding.key.valid[:, None, None, :]
    valid = [side for side in (rows, cols) if side is not None]
    terms = [aux_leaf(number + i, "b") for i in range(len(valid))]
    return terms[0] if len(terms) == 1 else call("and", *terms), valid


def _places(given: ChunkedOperands, needs: tuple[bool, ...]) -> ChunkedGrads:
    query, key, value = (
        t.new_empty(t.shape) if need else None
        for t, need in zip((given.query, given.key, given.value), needs, strict=False)
    )
    specs = given.program.aux
    aux = [
        aux_sums(t, spec, given.compute) if need else None
        for t, spec, need in zip(given.aux, specs, needs[3:], strict=False)
    ]
    return ChunkedGrads(query, key, value, aux)


FORWARD.register(_LIBRARY, "CompositeExplicitAutograd", _attention, fake_output)
BACKWARD.register(_LIBRARY, "CompositeExplicitAutograd", _attention_backward, fake_gradients)
