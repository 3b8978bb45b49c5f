"""The gradients of one call: checks, then the kernels of the architecture. Host only.

Nothing here reads a length from the device.
"""

import functools
import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ...._compat.device import empty
from ....operands import Operands
from ....rejection import GDPAError
from ..config import KernelConfig
from ..launch import place
from ..launcher import Launcher
from ..order import longest_first
from ..plan import LaunchPlan, aligned, plan_of
from ..replay import Record
from . import biases
from .jagged_biases import JaggedDivision, Totals
from .jagged_totals import add_rows, add_tiles
from .limits import no_such_biases, no_such_dims, no_such_heads
from .totals import total


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
    plan: LaunchPlan | None = None,
    record: Record | None = None,
) -> list[Tensor]:
    """Those gradients of gdpa::attention that `needs` asks for, of query, key, value and the
    operands of the program. They are contiguous, in the dtype of the operand. Equal bits from run
    to run, with as many CTAs.

    ordered: False lets dQ be added up in any order; then its last bits may differ from run to run.
    ctas: how many to launch, by default one for each multiprocessor. stream: a handle of the
    current CUDA stream, if it is known. kind: for which architecture, by default the device's.
    plan: that of the call, if it is known. record: to be filled, if the call can be replayed.

    Raises:
        GDPAError: what the kernels do not take, and why.
    """
    plan, o = plan or plan_of(operands, fast, skip, kind), operands
    if reason := _complaint(grad_out, plan, o, needs):
        raise GDPAError(reason)
    asked = "".join(x for x, need in zip("qkv", needs, strict=False) if need)
    ctas, stream = place(o.query.device, ctas, stream)
    kernels = _kernels(plan.config.folder)
    if o.jagged or not any(needs[3:]):
        record = None if any(needs[3:]) else record
        call = _call(plan, o, grad_out, ctas, stream, ordered, record)
        return _at_once(call, needs, asked, kernels)

    def launch(part: biases.Part) -> None:
        own = plan if part.whole else plan_of(part.operands, fast, skip, kind)
        call = _call(own, part.operands, part.grad_out, ctas, stream, ordered)
        call = replace(call, stored=part.stored, rooms=part.rooms, launches=[Deal(part.scores)])
        kernels.gradients(call, asked)

    def fast_total(scores: Tensor, own: Tensor, factor: float) -> bool:
        return total(scores, own, factor, plan.config.arch, stream)

    division = _division(plan, o, needs, ctas)
    return biases.gradients(grad_out, o, needs, division, launch, fast_total)


def _at_once(call: "BackwardCall", needs: Sequence[bool], asked: str, kernels: Any) -> list[Tensor]:
    """All sequences, with one plan."""
    plan, o, wanted = call.plan, call.operands, _wanted(needs)
    if not wanted:
        found: dict[str, Tensor] = kernels.gradients(call, asked)
        return [call.finished(letter, found[letter]) for letter in asked]
    if call.empty:
        found = kernels.gradients(call, asked)
        return [call.finished(x, found[x]) for x in asked] + [
            torch.zeros_like(o.aux[i], memory_format=torch.contiguous_format) for i in wanted
        ]
    key, tiling = ("division", *wanted), kernels.tiling(plan.config)
    division = plan.once(key, lambda: JaggedDivision(o, wanted, tiling))
    totals = Totals(
        functools.partial(add_tiles, arch=plan.config.arch, stream=call.stream),
        functools.partial(add_rows, arch=plan.config.arch, stream=call.stream),
    )
    rooms = division.rooms(o.query.device)
    assert call.order is not None
    stored = division.launches(call.order, o.query.dtype, totals, rooms)
    launches = (Deal(x.scores, x.hulls, x.order, x.count) for x in stored)
    call = replace(call, stored=division.stored, launches=launches)
    found = kernels.gradients(call, asked)
    return [call.finished(x, found[x]) for x in asked] + division.finished(rooms, o)


def _wanted(needs: Sequence[bool]) -> list[int]:
    """The operands of the program whose gradients are asked for."""
    return [number for number, need in enumerate(needs[3:]) if need]


def _division(
    plan: LaunchPlan, o: Operands[Tensor], needs: Sequence[bool], ctas: int
) -> biases.Division:
    wanted = _wanted(needs)
    key = ("division", *wanted, ctas)
    return plan.once(key, lambda: biases.Division(o, wanted, plan.config.cols, ctas))


def _call(
    plan: LaunchPlan, o: Operands[Tensor], grad_out: Tensor, ctas: int, stream: int, ordered: bool,
    record: Record | None = None,
) -> "BackwardCall":  # fmt: skip
    read, gradient = plan.readable(o), aligned(grad_out)
    order = longest_first(read, plan.config, stream)
    plain = plan.plain and gradient is grad_out and not plan.config.shared
    record = record if plain else None
    return BackwardCall(plan, o, read, gradient, order, ctas, stream, ordered, record)


