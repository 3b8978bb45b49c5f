"""The signatures of the operators, and `Arguments`: the arguments of one call.

gdpa::attention and gdpa::attention_backward have forms for single backends, such as
gdpa::attention_cpu. All take the same operands, and differ in their options. The order of a schema
is part of exported programs and must not change.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch

from ._compat import operators
from .operands import Operands
from .program.score_mod import ScoreMod

T = TypeVar("T")
OPERANDS = ("query", "key", "value", "aux", "scalars", "score_mod")
LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
DENSE = (None, None, 0, 0)  # lengths where none are given; they end every order of arguments
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
    "fast": "bool fast=True",
    "skip": "bool skip=True",
    "ordered": "bool ordered=True",
    "fp32_scores": "bool fp32_scores=False",
    "lengths_vary": "bool lengths_vary=False",
}
TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)


@dataclass(frozen=True)
class Arguments(Generic[T]):
    """One call of an operator. grad_out, needs: of a backward. options: the rest, by name."""

    operands: Operands[T]
    grad_out: Any = None
    needs: tuple[bool, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


Implementation = Callable[[Arguments[Any]], Any]


@dataclass(frozen=True)
class Signature:
    """An operator gdpa::`name`. keywords: its options; without any they are one string,
    `kernel_options`.
    """

    name: str
    backward: bool = False
    keywords: tuple[str, ...] = ()

    @functools.cached_property
    def positional(self) -> tuple[str, ...]:
        cotangent, needs = (("grad_out",), ("needs",)) if self.backward else ((), ())
        options = () if self.keywords else ("kernel_options",)
        return (*cotangent, *OPERANDS, *needs, *options, *LENGTHS)

    @property
    def schema(self) -> str:
        arguments = ", ".join(TYPES[name] for name in self.positional)
        keywords = ", ".join(TYPES[name] for name in self.keywords)
        returns = "Tensor[]" if self.backward else "Tensor"
        return f"{self.name}({arguments}{', *, ' + keywords if keywords else ''}) -> {returns}"

    @property
    def op(self) -> Any:
        return getattr(torch.ops.gdpa, self.name).default

    def bind(self, *args: Any, **kwargs: Any) -> Arguments[Any]:
        """Arguments as the dispatcher hands them over: trailing defaults are left out."""
        if len(args) < len(self.positional):
            args, kwargs = self._completed(args, kwargs)
        first = 1 if self.backward else 0
        last = first + len(OPERANDS)
        operands = operands_of(*args[first:last], *args[-len(LENGTHS) :])
        options = kwargs if self.keywords else {"kernel_options": args[-len(LENGTHS) - 1]}
        if not self.backward:
            return Arguments(operands, options=options)
        return Arguments(operands, args[0], tuple(args[last]), options)

    def _completed(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Every positional argument by its place, and the options that are given by name."""
        missing = len(self.positional) - len(args)
        if missing <= len(DENSE) and kwargs.keys().isdisjoint(self.positional):
            return args + DENSE[-missing:], kwargs
        named = {
            **dict(zip(LENGTHS, DENSE, strict=True)),
            **dict(zip(self.positional, args, strict=False)),
            **kwargs,
        }
        return tuple(_ordered(self.positional, named)), _known(self.keywords, kwargs)

    def call(self, arguments: Arguments[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) for the operator."""
        o = arguments.operands
        named: dict[str, Any] = {
            "grad_out": arguments.grad_out,
            "query": o.query,
            "key": o.key,
            "value": o.value,
            "aux": list(o.aux),
            "scalars": list(o.scalars),
            "score_mod": str(o.program),
            "needs": list(arguments.needs),
            **dict(zip(LENGTHS, o.lengths, strict=True)),
            **arguments.options,
        }
        return tuple(_ordered(self.positional, named)), _known(self.keywords, named)

    def register(
        self, library: torch.library.Library, key: str, run: Implementation, fake: Implementation
    ) -> None:
        """Define the operator: `run` for a dispatch key, and `fake` on fake tensors."""
        library.define(self.schema, tags=TAGS)
        torch.library.impl(library, self.name, key)(lambda *a, **k: run(self.bind(*a, **k)))
        operators.register_fake(library, self.name, lambda *a, **k: fake(self.bind(*a, **k)))


def operands_of(
    query: Any, key: Any, value: Any, aux: Sequence[Any], scalars: Sequence[Any], score_mod: str,
    *lengths: Any,
) -> Operands[Any]:  # fmt: skip
    """Operands in the order of a schema; lengths as far as given."""
    # AOTInductor's executor hands an empty list over as None (torch 2.11, 2.13).
    program = ScoreMod.parse(score_mod)
    return Operands(query, key, value, aux or [], scalars or [], program, *lengths)


def _ordered(names: Iterable[str], named: Mapping[str, Any]) -> list[Any]:
    return [named[name] for name in names]


def _known(names: Iterable[str], named: Mapping[str, Any]) -> dict[str, Any]:
    return {name: named[name] for name in names if name in named}
