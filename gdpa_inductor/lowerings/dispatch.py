"""The Inductor lowerings of gdpa::attention and gdpa::attention_backward.

Each asks `choose` for the kernel of its operands and hands them to that kernel's module; both get
and give Inductor IR:

    lower(operands, options) -> output
    lower_backward(grad_out, operands, needs, options) -> the asked gradients

Where there is no kernel, or its lowering fails, the reference formula is traced to ATen and lowered
in place of the op (or called, where sizes are not known before): slower, with N×M intermediates,
never wrong. That is counted under `fallback`, with a reason in the log; `strict` raises.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from .._compat import dynamo, lowering, shapes
from ..ops import Operands, operands_of, reference, reference_backward, score_shape
from ..options import KernelOptions, Options
from ..problem import Problem
from ..rejection import GDPAError
from .choose import choose
from .cute import Unsupported

log = logging.getLogger("gdpa_inductor")


def register() -> None:
    """Install the lowerings; a second call changes nothing."""
    lowering.register_lowering(torch.ops.gdpa.attention.default, _attention)
    lowering.register_lowering(torch.ops.gdpa.attention_backward.default, _attention_backward)


def _attention(
    query: Any, key: Any, value: Any, aux: Sequence[Any], scalars: Sequence[Any],
    score_mod: str, kernel_options: str, *lengths: Any,
) -> Any:  # fmt: skip
    operands = operands_of(query, key, value, aux, scalars, score_mod, *lengths)
    values = lowering.lowered_node_values()
    fakes = operands_of(*values[:6], *values[7:])

    def formula(*flat: Any) -> Any:
        return reference(operands.filled(flat))

    def inline() -> Any:
        if _unknown(fakes):
            eager = torch.ops.gdpa.attention.default
            return lowering.extern_call(eager, *operands.arguments(kernel_options))
        return lowering.inline_formula(formula, operands.flat(), fakes.flat())

    options = KernelOptions.parse(kernel_options)
    return _lower("lower", (operands, options), inline, fakes, options)


def _attention_backward(
    grad_out: Any, query: Any, key: Any, value: Any, aux: Sequence[Any], scalars: Sequence[Any],
    score_mod: str, needs: Sequence[bool], kernel_options: str, *lengths: Any,
) -> Any:  # fmt: skip
    operands = operands_of(query, key, value, aux, scalars, score_mod, *lengths)
    grad, *values = lowering.lowered_node_values()
    fakes = operands_of(*values[:6], *values[8:])

    def formula(grad_out: Any, *flat: Any) -> Any:
        return reference_backward(grad_out, operands.filled(flat), needs)

    def inline() -> Any:
        if _unknown(fakes):
            eager = torch.ops.gdpa.attention_backward.default
            arguments = operands.arguments(list(needs), kernel_options)
            return list(lowering.extern_call(eager, grad_out, *arguments))
        flat, fake = [grad_out, *operands.flat()], [grad, *fakes.flat()]
        return lowering.inline_formula(formula, flat, fake)

    options = KernelOptions.parse(kernel_options)
    settings = (grad_out, operands, needs, options)
    return _lower("lower_backward", settings, inline, fakes, options)


def _unknown(fakes: Operands[Any]) -> bool:
    """Sizes that are known at run time only: Inductor has no product of such matrices (2.13)."""
    return any(shapes.size_hint(size) is None for size in score_shape(fakes))


def _lower(
    entry: str,
    arguments: tuple[Any, ...],
    inline: Callable[[], Any],
    fakes: Operands[Any],
    options: KernelOptions,
) -> Any:
    """Run `entry` of the kernel's module, or inline the formula."""
    problem = Problem.of(fakes, training=entry == "lower_backward")
    choice = choose(problem, Options(kernel=options.kernel, profit=False))
    if not choice:
        return _fall_back(inline, str(choice), options)
    if options.kernel == "cute" != choice.kernel:
        log.warning("asked for the CuTe kernel, but got %s", choice)
    if choice.kernel == "reference":
        return inline()
    try:
        module = importlib.import_module(f".{choice.kernel}", __package__)
        result = getattr(module, entry)(*arguments)
    except Unsupported as refusal:
        log.info("%s goes to the Triton kernel: %s", entry, refusal)
        return _lower(entry, arguments, inline, fakes, replace(options, kernel="triton"))
    except Exception as error:
        log.debug("the %s lowering of %s failed", choice.kernel, fakes.program, exc_info=True)
        return _fall_back(inline, f"{type(error).__name__}: {error}", options)
    dynamo.counters["gdpa"][f"lowered_{choice.kernel}"] += 1
    if problem.jagged:
        dynamo.counters["gdpa"]["lowered_varlen"] += 1
    log.info("%s lowered to the %s kernel: %s", entry, choice.kernel, fakes.program)
    return result


def _fall_back(inline: Callable[[], Any], reason: str, options: KernelOptions) -> Any:
    """Lower the reference formula in place of the op; say so."""
    dynamo.counters["gdpa"]["fallback"] += 1
    if options.strict:
        raise GDPAError(f"gdpa.strict: the lowering fell back to the unfused formula: {reason}")
    log.warning("gdpa::attention fell back to the unfused formula: %s", reason)
    return inline()
