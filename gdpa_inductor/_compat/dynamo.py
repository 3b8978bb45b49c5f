"""Dynamo: its counters, what it stores on a graph's inputs, and observing one run.

Importing this module loads Dynamo. `explain` observes a run by `dynamo_observed`. It removes
afterwards what the run left in Dynamo: cache entries, counters, graph breaks.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch._dynamo import register_backend
from torch._dynamo.utils import counters  # a defaultdict(Counter), which users may clear
from torch._guards import CompileContext

__all__ = ["counters", "register_backend"]


@dataclass(frozen=True)
class FrameFailure:
    """A frame that Dynamo gave up."""

    name: str
    location: str  # the "file:line" of the failure, or of the function
    reason: str


@dataclass
class Observed:
    """What Dynamo reported in one run."""

    breaks: list[tuple[str, str]]  # ("file:line", reason) for each graph break
    failures: list[FrameFailure]


def without_limit() -> contextlib.AbstractContextManager[Any]:
    """A context without a limit of recompiles, after which Dynamo runs a function in eager."""
    from torch._dynamo import config

    often = 1 << 20
    patch: contextlib.AbstractContextManager[Any] = config.patch(
        recompile_limit=often, accumulated_recompile_limit=often
    )
    return patch


_numbers = itertools.count()


def compiled_alone(
    function: Callable[..., Any], backend: Callable[..., Any], options: dict[str, Any]
) -> Callable[..., Any]:
    """`torch.compile` of a copy of a function: what Dynamo keeps for others has no part in it.

    A graph break is an error of `compile_errors`. Calls do not check whether the globals of the
    function's module and package are what they were.
    """
    assert isinstance(function, FunctionType)
    # Dynamo keeps graphs by code object, and the sizes that it saw by file, line and name.
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_numbers)}")
    copy = FunctionType(code, function.__globals__, code.co_name)
    has_limit = "recompile_limit" in inspect.signature(torch.compile).parameters
    more: dict[str, Any] = {"recompile_limit": 64} if has_limit else {}  # from torch 2.12 on
    package = function.__module__.partition(".")[0]
    compiled: Callable[..., Any] = torch.compile(
        copy,
        backend=backend,
        fullgraph=True,
        options={**options, "guard_filter_fn": functools.partial(_needed, package)},
        **more,
    )
    return compiled


def _needed(package: str, guards: Sequence[Any]) -> list[bool]:
    """For each guard, whether it is on more than globals of the compiled module or the package."""
    # Dynamo names a global of another module "G['__import_name_dot_part'].global".
    own = re.compile(rf"(dict\()?G\['(?!__)|G\['__import_{package}(_dot_\w+)?'\]")
    return [not (guard.is_global and own.match(guard.name)) for guard in guards]


def is_disabled() -> bool:
    """Whether nothing is compiled, as under `TORCH_COMPILE_DISABLE=1`."""
    # From torch 2.13 on a call with `fullgraph` raises an error then.
    from torch._dynamo import config

    return bool(config.disable)


def compile_errors() -> tuple[type[Exception], ...]:
    """What calling a compiled function raises where Dynamo or the backend fails."""
    from torch._dynamo import exc

    return exc.TorchDynamoException, exc.FailOnRecompileLimitHit


def is_traced() -> bool:
    """Whether compiled functions raise now, because torch.fx traces (see `is_of_tracing`)."""
    from torch.fx import _symbolic_trace

    return bool(_symbolic_trace.is_fx_symbolic_tracing())


def is_of_tracing(error: Exception) -> bool:
    """Whether a compiled function raised it because torch.fx traces: in this thread, or until torch
    2.13 in any, as when another thread compiles. In torch 2.11 it leaves Dynamo in another
    state, so `is_traced` is to be asked before.
    """
    return isinstance(error, RuntimeError) and "FX to symbolically trace" in str(error)


@contextlib.contextmanager
def dynamo_observed(backend: object, codes: Sequence[Any]) -> Iterator[Observed]:
    """Observe a run under `backend`, and remove what it leaves in Dynamo: cache entries, counters.

    codes: Frames that Dynamo tries again, even if it skipped them before.
    """
    from torch._dynamo import convert_frame, utils

    _retry(codes)
    compiled: dict[Any, None] = {}
    hook = convert_frame.register_bytecode_hook(lambda code, _: compiled.setdefault(code))
    counted = {name: counter.copy() for name, counter in counters.items()}
    breaks_before = len(utils.graph_break_reasons)
    earlier = utils.get_compilation_metrics()  # alive, so that no new one has the id of an old one
    limit = utils._compilation_metrics.maxlen
    utils.set_compilation_metrics_limit(1 << 16)  # else the first failures of many frames are lost
    observed = Observed([], [])
    try:
        with without_limit():
            yield observed
    finally:
        hook.remove()
        reasons = utils.graph_break_reasons[breaks_before:]
        observed.breaks += [(_place(reason.user_stack), reason.reason) for reason in reasons]
        del utils.graph_break_reasons[breaks_before:]
        old = set(map(id, earlier))
        new = [m for m in utils.get_compilation_metrics() if id(m) not in old]
        utils.set_compilation_metrics_limit(limit)
        observed.failures += [_failure(m) for m in new if m.fail_type is not None]
        for code in compiled:
            _forget(code, backend)
        counters.clear()
        counters.update(counted)


def _retry(codes: Sequence[Any]) -> None:
    """Let Dynamo try frames again that it has marked as skipped."""
    from torch._C._dynamo import eval_frame

    default = eval_frame._FrameExecStrategy(
        eval_frame._FrameAction.DEFAULT, eval_frame._FrameAction.DEFAULT
    )
    for code in codes:
        eval_frame.set_code_exec_strategy(code, default)


_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_PYTHON = os.path.join(os.path.dirname(os.__file__), "")


def is_torchs(location: str) -> bool:
    """Whether "file:line" is in torch itself, or in Python's library, which torch calls."""
    python = location.startswith(_PYTHON) and "site-packages" not in location
    return python or location.startswith(_TORCH)


