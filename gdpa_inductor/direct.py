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
from .options import Options
from .rejection import GDPAError

log = logging.getLogger("gdpa_inductor")

Kind = tuple[object, ...]

_KINDS = 256
_PLAIN = (Tensor, torch.nn.Parameter)
_RETRY = 60.0  # seconds
_LONG = 5.0  # seconds; a first call that takes longer says so
_failed: dict[Kind, float] = {}
_new: set[Kind] = set()  # which no call has been compiled for yet


def kind_of(operands: Sequence[Tensor], *mods: Any) -> Kind | None:
    """The kind of a call; None unless it is one of plain tensors, which nothing observes or
    transforms.
    """
    parts: list[object] = [getattr(mod, "__code__", type(mod)) for mod in mods]
    for x in operands:
        shape = x.shape
        if type(x) not in _PLAIN or len(shape) < 3:
            return None
        parts += (len(shape), shape[1], shape[-1])
    # those of the last operand: where others differ, the formula says so
    in_memory = x.is_cpu
    if not (in_memory or x.is_cuda):
        return None
    parts += (x.dtype, in_memory)
    return None if torch.jit.is_tracing() or autograd.is_observed() else tuple(parts)


def compiled(kind: Kind, formula: Callable[..., Tensor], arguments: Sequence[Any]) -> Tensor:
    """`formula(*arguments)` as one fused operator; as it is where that cannot be compiled.

    Raises:
        GDPAError: under `gdpa.strict`, which only the environment can set here.
    """
    if _failed and time.monotonic() - _failed.get(kind, -_RETRY) < _RETRY:
        return formula(*arguments)
    start = time.monotonic()
    try:
        result = _alone(formula, kind)(*arguments)
        if _new:
            _called(kind, time.monotonic() - start)
        return result
    except Exception as error:
        from ._compat import dynamo

        if not isinstance(error, dynamo.compile_errors()):
            if not dynamo.is_disabled():
                raise
            _failed[kind] = time.monotonic()
            return formula(*arguments)
        failure = error
    cause = getattr(failure, "inner_exception", failure)
    if isinstance(cause, GDPAError):
        raise cause
    unfused = formula(*arguments)  # which says so where the arguments are wrong
    if kind not in _failed:
        reason = str(cause).strip().partition("\n")[0]
        log.warning("attention is not fused, as it could not be compiled: %s", reason)
    _failed[kind] = time.monotonic()
    return unfused


@functools.lru_cache(_KINDS)
def _alone(formula: Callable[..., Tensor], kind: Kind) -> Callable[..., Tensor]:
    from ._compat import dynamo
    from .backend import gdpa_backend

    _new.add(kind)
    return dynamo.compiled_alone(formula, gdpa_backend, {"gdpa.profit": False})


def _called(kind: Kind, seconds: float) -> None:
    """Log the first call of a kind that has compiled for long."""
    if kind not in _new:
        return
    _new.discard(kind)
    if seconds > _LONG and Options.make({}).summary:
        log.warning(
            "gdpa: the first attention call of its kind took %.0f s, most of it to compile; "
            "later calls run what was compiled, and later processes find it in Inductor's cache",
            seconds,
        )
