"""Watching Dynamo (explaining.py): a part of `_compat`, which hands it on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch._dynamo.utils import counters  # a defaultdict(Counter), reset by torch._dynamo.reset


@dataclass(frozen=True)
class FrameFailure:
    """A frame that Dynamo gave up. `location`: "file:line" of what it failed at, or of the
    function.
    """

    name: str
    location: str
    reason: str


@dataclass
class Observed:
    """What Dynamo said in one run. breaks: ("file:line", reason) for each graph break."""

    breaks: list[tuple[str, str]]
    failures: list[FrameFailure]


@contextlib.contextmanager
def dynamo_observed(backend: object, codes: Sequence[Any]) -> Iterator[Observed]:
    """Watch a run under `backend`, and take back what it leaves in Dynamo: cache entries and
    counters.

    codes: frames that Dynamo is to try again even if it skipped them before.
    """
    from torch._C._dynamo import eval_frame
    from torch._dynamo import config, convert_frame, utils

    default = eval_frame._FrameExecStrategy(
        eval_frame._FrameAction.DEFAULT, eval_frame._FrameAction.DEFAULT
    )
    for code in codes:
        eval_frame.set_code_exec_strategy(code, default)
    compiled: dict[Any, None] = {}
    hook = convert_frame.register_bytecode_hook(lambda code, _: compiled.setdefault(code))
    counted = {name: counter.copy() for name, counter in counters.items()}
    breaks_before, metrics_before = (
        len(utils.graph_break_reasons),
        {id(m) for m in utils.get_compilation_metrics()},
    )
    observed = Observed([], [])
    try:
        with config.patch(recompile_limit=1 << 20, accumulated_recompile_limit=1 << 20):
            yield observed
    finally:
        hook.remove()
        reasons = utils.graph_break_reasons[breaks_before:]
        observed.breaks += [(_place(reason.user_stack), reason.reason) for reason in reasons]
        del utils.graph_break_reasons[breaks_before:]
        new = [m for m in utils.get_compilation_metrics() if id(m) not in metrics_before]
        observed.failures += [_failure(m) for m in new if m.fail_type is not None]
        for code in compiled:
            _forget(code, backend)
        counters.clear()
        counters.update(counted)


def _place(stack: Sequence[Any]) -> str:
    frame = stack[-1] if stack else None
    return f"{frame.filename}:{frame.lineno}" if frame else ""


def _failure(metrics: Any) -> FrameFailure:
    at = (metrics.fail_user_frame_filename, metrics.fail_user_frame_lineno)
    file, line = at if at[0] else (metrics.co_filename, metrics.co_firstlineno)
    return FrameFailure(
        str(metrics.co_name), f"{file}:{line}", str(metrics.fail_reason or metrics.fail_type)
    )


class _Anchor:
    """Something that no frame holds, see `_forget`."""


_ANCHOR = _Anchor()


def _forget(code: Any, backend: object) -> None:
    """Make the cache entries of `backend` unusable, and not count against the user's recompile
    limit.
    """
    import weakref

    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
    from torch._dynamo.guards import DeletedGuardManagerWrapper

    for entry in _debug_get_cache_entry_list(code):
        manager = entry.guard_manager
        if (
            backend_of(entry.backend) is backend
            and getattr(manager, "cache_entry", None) is not None
        ):
            deleted = DeletedGuardManagerWrapper("made by gdpa_inductor.explain, for one run")
            # The limit counts entries whose identity guards hold in the frame: here one holds in
            # none.
            deleted.id_matched_objs = {"<explained>": weakref.ref(_ANCHOR)}
            manager.extra_state.invalidate(manager.cache_entry, deleted)


def backend_of(wrapped: Any) -> Any:
    """The callable that the user gave, below torch.compile's wrappers."""
    while True:
        inner = getattr(wrapped, "_torchdynamo_orig_backend", None) or getattr(
            wrapped, "compiler_fn", None
        )
        if inner is None:
            return wrapped
        wrapped = inner