def _place(stack: Sequence[Any]) -> str:
    """The innermost frame outside of torch, else the innermost."""
    frames = [f"{frame.filename}:{frame.lineno}" for frame in stack]
    own = [frame for frame in frames if not is_torchs(frame)]
    return (own or frames or [""])[-1]


def _failure(metrics: Any) -> FrameFailure:
    at = (metrics.fail_user_frame_filename, metrics.fail_user_frame_lineno)
    file, line = at if at[0] else (metrics.co_filename, metrics.co_firstlineno)
    return FrameFailure(
        str(metrics.co_name), f"{file}:{line}", str(metrics.fail_reason or metrics.fail_type)
    )


class _Anchor:
    """No frame holds one, see `_forget`."""


_ANCHOR = _Anchor()


def _forget(code: Any, backend: object) -> None:
    """Make the cache entries of `backend` unusable, and let no recompile limit count them."""
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
    from torch._dynamo.guards import DeletedGuardManagerWrapper

    for entry in _debug_get_cache_entry_list(code):
        manager = entry.guard_manager
        if (
            backend_of(entry.backend) is backend
            and getattr(manager, "cache_entry", None) is not None
        ):
            deleted = DeletedGuardManagerWrapper("made by gdpa_inductor.explain, for one run")
            # The limit counts entries whose identity guards hold in the frame; this holds in none.
            deleted.id_matched_objs = {"<explained>": weakref.ref(_ANCHOR)}
            manager.extra_state.invalidate(manager.cache_entry, deleted)


def compile_lock() -> threading.RLock:
    """Dynamo holds it while it compiles."""
    from torch._dynamo import convert_frame

    return convert_frame.compile_lock


def backend_of(wrapped: Any) -> Any:
    """The callable that the user gave, below torch.compile's wrappers."""
    while True:
        inner = getattr(wrapped, "_torchdynamo_orig_backend", None) or getattr(
            wrapped, "compiler_fn", None
        )
        if inner is None:
            return wrapped
        wrapped = inner


def uncompiled(target: Any) -> Any:
    """The user's function or module, below torch.compile's wrappers."""
    return (
        getattr(target, "_orig_mod", None)
        or getattr(target, "_torchdynamo_orig_callable", None)
        or target
    )


def settings(target: Any) -> tuple[bool | None, dict[str, Any]]:
    """What torch.compile was given for a function or module: `dynamic`, and `options` if any."""
    # torch.compile keeps what it was given in the closure of its wrapper, or in the wrapper of a
    # module, and has no call to ask for it.
    run = getattr(target, "_compiled_call_impl", None) or target  # of Module.compile
    wrapped = getattr(getattr(target, "dynamo_ctx", None), "callback", None)
    if isinstance(run, FunctionType) and hasattr(run, "_torchdynamo_orig_callable"):
        cells = zip(run.__code__.co_freevars, run.__closure__, strict=True)
        wrapped = next((x.cell_contents for name, x in cells if name == "callback"), wrapped)
    while (inner := getattr(wrapped, "_torchdynamo_orig_backend", None)) is not None:
        wrapped = inner
    arguments = getattr(wrapped, "kwargs", {})
    return getattr(wrapped, "dynamic", None), arguments.get("options") or {}


