"""gdpa::attention, gdpa::attention_sums, gdpa::attention_backward and gdpa::kept: schemas, shapes
and gradients.

Layout: query [B,H,M,D], key [Bk,Hk,N,D], value [Bv,Hv,N,Dv], output [B,H,M,Dv] contiguous in
value's dtype. The batch of each operand is B or 1. H is a multiple of Hk and of Hv, and query head
h reads key head h // (H/Hk). A side whose cu_seqlens is given is jagged instead (`operands`): query
and output [Lq,H,·], key and value [Lk,·,·]. With a page_table key and value are pools of pages, and
there is no backward. Lengths are read on the device only. Saved for the backward: the operands.

gdpa::attention_sums is for programs with row sums, which are its second output: [B,H,M] or [Lq,H],
fp32 (fp64 for fp64). In its backward the gradient of these is the last aux operand.

The eager implementation is the `reference`: any device and float dtype, and it holds the scores.
Forms for single backends, such as gdpa::attention_cpu, take the same operands, and differ in their
options (`Signature`).
"""

from __future__ import annotations

import functools
import importlib
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ._compat import operators, shapes
from .operands import Operands, check, output_shape, row_sums_spec
from .program.expr import SCORE, compute_dtype, const, differentiate
from .program.expr import aux as aux_leaf
from .program.score_mod import ScoreMod
from .reference import reference, reference_backward
from .rejection import GDPAError

T = TypeVar("T")
OPERANDS = ("query", "key", "value", "aux", "scalars", "score_mod")
LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
DENSE = (None, None, 0, 0)  # lengths where none are given
TYPES: Mapping[str, str] = {
    "grad_out": "Tensor grad_out",
    "query": "Tensor query",
    "key": "Tensor key",
    "value": "Tensor value",
    "aux": "Tensor[] aux",
    "scalars": "SymInt[] scalars",
    "score_mod": "str score_mod",
    "needs": "bool[] needs",
    "kernel_options": "str kernel_options",
    "cu_seqlens_q": "Tensor? cu_seqlens_q=None",
    "cu_seqlens_k": "Tensor? cu_seqlens_k=None",
    "max_seqlen_q": "SymInt max_seqlen_q=0",
    "max_seqlen_k": "SymInt max_seqlen_k=0",
    "page_table": "Tensor? page_table=None",
    "fast": "bool fast=True",
    "skip": "bool skip=True",
    "ordered": "bool ordered=True",
    "fp32_scores": "bool fp32_scores=False",
    "lengths_vary": "bool lengths_vary=False",
    "weights_kernel": "str weights_kernel='auto'",
}
TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)


