"""The lowering to CuTe kernels: one call in the generated code, forward and backward.

`gdpa::attention_cute` and `gdpa::attention_cute_backward` have the arguments and results of the
public ops. Generated Python code calls a `Site` instead, which saves torch's dispatcher. Generated
C++ code calls the operators by name. So this module has to be imported before code is loaded from a
cache. cutlass is imported only to compile a kernel that is not on disk.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..._compat import inductor, lowering, templates
from ...kernels.cute import precompile as workers
from ...kernels.cute.backward.launch import backward
from ...kernels.cute.certificates import trusted_config_of
from ...kernels.cute.form import layout_key, off_alignment, rows_key
from ...kernels.cute.launch import forward
from ...kernels.cute.replay import Record
from ...operands import Operands
from ...ops import DENSE, Arguments, Signature, fake_output, laid_gradients
from ..backends import backend
from ..call import Call, extern_call, in_order
from ..donation import last_use

if TYPE_CHECKING:
    from ...kernels.triton.template import Plan

log = logging.getLogger("gdpa_inductor")
_LIBRARY = torch.library.Library("gdpa", "FRAGMENT")
KEYWORDS = ("fast", "skip")
MOST = 64  # how many forms of a call a `Site` keeps replays for
FORWARD = Signature("attention_cute", keywords=KEYWORDS, pages=True)
BACKWARD = Signature("attention_cute_backward", backward=True, keywords=(*KEYWORDS, "ordered"))


def lower(call: Call) -> Any:
    """The output, with row sums [output, sums]; contiguous. Inductor IR in and out.

    Under max-autotune the kernel is timed against the Triton template. It is not if there are row
    sums, if the template refuses the call, or if the user asked for this backend by name.
    """
    arguments, signature = _arguments(call), FORWARD.of(call.problem.program)
    precompile(call)

    def run() -> Any:
        more = [True] if signature.sums else []
        return extern_call(signature, arguments, _callee("forward_site", call, *more))

    rivals = backend("triton").refusal(call.problem, profit=False) is None and not signature.sums
    if call.options.kernel == "cute" or not (rivals and inductor.thorough()):
        return run()
    from ..triton.lower import lower as lower_to_triton

    def rival(plan: Plan, body: dict[str, Any]) -> Any:
        digest = hashlib.sha256(repr((call.problem.program, call.options)).encode()).hexdigest()
        kernel = functools.partial(_timed, arguments, plan)
        return templates.rival(f"gdpa_cute_{digest[:16]}", kernel, run, body)

    return lower_to_triton(call, rival)


def _timed(arguments: Arguments[Any], plan: Plan, *tensors: Tensor, out: Tensor) -> None:
    """Run the forward on the tensors of the benchmark, which are in the Triton template's order."""
    operands = arguments.operands
    by_name = dict(zip(plan.arguments, tensors, strict=False))
    sides = [None if cu is None else side for side, cu in zip("QK", operands.lengths[:2])]
    shared = next((by_name[f"CU_{side}"] for side in sides if f"CU_{side}" in by_name), None)
    offsets = [None if side is None else by_name.get(f"CU_{side}", shared) for side in sides]
    unread = by_name["Q"].new_empty(1)
    aux = [
        by_name.get(f"A{i}", unread.as_strided(x.get_size(), [0] * len(x.get_size())))
        for i, x in enumerate(operands.aux)
    ]
    scalars = [lowering.likely_size(x) for x in operands.scalars]
    rows, cols = (lowering.likely_size(x) for x in operands.lengths[2:])
    matrices = (by_name["Q"], by_name["K"], by_name["V"])
    lengths: Any = (*offsets, rows, cols, by_name.get("PAGES"))
    read = Operands(*matrices, aux, scalars, operands.program, *lengths)
    forward(read, **arguments.options, out=out)


def lower_backward(call: Call) -> list[Any]:
    """The wanted gradients of (query, key, value, *aux). Inductor IR in and out.

    Their strides are those of `laid_gradients`.
    """
    precompile(call)
    donated = _donated(call)
    callee = _callee("backward_site", call, *([donated] if donated else []))
    return extern_call(BACKWARD, _arguments(call), callee)


def _donated(call: Call) -> tuple[int, ...]:
    """The aux operands whose memory their own gradients may overwrite."""
    pairs = zip(call.needs[3:], lowering.spent(call.fx_operands.aux), strict=True)
    return tuple(number for number, (need, spent) in enumerate(pairs) if need and spent)


def precompile(call: Call) -> None:
    """Have a worker compile the kernels. If this fails, the first run compiles them."""
    try:
        kind = trusted_config_of(call.problem.device)
        assert kind  # else `no_kernel` has refused
        fast, skip = call.options.fast_math, call.options.skip
        config = workers.guess(call.fakes.operands, kind, fast, skip)
        if call.backward:
            most = workers.likely_sizes(call.fakes.operands)
            workers.backward(config, call.needs, in_order(call.options), most)
        else:
            workers.forward(config, sliced=config.value_dim != call.fakes.operands.value.shape[-1])
    except Exception as error:
        log.debug("nothing is compiled ahead: %s: %s", type(error).__name__, error)


