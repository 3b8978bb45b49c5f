"""`attention` outside of a compiled model: compiled alone, at its first call of a kind, and kept.

A kind is what decides on the kernel: the code of the mods, the dtype, heads and head dims. Dynamo
guards the rest, and sees to it that sizes which vary are compiled once for all.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor

from ._compat import autograd
from .options import Options
from .rejection import GDPAError
from .scalars import ELEMENTWISE

log = logging.getLogger("gdpa_inductor")

Kind = tuple[object, ...]

_KINDS = 256
_PLAIN = (Tensor, torch.nn.Parameter)
_PARTS = ("nn", "functional", "special", "pi", "e", "inf", "dtype", "device")  # of modules
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


def reads_arguments_alone(*mods: Any) -> bool:
    """Whether functions, and those that they call, compute with elements of their arguments and
    numbers alone.

    So nothing is looked up by position, and any bound on the lengths gives the same result. False
    where it cannot be told quickly.
    """
    reached, seen = list(mods), set[object]()
    for value in reached:
        if isinstance(value, FunctionType) and not str(value.__module__).startswith("torch."):
            if value.__dict__ or len(reached) > _KINDS:
                return False
            if value not in seen:
                seen.add(value)
                reached += _reached(value)
        elif not _is_plain(value):
            return False
    return True


def _reached(function: FunctionType) -> Iterator[Any]:
    """The values that a function's code can name; NotImplemented for what is not known."""
    codes, own = [function.__code__], function.__globals__
    for code in codes:
        codes += [x for x in code.co_consts if isinstance(x, CodeType)]
        for name in code.co_names:
            known = name in ELEMENTWISE or name in _PARTS
            yield own.get(name, None if known else getattr(torch, name, NotImplemented))
    cells = function.__closure__ or ()
    yield from (cell.cell_contents if cell != CellType() else NotImplemented for cell in cells)
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()


def _is_plain(value: Any) -> bool:
    """Whether a value is a number, a module of torch or math, or a function of elements there."""
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] in ("torch", "math")
    if isinstance(value, (BuiltinFunctionType, FunctionType)):  # no method of a tensor
        is_free = isinstance(getattr(value, "__self__", None), (type, ModuleType, type(None)))
        return is_free and value.__name__ in ELEMENTWISE
    return value is None or type(value) in (int, float, bool, str, torch.dtype)


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

    _new.add(kind)
    return dynamo.compiled_alone(formula, _backend, {"gdpa.profit": False})


def _backend(gm: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
    """The backend "gdpa". It finds no candidate only where a mod had to be mapped (`scalars`)."""
    from ._compat import dynamo
    from .backend import gdpa_backend

    candidates = lambda: [dynamo.counters["gdpa"][name] for name in ("matched", "rejected")]
    before = candidates()
    compiled = gdpa_backend(gm, inputs, **options)
    if candidates() == before:
        reason = "attention is not fused: a mod calls what may see more than one element"
        if Options.make({}).strict:
            raise GDPAError(f"gdpa.strict: {reason}")
        log.warning(reason)
    return compiled


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
