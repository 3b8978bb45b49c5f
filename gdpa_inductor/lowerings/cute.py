"""The CuTe DSL lowering for Hopper and Blackwell: one call of a warp-specialised kernel in the
generated code.

`gdpa::attention_cute` and `gdpa::attention_cute_backward` take and give what the public ops do. The
generated code calls them as functions of Python (`Site`), without torch's dispatcher. Code in C++
calls them by name, so importing this module must come before loading generated code from a cache.
cutlass itself is imported when a kernel is compiled, which those on disk need not be. The rules of
`BACKEND` say which problems the kernels do not take, without importing it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .._compat import autograd, inductor, lowering, shapes, templates
from ..kernels.cute.architectures import CONFIGS, config_of
from ..kernels.cute.backward import limits
from ..kernels.cute.config import PACKAGE, VERSIONS, unsupported
from ..kernels.triton.template import Plan
from ..ops import Arguments, Operands, Signature, fake_gradients, fake_output
from ..problem import Problem
from ..program.expr import POSITIONS
from ..program.tile_classes import classify
from ..rejection import Code
from . import triton
from .backends import Backend, Rule, hint
from .call import Call, extern_call, in_order

log = logging.getLogger("gdpa_inductor")
# Where the kernels for Hopper begin to be faster than Triton's (docs/hopper.md).
ENOUGH = 26  # log2 of the scores of a call
FEW = 64  # queries of a sequence: Triton's forward reads keys and values as fast as a copy does
LONG = 256  # the most queries of a sequence, where a side is jagged
# Padded scores for each that there is, if all sequences had the mean length. Where the lengths of
# queries and keys are alike there are more: a third more if they are spread evenly from 0 on.
PADDED = 6
_LIBRARY = torch.library.Library("gdpa", "FRAGMENT")
_KEYWORDS = ("fast", "skip")
FORWARD = Signature("attention_cute", keywords=_KEYWORDS)
BACKWARD = Signature("attention_cute_backward", backward=True, keywords=(*_KEYWORDS, "ordered"))


def no_kernel(problem: Problem) -> str:
    """Why the device cannot run the kernels, or ""."""
    if config_of(problem.device):
        return ""
    major, minor = torch.cuda.get_device_capability(problem.device)
    known = " or ".join(f"{number}.x" for number in sorted(CONFIGS))
    return f"the CuTe kernel needs compute capability {known}, this device has {major}.{minor}"


def no_cutlass(_: Problem) -> str:
    """Why CuTe DSL cannot be used, or ""."""
    version = installed()
    lowest, below = (".".join(map(str, bound)) for bound in VERSIONS)
    if version is None:
        return f"{PACKAGE} is not installed (pip install 'gdpa-inductor[cute]')"
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if VERSIONS[0] <= parts < VERSIONS[1]:
        return ""
    return f"{PACKAGE} {version} is not one of the tested versions, {lowest} to below {below}"


@functools.cache
def installed() -> str | None:
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None


def not_taken(problem: Problem) -> str:
    """Why the kernels do not take these operands, or ""."""
    dims = [shapes.size_hint(x) for x in (problem.head_dim, problem.value_dim)]
    if None in dims:
        return "a head dim that is known only at run time"
    kind = config_of(problem.device)
    assert kind  # else `no_kernel` has refused
    return unsupported(
        kind,
        (problem.dtype, problem.value_dtype),
        (int(dims[0] or 0), int(dims[1] or 0)),
        [str(dtype).removeprefix("torch.") for dtype in problem.aux_dtypes],
    )


def few_queries(problem: Problem) -> str:
    """Why the Triton forward is the better choice, or "": tiles here have 128 rows and more."""
    if problem.needs or hint(problem.rows) > FEW:
        return ""
    return f"for up to {FEW} queries Triton has smaller tiles, and parts the keys"


def triton_is_faster(problem: Problem) -> str:
    """Why the Triton template is the better choice on this GPU, or "" (docs/hopper.md)."""
    kind = config_of(problem.device)
    if kind is None or not kind.rivalled:
        return ""
    if problem.unbounded:
        return f"on {kind.gpu} Triton is faster where no `max_seqlen` bounds the lengths"
    if problem.jagged and hint(problem.rows) < LONG:
        return (
            f"on {kind.gpu} Triton is faster on fewer than {LONG} queries, where a side is jagged"
        )
    narrowest, widest = sorted(_dims(problem))
    dense_forward = not (problem.needs or problem.jagged)
    narrow = 64 if dense_forward and widest > 64 else 32
    if narrowest <= narrow:
        return f"on {kind.gpu} Triton is faster here at head dims up to {narrow}"
    # For gradients of biases the CPU launches more. At head dims up to 64 the forwards are close.
    enough = ENOUGH + any(problem.needs[3:]) + 2 * (dense_forward and widest <= 64)
    if scores(problem) < 1 << enough:
        return f"on {kind.gpu} Triton starts sooner, which counts below 2^{enough} scores"
    return "" if problem.jagged else _of_each_score(problem, kind.gpu)


def _of_each_score(problem: Problem, gpu: str) -> str:
    """Why Triton is better with operands that have an element for each score, or ""."""
    aux = problem.program.aux
    own = [number for number, spec in enumerate(aux) if set(spec.access) >= POSITIONS]
    dtypes = [problem.aux_dtypes[number] for number in own if aux[number].kind == "f"]
    if not problem.needs and any(dtype != problem.dtype for dtype in dtypes):
        return f"on {gpu} Triton is faster in a forward with a bias of another dtype"
    masks = [number for number in own if aux[number].kind == "b"]
    if not masks or dtypes or 64 < max(_dims(problem)) <= 128:
        return ""
    if classify([problem.program.weight], aux, masks).bounds:
        return f"on {gpu} mask tensors are Triton's at head dims up to 64 and above 128"
    return ""


def scores(problem: Problem) -> int:
    """How many there are at most. Jagged queries or keys are no more than their values."""
    dense = (problem.batch, problem.rows, problem.cols)
    batch, rows, cols = (hint(size) for size in dense)
    bounds = [batch * rows * cols]
    if problem.jagged_query:
        bounds.append(hint(problem.total_rows) * cols)
    if problem.jagged_key:
        bounds.append(hint(problem.total_cols) * rows)
    return hint(problem.heads) * min(bounds)


def mostly_padded(problem: Problem) -> str:
    """Why the Triton template is the better choice for gradients of biases, or ""."""
    kind = config_of(problem.device)
    if kind is None or not any(problem.needs[3:]) or padded(problem) <= PADDED:
        return ""
    return (
        f"on {kind.gpu} Triton is faster for gradients of operands between the products where "
        f"there are {PADDED} times as many padded scores as others"
    )


def padded(problem: Problem) -> float:
    """How many padded scores there are for each that is none, with sequences of the mean length."""
    sides = (
        (problem.jagged_query, problem.rows, problem.total_rows),
        (problem.jagged_key, problem.cols, problem.total_cols),
    )
    found = 1.0
    for jagged, most, total in sides:
        if jagged:
            found *= max(1.0, hint(problem.batch) * hint(most) / max(hint(total), 1))
    return found


def no_such_gradients(problem: Problem) -> str:
    """Why the backward does not give what is asked of it, or ""."""
    if not problem.needs:
        return ""
    key, value = problem.key_heads, problem.value_heads
    kind = config_of(problem.device)
    assert kind  # else `no_kernel` has refused
    needs, dtype = problem.needs[3:], str(problem.dtype).removeprefix("torch.")
    if any(needs) and problem.unbounded:
        return f"{limits.NONE} where no `max_seqlen` bounds the lengths"
    return (
        limits.no_such_dims(kind, _dims(problem))
        or limits.no_such_heads(key, value, shapes.statically_known_true(key == value))
        or limits.no_such_biases(str(problem.program), needs, dtype)
    )


def training_is_slower(problem: Problem) -> str:
    """Why a training step does not pay, or "": without a backward here it is Triton's, which loses
    to the unfused form at wide heads (triton/rules.py)."""
    kind = config_of(problem.device)
    assert kind  # else `no_kernel` has refused
    if problem.needs or not problem.training:
        return ""
    return limits.no_such_dims(kind, _dims(problem))


def _dims(problem: Problem) -> tuple[int, int]:
    return hint(problem.head_dim), hint(problem.value_dim)


def lower(call: Call) -> Any:
    """The output, contiguous. Inductor IR in and out.

    Under max-autotune it is timed beside the Triton template, unless it was asked for by name.
    """
    given = _arguments(call)
    compile_ahead(call)

    def run() -> Any:
        return extern_call(FORWARD, given, _callee("forward_site", call))

    if call.options.kernel == "cute" or not inductor.thorough():
        return run()

    def rival(plan: Plan, body: dict[str, Any]) -> Any:
        digest = hashlib.sha256(repr((call.problem.program, call.options)).encode()).hexdigest()
        kernel = functools.partial(_timed, given, plan)
        return templates.rival(f"gdpa_cute_{digest[:16]}", kernel, run, body)

    return triton.lower(call, rival)


def _timed(given: Arguments[Any], plan: Plan, *tensors: Tensor, out: Tensor) -> None:
    """The forward on the tensors that the Triton template is timed on, in the template's order."""
    operands = given.operands
    found = dict(zip(plan.arguments, tensors, strict=False))
    sides = [None if cu is None else side for side, cu in zip("QK", operands.lengths[:2])]
    shared = next((found[f"CU_{side}"] for side in sides if f"CU_{side}" in found), None)
    offsets = [None if side is None else found.get(f"CU_{side}", shared) for side in sides]
    unread = found["Q"].new_empty(1)
    aux = [
        found.get(f"A{i}", unread.as_strided(x.get_size(), [0] * len(x.get_size())))
        for i, x in enumerate(operands.aux)
    ]
    scalars = [lowering.likely_size(x) for x in operands.scalars]
    rows, cols = (lowering.likely_size(x) for x in operands.lengths[2:])
    read = Operands(
        found["Q"], found["K"], found["V"], aux, scalars, operands.program,
        offsets[0], offsets[1], rows, cols,
    )  # fmt: skip
    _launch().forward(read, **given.options, out=out)