@dataclass(frozen=True)
class Arguments(Generic[T]):
    """One call of an operator."""

    operands: Operands[T]
    grad_out: Any = None  # this and the next are of a backward
    needs: tuple[bool, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


Implementation = Callable[[Arguments[Any]], Any]


@dataclass(frozen=True)
class Signature:
    """An operator gdpa::`name`.

    The order of a schema is part of exported programs and must not change.
    """

    name: str
    backward: bool = False
    keywords: tuple[str, ...] = ()  # its options; without any they are a string, `kernel_options`
    pages: bool = False  # keys and values may lie in pages
    sums: bool = False  # it returns row sums too

    @property
    def several(self) -> bool:
        """Whether it returns several tensors."""
        return self.backward or self.sums

    @property
    def trailing(self) -> dict[str, Any]:
        """The last arguments, with their defaults."""
        lengths = dict(zip(LENGTHS, DENSE, strict=True))
        return lengths | ({"page_table": None} if self.pages else {})

    def of(self, program: ScoreMod) -> Signature:
        """The operator for a program: of a forward with row sums its own."""
        return self if self.backward or program.summed is None else self.with_sums

    @functools.cached_property
    def with_sums(self) -> Signature:
        return replace(self, name=f"{self.name}_sums", sums=True)

    @functools.cached_property
    def positional(self) -> tuple[str, ...]:
        cotangent, needs = (("grad_out",), ("needs",)) if self.backward else ((), ())
        options = () if self.keywords else ("kernel_options",)
        return (*cotangent, *OPERANDS, *needs, *options, *self.trailing)

    @property
    def schema(self) -> str:
        arguments = ", ".join(TYPES[name] for name in self.positional)
        keywords = ", ".join(TYPES[name] for name in self.keywords)
        returns = "Tensor[]" if self.backward else "(Tensor, Tensor)" if self.sums else "Tensor"
        return f"{self.name}({arguments}{', *, ' + keywords if keywords else ''}) -> {returns}"

    @property
    def op(self) -> Any:
        return getattr(torch.ops.gdpa, self.name).default

    def bind(self, *args: Any, **kwargs: Any) -> Arguments[Any]:
        """From what the dispatcher hands over, which leaves trailing defaults out."""
        missing, defaults = len(self.positional) - len(args), self.trailing
        if 0 < missing <= len(defaults) and kwargs.keys().isdisjoint(self.positional):
            args += tuple(defaults.values())[-missing:]
        elif missing > 0:
            leading = zip(self.positional, args, strict=False)
            args, kwargs = self._in_order({**defaults, **dict(leading), **kwargs})
        first = 1 if self.backward else 0
        last = first + len(OPERANDS)
        operands = operands_of(*args[first:last], *args[-len(defaults) :])
        options = kwargs if self.keywords else {"kernel_options": args[-len(defaults) - 1]}
        if not self.backward:
            return Arguments(operands, options=options)
        return Arguments(operands, args[0], tuple(args[last]), options)

    def call(self, arguments: Arguments[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) for the operator."""
        o = arguments.operands
        return self._in_order(
            {
                "grad_out": arguments.grad_out,
                "query": o.query,
                "key": o.key,
                "value": o.value,
                "aux": list(o.aux),
                "scalars": list(o.scalars),
                "score_mod": str(o.program),
                "needs": list(arguments.needs),
                **dict(zip(LENGTHS, o.lengths, strict=True)),
                "page_table": o.page_table,
                **arguments.options,
            }
        )

    def _in_order(self, named: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        options = {name: named[name] for name in self.keywords if name in named}
        return tuple(named[name] for name in self.positional), options

    def register(
        self, library: torch.library.Library, key: str, run: Implementation, fake: Implementation
    ) -> None:
        """Define the operator: `run` is for the dispatch key, `fake` for fake tensors."""
        bound = lambda *a, **k: run(self.bind(*a, **k))
        faked = lambda *a, **k: fake(self.bind(*a, **k))
        operators.define(library, self.schema, bound, faked, key, TAGS)


def operands_of(
    query: Any,
    key: Any,
    value: Any,
    aux: Sequence[Any],
    scalars: Sequence[Any],
    score_mod: str,
    *lengths: Any,
) -> Operands[Any]:
    """Operands in the order of a schema; lengths as far as given."""
    # AOTInductor's executor hands an empty list over as None (torch 2.11, 2.13).
    program = ScoreMod.parse(score_mod)
    return Operands(query, key, value, aux or [], scalars or [], program, *lengths)


ATTENTION = Signature("attention", pages=True)
BACKWARD = Signature("attention_backward", backward=True)
_LIBRARY = torch.library.Library("gdpa", "DEF")


def _note_dtype(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.dtype = inputs[0].dtype


# A copy that the backward may rely on, in one pass with a cast. A clone would not do: where a graph
# is partitioned, the backward may take it again, from a tensor that was changed since.
operators.define(
    _LIBRARY,
    "kept(Tensor x, ScalarType? dtype=None) -> Tensor",
    lambda x, dtype=None: x.to(dtype or x.dtype, copy=True),
    lambda x, dtype=None: torch.empty_like(x, dtype=dtype),
    backward=lambda ctx, grad: (grad.to(ctx.dtype), None),
    save=_note_dtype,
)


# What a dropout with the rate p keeps of a tensor. It is traced and read, and never run.
operators.define(
    _LIBRARY,
    "dropout_mask(Tensor x, float p) -> Tensor",
    lambda x, p: torch.empty_like(x, dtype=torch.bool),
    lambda x, p: torch.empty_like(x, dtype=torch.bool),
)


def no_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """The op has no autocast rule: operands are computed with as they come."""
    known = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if known else nullcontext()


def _attention(arguments: Arguments[Tensor]) -> Any:
    check(arguments.operands)
    with no_autocast(arguments.operands.query.device):
        return reference(arguments.operands)


def _attention_backward(arguments: Arguments[Tensor]) -> list[Tensor]:
    operands, needs = arguments.operands, arguments.needs
    with no_autocast(operands.query.device):
        grads = reference_backward(arguments.grad_out, operands, needs)
    strides = [s for s, need in zip(_strides(operands), needs, strict=True) if need]
    return [
        grad if grad.stride() == s else grad.new_empty_strided(grad.shape, s).copy_(grad)
        for grad, s in zip(grads, strides, strict=True)
    ]


def fake_output(arguments: Arguments[Tensor]) -> Any:
    """The result of a forward operator on fake tensors, of whatever device."""
    o = arguments.operands
    check(o)
    size = output_shape(o)
    out = o.value.new_empty(size)
    if o.program.summed is None:
        return out
    return out, o.value.new_empty(size[:-1], dtype=compute_dtype(o.query.dtype))


def fake_gradients(arguments: Arguments[Tensor]) -> list[Tensor]:
    """The gradients of a backward operator on fake tensors. Checked also where the operator is
    called without the forward: sizes that agree are one.
    """
    check(arguments.operands)
    leaves = zip(arguments.operands.differentiable, arguments.needs, strict=True)
    return [t.new_empty(t.shape) for t, need in leaves if need]


def laid_gradients(arguments: Arguments[Tensor]) -> list[Tensor]:
    """The same, where those of query, key and value lie as their operands (`dense_strides`). So the
    views that lead from a projection [B,N,H·D] to them lead back without a copy.
    """
    operands = arguments.operands
    check(operands)
    leaves = zip(operands.differentiable, _strides(operands), arguments.needs, strict=True)
    return [t.new_empty_strided(t.shape, strides) for t, strides, need in leaves if need]


def _strides(o: Operands[Tensor]) -> list[tuple[Any, ...]]:
    """Of the gradients. Those of the program's operands are contiguous."""
    own = [shapes.dense_strides(t) for t in (o.query, o.key, o.value)]
    return own + [shapes.contiguous_strides(t.shape) for t in o.aux]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.set_materialize_grads(False)
    arguments = ATTENTION.bind(*inputs)
    o = arguments.operands
    if o.page_table is not None:
        raise GDPAError("gdpa::attention has no gradient of keys in pages")
    ctx.save_for_backward(o.query, o.key, o.value, o.cu_seqlens_q, o.cu_seqlens_k, *o.aux)
    ctx.scalars, ctx.program, ctx.longest = o.scalars, o.program, o.lengths[2:]
    ctx.options = arguments.options


def _backward(ctx: Any, grad_out: Any, grad_sums: Any = None) -> tuple[Any, ...]:
    query, key, value, cu_seqlens_q, cu_seqlens_k, *aux = ctx.saved_tensors
    offsets = (cu_seqlens_q, cu_seqlens_k)
    operands = Operands(query, key, value, aux, ctx.scalars, ctx.program, *offsets, *ctx.longest)
    aux_needs = ctx.needs_input_grad[3]
    if isinstance(aux_needs, bool):
        aux_needs = [aux_needs] * len(aux)
    needs = [*ctx.needs_input_grad[:3], *aux_needs]
    if ctx.program.summed is not None:
        operands, reached = with_cotangents(operands, grad_out, grad_sums)
        needs = list(map(operator.and_, needs, reached))
    if grad_out is None:
        grad_out = value.new_zeros(output_shape(operands))
    asked = (*needs, *[False] * (len(operands.aux) - len(aux)))
    args, kwargs = BACKWARD.call(Arguments(operands, grad_out, asked, ctx.options))
    results = iter(torch.ops.gdpa.attention_backward(*args, **kwargs))
    grads = [next(results) if need else None for need in needs]
    # torch asks for the structure of the inputs: a list without tensors is empty or None.
    no_scalars: list[Any] | None = None if ctx.scalars else []
    # The dispatcher leaves out trailing arguments that have their default values.
    rest = [None] * (len(ctx.needs_input_grad) - 5)
    return (*grads[:3], grads[3:], no_scalars, *rest)


def with_cotangents(
    o: Operands[Tensor], grad_out: Tensor | None, grad_sums: Tensor | None
) -> tuple[Operands[Tensor], list[bool]]:
    """(the operands of a backward of output and row sums, which of query, key, value and aux have
    a gradient). A gradient is None where nothing is made of that result.
    """
    program, out = o.program, grad_out is not None
    terms = ([program.weight] if out else []) + list(
        program.roots[1:] if grad_sums is not None else []
    )
    leaves = [SCORE, *(aux_leaf(n, spec.leaf_kind) for n, spec in enumerate(program.aux))]
    slopes = [differentiate(term, leaves) for term in terms]
    score, *others = (any(x[n] is not None for x in slopes) for n in range(len(leaves)))
    reached = [score, score, out, *others]
    if not out:
        o = replace(o, program=replace(program, weight=const(0.0)))
    if grad_sums is None or not any(x is not None for x in slopes[-1]):  # they may be detached
        return replace(o, program=replace(o.program, summed=None)), reached
    program = o.program.with_row_gradient(row_sums_spec(o).access)
    return replace(o, aux=[*o.aux, grad_sums], program=program), reached


def _no_double_backward(ctx: Any, *grads: Any) -> None:
    raise GDPAError(
        "gdpa::attention has no second derivative: wrap the part of the model that needs one in "
        "torch._dynamo.disable(), or compile it with another backend"
    )


FORWARDS = (ATTENTION, ATTENTION.with_sums)
BACKWARD.register(_LIBRARY, "CompositeExplicitAutograd", _attention_backward, laid_gradients)
for forward in FORWARDS:
    forward.register(_LIBRARY, "CompositeExplicitAutograd", _attention, fake_output)
    torch.library.register_autograd(
        f"gdpa::{forward.name}", _backward, setup_context=_setup_context, lib=_LIBRARY
    )
torch.library.register_autograd("gdpa::attention_backward", _no_double_backward, lib=_LIBRARY)


# The CPU kernel's operators are known to torch as soon as the package is imported: packages of
# AOTInductor and saved functions look their operators up when they are loaded. What runs them is
# imported at the first call.
def _blocked() -> Any:
    return importlib.import_module(f"{__package__}.lowerings.blocked")


# skip: leave out blocks where all scores are masked
CPU_FORWARD = Signature("attention_cpu", keywords=("skip",), pages=True)
CPU_BACKWARD = Signature("attention_cpu_backward", backward=True, keywords=("skip",))
for forward in (CPU_FORWARD, CPU_FORWARD.with_sums):
    forward.register(_LIBRARY, "CPU", lambda call: _blocked().forward_on_cpu(call), fake_output)
CPU_BACKWARD.register(
    _LIBRARY, "CPU", lambda call: _blocked().backward_on_cpu(call), fake_gradients
)