def _callee(maker: str, call: Call, *more: Any) -> tuple[str, str, str]:
    """Have the generated code call `maker(known, *more)` instead of the operator."""
    known: bool | tuple[int, ...] = call.static
    if not known and call.static_but_rows:
        known = tuple(size for x in call.fakes.operands.aux for size in x.shape)
    return __name__, maker, ", ".join(map(repr, (known, *more)))


def _arguments(call: Call) -> Arguments[Any]:
    """The arguments with options. Symbolic head dims and pages become constants for kernels."""
    int(call.problem.head_dim), int(call.problem.value_dim), int(call.problem.page or 0)
    options = {"fast": call.options.fast_math, "skip": call.options.skip}
    if call.backward:
        options["ordered"] = in_order(call.options)
    return call.on_its_device(**options)


def _attention(arguments: Arguments[Tensor], **known: Any) -> Any:
    return forward(arguments.operands, **arguments.options, **known)


def _attention_backward(arguments: Arguments[Tensor], **known: Any) -> list[Tensor]:
    a = arguments
    return backward(a.grad_out, a.operands, a.needs, **a.options, **known)


@dataclass(eq=False)
class Site:
    """One call in the generated code. It takes the arguments of the operator.

    The first run of a form records its launches, and later runs of the form replay them
    (kernels/cute/replay.py). They need aligned addresses. The generated code fixes dtypes, devices,
    the program and options, so a form here is sizes and strides only.
    """

    signature: Signature
    run: Callable[..., Any]
    # What else the generated code fixes. True: all sizes and strides, so there is one form.
    # A tuple: all but the total rows of jagged sides. In it are the sizes of the aux operands.
    known: bool | tuple[int, ...]
    # The aux operands whose memory nobody needs after the backward, if it runs once. It does not in
    # a CUDA graph, which runs more often than it is recorded.
    donated: tuple[int, ...] = ()
    # None for a form that cannot be replayed
    replays: dict[Hashable, Any] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.Lock)

    def __call__(self, *args: Any, **options: Any) -> Any:
        donates = bool(self.donated) and last_use()
        matrices, aux, scalars, lengths = self._read(*args)
        offsets = [x for x in lengths[:2] if x is not None]
        form = donates if self.known is True else (donates, *self._layout(matrices, aux, lengths))
        replay = self.replays.get(form)
        results = None if replay is None else replay(matrices, aux, scalars, offsets)
        if results is not None:
            return results if self.signature.several else results[0]
        if form in self.replays:
            return self._run(args, options, donates)
        record = Record()
        out = self._run(args, options, donates, record=record)
        aligned = not off_alignment(x.data_ptr() for x in (*matrices, *aux, *offsets))
        if aligned:  # otherwise this run made copies that the next one may not need
            self._keep(form, record.replay)
        return out

    def _layout(
        self, matrices: Sequence[Tensor], aux: Sequence[Tensor], lengths: Any
    ) -> tuple[Any, ...]:
        if isinstance(self.known, tuple):
            return rows_key(matrices, self.known)
        return layout_key(matrices, aux, lengths)

    def _read(self, *args: Any) -> tuple[tuple[Tensor, ...], list[Tensor], list[int], Any]:
        if self.signature.backward:
            grad_out, query, key, value, aux, scalars, _, _, *lengths = args
            return (query, key, value, grad_out), aux, scalars, lengths or DENSE
        query, key, value, aux, scalars, _, *lengths = args
        cu_q, cu_k, rows, cols, *pages = lengths or DENSE
        of_keys = next((x for x in pages if x is not None), cu_k)
        return (query, key, value), aux, scalars, (cu_q, of_keys, rows, cols)

    def _run(
        self, args: Sequence[Any], options: Mapping[str, Any], donates: bool, **known: Any
    ) -> Any:
        donated = {"donated": self.donated} if donates else {}
        return self.run(self.signature.bind(*args, **options), **donated, **known)

    def _keep(self, form: Hashable, replay: Any) -> None:
        with self.lock:
            while len(self.replays) >= MOST:
                del self.replays[next(iter(self.replays))]  # the oldest
            self.replays[form] = replay


def forward_site(known: bool | tuple[int, ...], sums: bool = False) -> Site:
    return Site(FORWARD.with_sums if sums else FORWARD, _attention, known)


def backward_site(known: bool | tuple[int, ...], donated: tuple[int, ...] = ()) -> Site:
    return Site(BACKWARD, _attention_backward, known, donated)


def on_its_device(run: Callable[..., Any]) -> Callable[[Arguments[Tensor]], Any]:
    """Run with the operands' device as the current one. Generated code sets it, others may not."""

    def guarded(arguments: Arguments[Tensor]) -> Any:
        with torch.cuda.device(arguments.operands.query.device):
            return run(arguments)

    return guarded


for signature in (FORWARD, FORWARD.with_sums):
    signature.register(_LIBRARY, "CUDA", on_its_device(_attention), fake_output)
BACKWARD.register(_LIBRARY, "CUDA", on_its_device(_attention_backward), laid_gradients)
