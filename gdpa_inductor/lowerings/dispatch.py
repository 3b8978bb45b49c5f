"""The Inductor lowerings of gdpa::attention and gdpa::attention_backward.

Each asks `choose` for the kernel of its operands and hands them to that kernel's module; both get
and give Inductor IR. Where there is no kernel, or its lowering fails, the reference formula is
traced to ATen and lowered in place of the op: slower, with N×M intermediates, never wrong. That is
counted under `fallback`, with a reason in the log; `strict` raises.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .._compat import counters
from ..ops import reference, reference_backward
from ..options import KernelOptions, Options
from ..problem import Problem
from ..rejection import GDPAError
from ..score_mod import ScoreMod
from . import _compat
from .choose import choose

log = logging.getLogger("gdpa_inductor")


def register() -> None:
    """Install the lowerings; a second call changes nothing."""
    _compat.register_lowering(torch.ops.gdpa.attention.default, _attention)
    _compat.register_lowering(torch.ops.gdpa.attention_backward.default, _attention_backward)


def _attention(
    query: Any,
    key: Any,
    value: Any,
    aux: Sequence[Any],
    scalars: Sequence[Any],
    score_mod: str,
    kernel_options: str,
) -> Any:
    program, options = ScoreMod.parse(score_mod), KernelOptions.parse(kernel_options)

    def formula(query: Any, key: Any, value: Any, *rest: Any) -> Any:
        return reference(query, key, value, rest[: len(aux)], rest[len(aux) :], program)

    operands = (query, key, value, aux, scalars)
    return _lower("lower", formula, operands, (program, options), program, options)


def _attention_backward(
    grad_out: Any, query: Any, key: Any, value: Any, aux: Sequence[Any], scalars: Sequence[Any],
    score_mod: str, needs: Sequence[bool], kernel_options: str,
) -> Any:  # fmt: skip
    program, options = ScoreMod.parse(score_mod), KernelOptions.parse(kernel_options)

    def formula(grad_out: Any, query: Any, key: Any, value: Any, *rest: Any) -> Any:
        return reference_backward(
            grad_out, query, key, value, rest[: len(aux)], rest[len(aux) :], program, needs
        )

    operands = (grad_out, query, key, value, aux, scalars)
    return _lower("lower_backward", formula, operands, (program, needs, options), program, options)


def _lower(
    entry: str,
    formula: Callable[..., Any],
    operands: tuple[Any, ...],
    settings: tuple[Any, ...],
    program: ScoreMod,
    options: KernelOptions,
) -> Any:
    """Run `entry` of the kernel's module on the operands, or inline the formula."""
    fakes = _compat.lowered_node_values()[: len(operands)]
    flat = [*operands[:-2], *operands[-2], *operands[-1]]
    flat_fakes = [*fakes[:-2], *fakes[-2], *fakes[-1]]
    query, key, value, aux = fakes[-5:-1]
    problem = Problem.of(query, key, value, aux, program, training=entry == "lower_backward")
    choice = choose(problem, Options(kernel=options.kernel, profit=False))
    if not choice:
        return _inline(formula, flat, flat_fakes, str(choice), options)
    if choice.kernel == "reference":
        return _compat.inline_formula(formula, flat, flat_fakes)
    try:
        module = importlib.import_module(f".{choice.kernel}", __package__)
        result = getattr(module, entry)(*operands, *settings)
    except Exception as error:
        log.debug("the %s lowering of %s failed", choice.kernel, program, exc_info=True)
        return _inline(formula, flat, flat_fakes, f"{type(error).__name__}: {error}", options)
    counters["gdpa"][f"lowered_{choice.kernel}"] += 1
    log.info("%s lowered to the %s kernel: %s", entry, choice.kernel, program)
    return result


def _inline(
    formula: Callable[..., Any],
    flat: list[Any],
    fakes: list[Any],
    reason: str,
    options: KernelOptions,
) -> Any:
    """Lower the reference formula in place of the op; say so."""
    counters["gdpa"]["fallback"] += 1
    if options.strict:
        raise GDPAError(f"gdpa.strict: the lowering fell back to the unfused formula: {reason}")
    log.warning("gdpa::attention fell back to the unfused formula: %s", reason)
    return _compat.inline_formula(formula, flat, fakes)