def lower_backward(call: Call) -> list[Any]:
    """The asked gradients of (query, key, value, *aux), contiguous. Inductor IR in and out."""
    compile_ahead(call)
    spare = _spare(call)
    callee = _callee("backward_site", call, *([spare] if spare else []))
    return extern_call(BACKWARD, _arguments(call), callee)


def _spare(call: Call) -> tuple[int, ...]:
    """The operands of the program whose memory their gradients may take."""
    held = call.signature.bind(*lowering.node_arguments()).operands.aux
    pairs = zip(call.needs[3:], lowering.spent(held), strict=True)
    return tuple(number for number, (need, spent) in enumerate(pairs) if need and spent)


def compile_ahead(call: Call) -> None:
    """While Inductor goes on. Whatever fails here, the first run compiles."""
    try:
        from ..kernels.cute import ahead

        kind = config_of(call.problem.device)
        assert kind  # else `no_kernel` has refused
        fast, skip = call.options.fast_math, call.options.skip
        config = ahead.guess(call.fakes.operands, kind, fast, skip)
        if call.backward:
            ahead.backward(config, call.needs, in_order(call.options))
        else:
            ahead.forward(config)
    except Exception as error:
        log.debug("nothing is compiled ahead: %s: %s", type(error).__name__, error)


def _callee(maker: str, call: Call, *more: Any) -> tuple[str, str, str]:
    """The generated code calls `maker(static, *more)` in place of an operator."""
    return __name__, maker, ", ".join(map(repr, (call.static, *more)))


