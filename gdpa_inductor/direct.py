"""`attention` outside of a compiled model: compiled alone, at its first call of a kind, and kept.

A kind is what decides on the kernel: the code of the mods, the dtype, heads and head dims. Dynamo
guards the rest, and sees to it that sizes which vary are compiled once for all.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ._compat import autograd
from .rejection import GDPAError

log = logging.getLogger("gdpa_inductor")

_KINDS = 256
_RETRY = 60.0  # seconds
_failed: dict[object, float] = {}


def can_be_compiled(operands: Sequence[Tensor]) -> bool:
    """Whether the call is one of plain or nested tensors, which nothing observes or transforms."""
    return (
        all(
            (type(x) in (Tensor, torch.nn.Parameter) or x.is_nested)
            and x.dim() >= 3
            and x.device.type in ("cpu", "cuda")
            for x in operands
        )
        and not torch.jit.is_tracing()
        and not autograd.is_observed()
    )


def compiled(formula: Callable[..., Tensor], arguments: Sequence[Any]) -> Tensor:
    """`formula(*arguments)` as one fused operator; as it is where that cannot be compiled.

    arguments: query, key, value, score_mod and mask_mod first.

    Raises:
        GDPAError: under `gdpa.strict`, which only the environment can set here.
    """
    kind = _kind(*arguments[:5])
    if kind in _failed and time.monotonic() - _failed[kind] < _RETRY:
        return formula(*arguments)
    from ._compat import dynamo

    try:
        return _alone(formula, kind)(*arguments)
    except dynamo.compile_errors() as error:
        failure = error
    cause = getattr(failure, "inner_exception", failure)
    if isinstance(cause, GDPAError):
        raise cause
    made = formula(*arguments)  # which says so where the arguments are wrong
    if kind not in _failed:
        reason = str(cause).strip().partition("\n")[0]
        log.warning("attention is not fused, as it could not be compiled: %s", reason)
    _failed[kind] = time.monotonic()
    return made


def _kind(query: Tensor, key: Tensor, value: Tensor, *mods: Any) -> tuple[object, ...]:
    heads = -2 if query.dim() == 3 or query.is_nested else 1
    return (
        *[getattr(mod, "__code__", type(mod)) for mod in mods],
        *[(x.dim(), x.is_nested, x.dtype, x.device.type, x.shape[-1]) for x in (query, key, value)],
        query.shape[heads],
    )


@functools.lru_cache(_KINDS)
def _alone(formula: Callable[..., Tensor], kind: object) -> Callable[..., Tensor]:
    from ._compat import dynamo
    from .backend import gdpa_backend

    return dynamo.compiled_alone(formula, gdpa_backend, {"gdpa.profit": False})
