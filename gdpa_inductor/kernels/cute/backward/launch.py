"""Run a backward: `backward` checks the call, then launches the kernels of the architecture.

The host reads no sequence length from the device.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ...._compat.device import empty
from ....operands import Operands
from ....program.expr import AXES
from ....rejection import GDPAError
from .. import launch
from ..bounds import TileBounds, table
from ..config import KernelConfig, TableKey, classes
from ..launch import longest_first, place
from ..launcher import Launcher
from ..plan import LaunchPlan, aligned, plan_of
from ..replay import Record
from ..runtime import cleared, for_gradient
from ..sm100.config import SIDES, Sm100Config
from . import biases
from .biases import total
from .jagged_biases import JaggedDivision, StoredScores
from .roots import (
    adds_all,
    factor_of,
    masked,
    no_such_biases,
    no_such_dims,
    no_such_heads,
    no_such_sums,
    terms_of,
)

Rooms = dict[str, Tensor]


def backward(
    grad_out: Tensor,
    operands: Operands[Tensor],
    needs: Sequence[bool],
    *,
    fast: bool = True,
    skip: bool = True,
    ordered: bool = True,
    ctas: int = 0,
    stream: int | None = None,
    kind: type[KernelConfig] | None = None,
    record: Record | None = None,
    donated: Sequence[int] = (),
) -> list[Tensor]:
    """The gradients of gdpa::attention that `needs` asks for.

    Each has the dtype of its operand. Gradients of query, key and value have the strides of
    `dense_strides`. Those of aux operands are contiguous. With the same number of CTAs, results are
    bitwise equal from run to run.

    Args:
        grad_out: The gradient of O.
        needs: Which gradients are wanted: of query, key, value and each aux operand.
        fast, skip: As in `launch.forward`.
        ordered: False allows any order of the sums of dQ. Then their last bits may vary.
        ctas: How many CTAs to launch. By default one for each multiprocessor.
        stream: A handle of the current CUDA stream, if the caller has it.
        kind: The configuration class of an architecture. By default that of the device.
        record: Gets the steps of the call, if the caller wants to replay it (replay.py).
        donated: Aux operands that nobody needs afterwards. Their memory may be overwritten, and may
            be returned as that of their gradient.

    Raises:
        GDPAError: The kernels do not take the call. The message says why.
    """
    o, plan = operands, plan_of(operands, fast, skip, kind)
    reason = plan.once(_complaint, *needs) or unlike_output(grad_out, plan, o)
    if reason:
        raise GDPAError(reason)
    letters = "".join(x for x, need in zip("qkv", needs, strict=False) if need)
    ctas, stream = place(o.query.device, ctas, stream)
    read, gradient = plan.readable(o), aligned(grad_out)
    record = record or Record(fails=True)
    plain = plan.plain and gradient is grad_out and not plan.config.shared
    record.begin((o.query, o.key, o.value, grad_out), o, plain)
    order = longest_first(read, plan.config, stream, record)
    call = BackwardCall(plan, o, read, gradient, order, ctas, stream, ordered, record)
    if o.jagged or not any(needs[3:]):
        grads = _at_once(call, needs, letters)
    else:
        grads = _in_parts(call, needs, letters, (fast, skip, kind), donated)
    record.finish(grads)
    return grads


def _in_parts(
    call: "BackwardCall", needs: Sequence[bool], letters: str, options: Any, donated: Sequence[int]
) -> list[Tensor]:
    """A dense backward with gradients of biases, part by part. options: See `plan_of`."""
    plan, record, scratch = call.plan, call.record, dict[str, Tensor]()
    division = plan.once(_division, call.ctas, *_wanted(needs))
    stored = division.sums[0].number
    first = division.shares[0]
    alike = first.keys is None and plan.once(_skips_alike, stored, first.axis)

    def launch_share(
        share: biases.Share, o: Operands[Tensor], grad_out: Tensor, rooms: Rooms, scores: Tensor
    ) -> BackwardCall:
        own, read, gradient = plan, call.read, call.grad_out
        if not share.whole or division.shared:
            own, gradient = plan_of(o, *options), aligned(grad_out)
            read = own.readable(o)
            record.fails |= not own.plain or gradient is not grad_out
        # Parts that skip the same tiles leave them zero for each other, if they share the memory.
        cleared = alike and share != first and share.count == first.count
        sparse = division.sparse or cleared
        part = replace(
            call,
            plan=own,
            operands=o,
            read=read,
            grad_out=gradient,
            stored=stored,
            rooms=rooms,
            launches=[StoredScores(scores, sparse=sparse)],
            share=share,
            whole=call,
            cleared=True,
            shared_scratch=scratch,
        )
        GRADIENTS[plan.config.folder](part, letters)
        return part

    if division.direct and not plan.once(_overwrites, stored):
        donated = ()
    clears = plan.once(_leaves_out, stored)
    return biases.gradients(
        call.grad_out,
        call.operands,
        needs,
        division,
        launch_share,
        record,
        donated,
        clears,
    )


def _at_once(call: "BackwardCall", needs: Sequence[bool], letters: str) -> list[Tensor]:
    """A backward that is jagged, or without gradients of biases. One plan serves all launches."""
    plan, o, wanted = call.plan, call.operands, _wanted(needs)
    aux_grads: list[Tensor] = []
    division = None
    if wanted and plan.empty:
        aux_grads = [
            torch.zeros_like(o.aux[i], memory_format=torch.contiguous_format) for i in wanted
        ]
    elif wanted:
        assert call.order is not None
        division = plan.once(_jagged_division, call.ctas, *wanted)
        rooms = division.rooms(o, call.record)
        launches = division.launches(call.order, rooms, call)
        call = replace(call, stored=division.stored, launches=launches)
    grads = GRADIENTS[plan.config.folder](call, letters)
    if division is not None:
        aux_grads = division.finished(rooms, o, call)
    return [biases.like(grads[x], call.operand(x)) for x in letters] + aux_grads


def _wanted(needs: Sequence[bool]) -> list[int]:
    return [number for number, need in enumerate(needs[3:]) if need]


def _division(plan: LaunchPlan, ctas: int, *wanted: int) -> biases.Division:
    config, skips = plan.config, masked(_last_kernel(plan, wanted[0]))
    return biases.Division(plan.example, wanted, config.cols, ctas, config.cuts_keys, skips)


def _overwrites(plan: LaunchPlan, stored: int) -> bool:
    """Whether the gradient of an aux operand may overwrite the operand."""
    # Scores that are cleared before the launch may not be those of the operand.
    kernel = _last_kernel(plan, stored)
    return kernel.overwrites and not masked(kernel)


def _leaves_out(plan: LaunchPlan, stored: int) -> bool:
    """Whether a launch may not write all of dQ."""
    kernel, *others = plan.backward_kernels(True, stored)
    return not others and masked(kernel)


def _last_kernel(plan: LaunchPlan, stored: int) -> KernelConfig:
    """The kernel that stores gradients of scores."""
    return plan.backward_kernels(True, stored)[-1]


def _skips_alike(plan: LaunchPlan, stored: int, axis: int) -> bool:
    """Whether all shares along an axis skip the same tiles."""
    config = _last_kernel(plan, stored)
    zero = classes(config, terms_of(config)).zero
    return AXES[axis] not in config.mod.axes_of([zero])


def _jagged_division(plan: LaunchPlan, ctas: int, *wanted: int) -> JaggedDivision:
    kernel = _last_kernel(plan, wanted[0])
    return JaggedDivision(plan.example, wanted, kernel.tiling, ctas, masked(kernel))


def _complaint(plan: LaunchPlan, *needs: bool) -> str:
    c, (key_heads, value_heads) = plan.config, plan.sizes[2:4]
    return (
        no_such_dims(type(c), (c.head_dim, plan.output[-1]))
        or no_such_heads(key_heads, value_heads, key_heads == value_heads)
        or no_such_sums(c.program)
        or no_such_biases(c.program, needs[3:], c.dtype)
    )


def unlike_output(grad_out: Tensor, plan: LaunchPlan, operands: Operands[Tensor]) -> str:
    """How a gradient is not one of the output, or ""."""
    value = operands.value
    actual = (grad_out.shape, grad_out.dtype, grad_out.device)
    expected = (plan.output_of(operands), value.dtype, value.device)
    return "" if actual == expected else f"the gradient of the output is {actual}, not {expected}"


@dataclass(frozen=True)
class KernelForm:
    """What the form of a call decides about one of its kernels. A plan keeps it."""

    config: KernelConfig
    launcher: Launcher | None  # None if there is nothing to launch
    masked: bool  # the kernel may skip tiles of scores


def kernel_form(
    plan: LaunchPlan, stored: int | None, ordered: bool = True, part: str = ""
) -> KernelForm:
    """Of the one kernel that computes all gradients."""
    config = replace(plan.backward_kernels(ordered, stored)[0], part=part)
    return _form_of(plan, config)


def _side_form(plan: LaunchPlan, side: str, stored: int | None) -> KernelForm:
    assert isinstance(plan.config, Sm100Config)
    return _form_of(plan, plan.config.side(side, stored))


def _form_of(plan: LaunchPlan, config: KernelConfig) -> KernelForm:
    return KernelForm(config, None if plan.empty else launch.launcher(config), masked(config))


@dataclass(frozen=True)
class BackwardCall:
    """What the launches of one backward share."""

    plan: LaunchPlan  # the plan of the call
    operands: Operands[Tensor]  # the operands as given
    read: Operands[Tensor]  # the operands as kernels read them
    grad_out: Tensor  # the gradient of O as kernels read it
    order: Tensor | None  # the order of the sequences, or None if dense
    # ctas, stream: as in `backward`, with the defaults filled in
    ctas: int
    stream: int
    ordered: bool  # as in `backward`
    record: Record  # gets all steps
    # the number of the aux operand whose gradient the launches store, or None
    stored: int | None = None
    # memory for dQ, dK and dV by letter, where the caller has allocated it
    rooms: Mapping[str, Tensor] = field(default_factory=dict)
    # Where each launch stores gradients of scores, or None for nowhere. The iterator may read
    # results between two launches.
    launches: Iterable[StoredScores | None] = (None,)
    # The part of the call that this is, and the whole call, if it is launched in parts.
    share: biases.Share | None = None
    whole: "BackwardCall | None" = None
    cleared: bool = False  # dQ is zero where a launch does not write it
    # scratch memory that several calls share
    shared_scratch: dict[str, Tensor] = field(default_factory=dict)
    # the tables of bounds that were made so far
    tables: dict[TableKey, TileBounds] = field(default_factory=dict)

    def room(self, letter: str) -> Tensor:
        """Memory for dQ, dK or dV."""
        # If all sequences share the operand, the kernel stores a gradient for each in fp32
        # (`biases.like`). Rows of a jagged operand that no sequence owns get zeros, from here or
        # from the kernel.
        operand = self.operand(letter)
        if letter in self.rooms:
            return self.rooms[letter]
        if letter in self.plan.config.shared:
            shape = (self.plan.batch, *operand.shape[1:])
            return empty(shape, torch.float32, operand.device)
        room = self.record.add_buffer(for_gradient(operand, empty), int(letter != "q"))
        if operand.dim() == 3 and not self.plan.config.clears:
            self.zero(room)
        return room

    def operand(self, letter: str) -> Tensor:
        o = self.operands
        return {"q": o.query, "k": o.key, "v": o.value}[letter]

    def scratch(
        self, name: str, shape: Sequence[int], dtype: torch.dtype, side: int | None = None
    ) -> Tensor:
        """Scratch memory. Calls that share it get the same memory if they want the same shape."""
        buffer = self.shared_scratch.get(name)
        if buffer is None or buffer.shape != torch.Size(shape):
            buffer = self.record.add_buffer(empty(shape, dtype, self.operands.query.device), side)
            self.shared_scratch[name] = buffer
        return buffer

    def total(
        self, scores: Tensor, own: Tensor, factor: float, before: Tensor | None = None
    ) -> bool:
        """As `biases.total`."""
        arch = self.plan.config.arch
        return total(scores, own, factor, arch, self.stream, self.record, before)

    def clear(self, room: Tensor) -> None:
        """Set a tensor of 32-bit numbers to zero, by the driver."""
        cleared(room, self.stream)
        self.record.add_clear(room)

    def zero(self, room: Tensor) -> None:
        """Set a tensor of any dtype and strides to zero."""
        room.zero_()
        self.record.add_clear(room)

    def table(self, key: TableKey) -> TileBounds:
        if self.whole and self.share:
            return self.share.bounds(self.whole.table(key), key[1])
        if key not in self.tables:
            self.tables[key] = table(self.plan, self.read, key, self.stream, self.record)
        return self.tables[key]

    def run(
        self, form: KernelForm, others: Sequence[Tensor], launches: Iterable[StoredScores | None]
    ) -> None:
        """Launch a kernel for each of the `launches`."""
        for stored in launches:
            # The kernel may not store all scores.
            if stored is not None and stored.hulls is None:  # noqa: SIM102
                if form.launcher is None or (form.masked and not stored.sparse):
                    self.zero(stored.scores)
            if form.launcher is not None:
                self.launch(form.launcher, others, stored)

    def launch(
        self, launcher: Launcher, others: Sequence[Tensor], stored: StoredScores | None = None
    ) -> None:
        """Launch a kernel. others: The matrices beside query, key, value and those of `stored`."""
        matrices, order, count = list(others), self.order, None
        if stored is not None:
            matrices += stored.matrices
            order = self.order if stored.order is None else stored.order
            count = stored.count
        tables = list(map(self.table, launcher.tables))
        words = self.plan.call_words(self.read, matrices, order, self.ctas, self.stream, tables)
        form = self.plan.form_words(matrices, count, tables)
        launcher(words, form)
        self.record.add_kernel(launcher, words, form, 3 + len(matrices), self.plan.scalars)


def _counters(plan: LaunchPlan) -> tuple[int, ...]:
    """The shape of the counters of query tiles."""
    config = plan.backward_kernels(True, None)[0]
    return plan.batch, plan.sizes[1], -(-plan.sizes[4] // config.tiling.rows), config.counters


def _by_one_kernel(call: BackwardCall, letters: str) -> dict[str, Tensor]:
    """One kernel computes dQ, dK and dV: always all of them, even if `letters` has fewer."""
    part = call.share.part if call.share else ""
    form = call.plan.once(kernel_form, call.stored, call.ordered, part)
    grads = {letter: call.room(letter) for letter in "qkv"}
    config, grad_query = form.config, grads["q"]
    # The kernel does not write dQ of query tiles that meet no key. It clears such rows of jagged
    # queries itself, but not those that meet no key because of a mask.
    partial = form.masked or (config.jagged_k and not config.jagged_q)
    if partial and not call.cleared:
        call.zero(grad_query)
    if form.launcher is None:
        call.run(form, (), call.launches)
        return {letter: x.zero_() for letter, x in grads.items()}
    sums = grad_query
    if not config.sums_are_gradients:
        sums = call.scratch("sums", grad_query.shape, torch.float32, 0)
    if adds_all(config) and not config.continues:
        call.clear(sums)
    counters = call.scratch("counters", call.plan.once(_counters), torch.int32)
    call.clear(counters)
    matrices = (call.grad_out, sums, grads["k"], grads["v"], grad_query, counters)
    call.run(form, matrices, call.launches)
    # Usually the conversion applies the factor.
    if config.sums_are_gradients and (factor := factor_of(config.program, config.stored)) != 1.0:
        sums.mul_(factor)
    return grads


def _blackwell_gradients(call: BackwardCall, letters: str) -> dict[str, Tensor]:
    """The gradients in `letters`, and those of the same kernels."""
    several = "q" in letters and len(letters) > 1
    if (several or call.stored is not None) and call.plan.once(_merges):
        return _by_one_kernel(call, letters)
    return _by_sides(call, letters)


def _merges(plan: LaunchPlan) -> bool:
    return len(plan.backward_kernels(True, None)) == 1


def _by_sides(call: BackwardCall, letters: str) -> dict[str, Tensor]:
    """One kernel for each side."""
    grads: dict[str, Tensor] = {}
    for side, own in SIDES.items():
        # The rows side stores dS as the gradient of a bias. So it runs too if that is wanted.
        stores = side == "rows" and call.stored is not None
        if set(letters) & set(own) or stores:
            outputs = [call.room(letter) for letter in own]
            form = call.plan.once(_side_form, side, call.stored)
            if form.launcher is None:
                for x in outputs:
                    x.zero_()
            call.run(form, (call.grad_out, *outputs), call.launches if stores else (None,))
            grads |= dict(zip(own, outputs, strict=True))
    return grads


# By the folder of the kernels: gradients by letter.
GRADIENTS = {"sm90": _by_one_kernel, "sm100": _blackwell_gradients}