@functools.cache
def _kernels(folder: str) -> Any:
    """The launches of an architecture."""
    return importlib.import_module(f"..{folder}.backward.launch", __package__)


def _complaint(
    grad_out: Tensor, plan: LaunchPlan, o: Operands[Tensor], needs: Sequence[bool]
) -> str:
    """Why these gradients cannot be given, or ""."""

    def of_the_form() -> str:
        heads, c = (o.key.shape[1], o.value.shape[1]), plan.config
        return (
            no_such_dims(type(c), (c.head_dim, c.value_dim))
            or no_such_heads(*heads, heads[0] == heads[1])
            or no_such_biases(c.program, needs[3:], c.dtype)
        )

    return plan.once(("complaint", *needs), of_the_form) or _unlike_output(grad_out, plan, o)


def _unlike_output(grad_out: Tensor, plan: LaunchPlan, operands: Operands[Tensor]) -> str:
    """Why that is no gradient of the output, or ""."""
    value = operands.value
    given = (grad_out.shape, grad_out.dtype, grad_out.device)
    wanted = (torch.Size(plan.output), value.dtype, value.device)
    return "" if given == wanted else f"the gradient of the output is {given}, not {wanted}"


@dataclass(frozen=True)
class Deal:
    """One launch of a call. scores: where the gradient of an operand goes, a number for each score.
    hulls: where the query tiles of each key tile are noted; else all scores begin at zero, where
    some may not be stored. order, count: the sequences that are dealt, by default those of the
    call."""

    scores: Tensor | None = None
    hulls: Tensor | None = None
    order: Tensor | None = None
    count: int | None = None

    @property
    def matrices(self) -> list[Tensor]:
        return [x for x in (self.scores, self.hulls) if x is not None]


WHOLE = Deal()


def stored_dtypes(config: KernelConfig) -> list[str]:
    """Of the matrices of a launch."""
    scores = [] if config.stored is None else [config.dtype]
    return scores + ["int32"] * config.notes


@dataclass(frozen=True)
class BackwardCall:
    """operands: as given; read: as kernels read them. order: of the sequences. ordered: as
    `backward` has it. record: of a call that can be replayed if it is one launch. stored: the
    operand of the program whose gradient the launches store. rooms: for dQ, dK, dV by letter, if
    they are there. launches: one after the other; whoever gives them reads between them."""

    plan: LaunchPlan
    operands: Operands[Tensor]
    read: Operands[Tensor]
    grad_out: Tensor
    order: Tensor | None
    ctas: int
    stream: int
    ordered: bool
    record: Record | None = None
    stored: int | None = None
    rooms: Mapping[str, Tensor] = field(default_factory=dict)
    launches: Iterable[Deal] = (WHOLE,)

    @property
    def empty(self) -> bool:
        """There is nothing to compute, and every gradient is zero."""
        return self.plan.empty or 0 in self.plan.sizes[4:6]

    def room(self, letter: str) -> Tensor:
        """For a gradient. One that is summed over the batch leaves the kernel in fp32, one for each
        sequence. Rows of a jagged operand that take no part have a gradient of zero: it is cleared
        here, or by the kernel."""
        operand = self.operand(letter)
        if letter in self.rooms:
            return self.rooms[letter]
        if letter in self.plan.config.shared:
            shape = (self.plan.batch, *operand.shape[1:])
            return empty(shape, torch.float32, operand.device)
        room = empty(operand.shape, operand.dtype, operand.device)
        return room.zero_() if operand.dim() == 3 and not self.plan.config.clears else room

    def finished(self, letter: str, grad: Tensor) -> Tensor:
        """Summed over the batch where the operand was shared, always in the same order."""
        operand = self.operand(letter)
        if grad.shape == operand.shape:
            return grad
        return grad.sum(0, keepdim=True).to(operand.dtype)

    def operand(self, letter: str) -> Tensor:
        o = self.operands
        return {"q": o.query, "k": o.key, "v": o.value}[letter]

    def launch(self, launcher: Launcher, others: Sequence[Tensor], own: Deal = WHOLE) -> None:
        """others: the matrices that the kernel takes beside query, key and value, but for those of
        the launch."""
        given, order = [*others, *own.matrices], self.order if own.order is None else own.order
        words = self.plan.call_words(self.read, given, order, self.ctas, self.stream)
        launcher(words, self.plan.form_words(given, own.count))

    def recorded(
        self, launcher: Launcher, others: Sequence[Tensor], results: Sequence[int],
        cleared: Sequence[int],
    ) -> None:  # fmt: skip
        """That launch was all that the call did. results, cleared: which of the others, but the
        first: that is the gradient of O."""
        assert self.record is not None
        form, own = self.plan.form_words(others), others[1:]
        self.record.take(self.plan, launcher, form, self.ctas, own, results, cleared)
