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
_unfused: set[Kind] = set()
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
        if isinstance(value, FunctionType) and not _is_of_torch(value):
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
        for name in code.co_names:  # a global, or an attribute of one or of a value
            yield own.get(name)
            if name not in ELEMENTWISE and name not in _PARTS:
                yield getattr(torch, name, None if name in own else NotImplemented)
    cells = function.__closure__ or ()
    yield from (cell.cell_contents if cell != CellType() else NotImplemented for cell in cells)
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()


def _is_of_torch(function: FunctionType) -> bool:
    return str(function.__globals__.get("__name__")).startswith("torch.")


def _is_plain(value: Any) -> bool:
    """Whether a value is a number, a module of torch or math, or a function of elements there."""
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] in ("torch", "math")
    if isinstance(value, (BuiltinFunctionType, FunctionType)):  # no method of a tensor
        is_free = isinstance(getattr(value, "__self__", None), (type, ModuleType, type(None)))
        return is_free and value.__name__ in ELEMENTWISE
    return value is None or type(value) in (int, float, bool, str, torch.dtype)


class NotFused(Exception):
    """What Inductor would compile has the scores."""


def compiled(
    kind: Kind,
    formula: Callable[..., Tensor],
    arguments: Sequence[Any],
    fused_only: bool = False,
) -> Tensor:
    """`formula(*arguments)` as one fused operator; as it is where that cannot be compiled.

    Raises:
        GDPAError: under `gdpa.strict`, which only the environment can set here.
        NotFused: with `fused_only`, if it would be compiled, and not fused.
    """
    if fused_only and kind in _unfused:
        raise NotFused
    if _failed and time.monotonic() - _failed.get(kind, -_RETRY) < _RETRY:
        return formula(*arguments)
    from ._compat import dynamo

    if dynamo.is_traced():
        return _while_traced(formula, arguments, fused_only)
    start = time.monotonic()
    try:
        result = _alone(formula, kind, fused_only)(*arguments)
        if _new:
            _called(kind, time.monotonic() - start)
        return result
    except Exception as error:
        failure = error
    return _instead(kind, formula, arguments, fused_only, failure)


def _while_traced(
    formula: Callable[..., Tensor], arguments: Sequence[Any], fused_only: bool
) -> Tensor:
    """The result while compiled functions raise. The next call may be fused."""
    if fused_only:
        raise NotFused
    return formula(*arguments)


def _instead(
    kind: Kind,
    formula: Callable[..., Tensor],
    arguments: Sequence[Any],
    fused_only: bool,
    failure: Exception,
) -> Tensor:
    """The result of a call that raised `failure` as it was compiled; or raise, as `compiled`."""
    from ._compat import dynamo

    if dynamo.is_of_tracing(failure):
        return _while_traced(formula, arguments, fused_only)
    if not isinstance(failure, dynamo.compile_errors()):
        if not dynamo.is_disabled():
            raise failure
        _failed[kind] = time.monotonic()
        return formula(*arguments)
    cause = getattr(failure, "inner_exception", failure)
    if isinstance(cause, NotFused):
        _unfused.add(kind)
    if isinstance(cause, (GDPAError, NotFused)):
        raise cause
    unfused = formula(*arguments)  # which says so where the arguments are wrong
    if kind not in _failed:
        reason = str(cause).strip().partition("\n")[0]
        log.warning("attention is not fused, as it could not be compiled: %s", reason)
    _failed[kind] = time.monotonic()
    return unfused


@functools.lru_cache(_KINDS)
def _alone(formula: Callable[..., Tensor], kind: Kind, fused_only: bool) -> Callable[..., Tensor]:
    from ._compat import dynamo

    _new.add(kind)
    backend = functools.partial(_backend, fused_only)
    return dynamo.compiled_alone(formula, backend, {"gdpa.profit": False})


def _backend(
    fused_only: bool, gm: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any
) -> Any:
    """The backend "gdpa". It finds no candidate where a mod had to be mapped (`scalars`)."""
    from ._compat import dynamo, fx
    from .backend import gdpa_backend

    calls = [node.target for node in gm.graph.nodes if node.op == "call_function"]
    is_mapped = any(fx.state_change(target) == "transform" for target in calls)
    before = dynamo.counters["gdpa"]["matched"]
    compiled = gdpa_backend(gm, inputs, **options)
    if fused_only and dynamo.counters["gdpa"]["matched"] == before:
        raise NotFused
    if is_mapped:
        reason = "attention is not fused: a mod draws numbers, or may see more than one element"
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