@contextlib.contextmanager
def compiled_calls_set_aside(target: Any) -> Iterator[None]:
    """A context in which modules that `Module.compile` has compiled run as they were written."""
    modules = list(target.modules()) if isinstance(target, torch.nn.Module) else []
    calls = [
        (x, x.__dict__.pop("_compiled_call_impl"))
        for x in modules
        if "_compiled_call_impl" in x.__dict__
    ]
    try:
        yield
    finally:
        for module, call in calls:
            module._compiled_call_impl = call


def captured_graph() -> torch.fx.Graph | None:
    """The whole captured graph of the current compile, or None outside of one."""
    from torch._dynamo.symbolic_convert import tls

    translator = getattr(tls, "current_tx", None)
    return None if translator is None else translator.output.graph


def stored_attributes() -> dict[int, str]:
    """The attributes that the current compile sets, by the identity of a fake that each keeps."""
    from torch._dynamo.symbolic_convert import tls
    from torch._dynamo.variables.base import VariableTracker

    translator = getattr(tls, "current_tx", None)
    names: dict[int, str] = {}
    effects = {} if translator is None else translator.output.side_effects.store_attr_mutations
    for attributes in effects.values():
        for name, value in attributes.items():

            def note(part: Any, name: str = name) -> None:
                proxy = getattr(part, "proxy", None)
                if proxy is not None:
                    names.setdefault(id(proxy.node.meta.get("example_value")), name)

            VariableTracker.visit(note, value)
    # Values without a fake are all None here, and one name would stand for all of them.
    names.pop(id(None), None)
    return names


def frame_under_way() -> str:
    """A name of the frame that is compiled, the same in recompiles; "" outside of one."""
    frame_id = getattr(CompileContext.current_compile_id(), "frame_id", None)
    return "" if frame_id is None else str(frame_id)


def compile_under_way() -> str:
    """A name of the current compile, the same when Dynamo begins it again; "" outside of one."""
    compile_id = CompileContext.current_compile_id()
    return "" if compile_id is None else f"{compile_id.frame_id}/{compile_id.frame_compile_id}"


@dataclass(frozen=True)
class CompiledCall:
    """A call of what torch.compile returned, while it runs."""

    model: object  # it stands for that function or module, and lives as long
    at_end: list[Callable[[], object]]  # called when the call ends; more may be appended


def outermost_call() -> CompiledCall | None:
    """The compiled call under way, or the one around it; None outside of one."""
    # Dynamo compiles a frame when it is called, so the call is among the frames above.
    outermost, frame = None, sys._getframe()
    while (above := frame.f_back) is not None:
        frame, code = above, above.f_code
        if code.co_name == "compile_wrapper" and is_torchs(code.co_filename):
            outermost = frame
    names = outermost.f_locals if outermost else {}
    return CompiledCall(names["self"], names["cleanups"]) if "cleanups" in names else None


def is_cut_by_ddp() -> bool:
    """Whether DDP cuts the graph of the current compile into parts."""
    from torch._dynamo.utils import get_optimize_ddp_mode

    if not torch.distributed.is_available() or get_optimize_ddp_mode() != "ddp_optimizer":
        return False
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel._get_active_ddp_module() is not None


def is_dynamo_body(gm: torch.fx.GraphModule) -> bool:
    """Whether a graph is nested, such as a checkpoint body: its inputs are not the user's."""
    inputs = [node.meta for node in gm.graph.nodes if node.op == "placeholder"]
    return any("example_value" in meta for meta in inputs) and not any(
        "grapharg" in meta for meta in inputs
    )


def real_input(node: torch.fx.Node) -> Any:
    """The value that a placeholder was captured with, if Dynamo still holds it."""
    graph_input = node.meta.get("grapharg")
    # Dynamo lets go of it once it has compiled; asked for it then, it raises.
    try:
        return None if graph_input is None else graph_input.example
    except (AssertionError, AttributeError):
        return None


def source_name(node: torch.fx.Node) -> str:
    """The name of an input in Dynamo's guards: `L['self']._modules['layers']…`, or ""."""
    source = getattr(node, "_dynamo_source", None) or getattr(
        node.meta.get("grapharg"), "source", None
    )
    name = getattr(source, "name", "")
    return str(name() if callable(name) else name)