def _arguments(call: Call) -> Arguments[Any]:
    options = {"fast": call.options.fast_math, "skip": call.options.skip}
    if call.backward:
        options["ordered"] = in_order(call.options)
    return call.on_its_device(**options)


@functools.cache
def _launch() -> Any:
    """Kept: an import statement costs each call of the operator a microsecond."""
    from ..kernels.cute import launch

    return launch


@functools.cache
def _launch_backward() -> Any:
    from ..kernels.cute.backward import launch

    return launch


def _attention(given: Arguments[Tensor], **known: Any) -> Tensor:
    """known: of the call: its plan, a record to be filled."""
    out: Tensor = _launch().forward(given.operands, **given.options, **known)
    return out


def _attention_backward(given: Arguments[Tensor], **known: Any) -> list[Tensor]:
    found: list[Tensor] = _launch_backward().backward(
        given.grad_out, given.operands, given.needs, **given.options, **known
    )
    return found


class Site:
    """A call in the generated code, with the arguments of the operator. static: the code states
    every size and stride, so what the first run settles serves all later ones with aligned
    addresses (kernels/cute/replay.py). spare: operands of the program whose memory nobody needs
    after a backward that runs once. A CUDA graph runs more often than it is recorded."""

    def __init__(
        self, signature: Signature, run: Callable[..., Any], static: bool,
        spare: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        self.signature, self.run, self.static, self.spare = signature, run, static, spare
        self.plan: Any = None
        self.replays: dict[bool, Any] = {}

    def __call__(self, *args: Any, **options: Any) -> Any:
        spares = bool(self.spare) and _last_use()
        replay = self.replays.get(spares)
        found = None if replay is None else self._again(replay, *args)
        return self._first(args, options, spares) if found is None else found

    def _first(self, args: Sequence[Any], options: Mapping[str, Any], spares: bool) -> Any:
        given = self.signature.bind(*args, **options)
        known = {"spare": self.spare} if spares else {}
        if not self.static:
            return self.run(given, **known)
        if self.plan is None or not self.plan.serves(given.operands):
            fast, skip = (given.options.get(name, True) for name in _KEYWORDS)
            self.plan = _launch().plan_of(given.operands, fast, skip, None)
        record = _launch().Record()
        found = self.run(given, plan=self.plan, record=record, **known)
        if record.replay is not None:
            self.replays[spares] = record.replay
        return found

    def _again(self, replay: Any, *args: Any) -> Any:
        if self.signature.backward:
            grad_out, query, key, value, aux, scalars, *_ = args
            return replay((query, key, value, grad_out), aux, scalars)
        query, key, value, aux, scalars, *_ = args
        found = replay((query, key, value), aux, scalars)
        return None if found is None else found[0]


def _last_use() -> bool:
    """Nobody needs what was saved for the backward under way once it has run."""
    return autograd.backward_runs_once() and not torch.cuda.is_current_stream_capturing()


def forward_site(static: bool) -> Site:
    return Site(FORWARD, _attention, static)


def backward_site(static: bool, spare: tuple[int, ...] = ()) -> Site:
    return Site(BACKWARD, _attention_backward, static, spare)


def _on_its_device(run: Callable[..., Any]) -> Callable[[Arguments[Tensor]], Any]:
    """The generated code makes its device the current one. Others may not."""

    def guarded(given: Arguments[Tensor]) -> Any:
        with torch.cuda.device(given.operands.query.device):
            return run(given)

    return guarded


FORWARD.register(_LIBRARY, "CUDA", _on_its_device(_attention), fake_output)
BACKWARD.register(_LIBRARY, "CUDA", _on_its_device(_attention_backward), fake_gradients)

BACKEND = Backend(
    name="cute",
    devices=("cuda",),
    refuses=(
        Rule(Code.DEVICE, no_kernel, quiet=True),
        Rule(Code.DEVICE, no_cutlass),
        Rule(Code.DTYPE, not_taken),
        Rule(Code.LOWERING, no_such_gradients),
    ),
    pays=(Rule(Code.SLOWER, training_is_slower),),
    yields=(
        Rule(Code.SLOWER, few_queries),
        Rule(Code.SLOWER, triton_is_faster),
        Rule(Code.SLOWER, mostly_padded),
    ),
    ahead=compile_ahead,
    lower=lower,
    lower_backward=lower_backward,
)
