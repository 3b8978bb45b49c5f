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
from ..bounds import Table, table
from ..classes import TableKey
from ..config import KernelConfig
from ..launch import place
from ..launcher import Launcher
from ..memory import cleared, for_gradient
from ..order import longest_first
from ..plan import LaunchPlan, aligned, plan_of
from ..replay import Record, Unrecorded
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
    record: Record | None = None,
    spare: Sequence[int] = (),
) -> list[Tensor]:
    """Those gradients of gdpa::attention that `needs` asks for, of query, key, value and the
    operands of the program. They lie as `dense_strides` has it, those of the program's
    operands contiguous, in the dtype of the operand. Equal bits from run
    to run, with as many CTAs.

    ordered: False lets dQ be added up in any order; then its last bits may differ from run to run.
    ctas: how many to launch, by default one for each multiprocessor. stream: a handle of the
    current CUDA stream, if it is known. kind: for which architecture, by default the device's.
    record: to be filled, if the call can be replayed. spare: operands of the program whose memory
    nobody needs afterwards. It may be overwritten, and may be that of their gradient.

    Raises:
        GDPAError: what the kernels do not take, and why.
    """
    o, plan = operands, plan_of(operands, fast, skip, kind)
    if reason := _complaint(grad_out, plan, o, needs):
        raise GDPAError(reason)
    asked = "".join(x for x, need in zip("qkv", needs, strict=False) if need)
    ctas, stream = place(o.query.device, ctas, stream)
    kernels = _kernels(plan.config.folder)
    begun = _call(plan, o, grad_out, ctas, stream, ordered, record)
    if o.jagged or not any(needs[3:]):
        found = _at_once(begun, needs, asked, kernels)
    else:
        division = _division(plan, o, needs, ctas)
        found = _in_parts(begun, division, needs, asked, kernels, (fast, skip, kind), spare)
    begun.record.finish(found)
    return found


def _in_parts(
    begun: "BackwardCall", division: biases.Division, needs: Sequence[bool], asked: str,
    kernels: Any, form: tuple[Any, ...], spare: Sequence[int],
) -> list[Tensor]:  # fmt: skip
    """With gradients of biases, dense. form: how else a part finds its plan."""
    config, record, scratch = begun.plan.config, begun.record, dict[str, Tensor]()

    def launch(part: biases.Part) -> None:
        own, read, gradient = begun.plan, begun.read, begun.grad_out
        if not part.whole:
            own, gradient = plan_of(part.operands, *form), aligned(part.grad_out)
            read = own.readable(part.operands)
            record.fails |= not own.plain or gradient is not part.grad_out
        call = replace(
            begun, plan=own, operands=part.operands, read=read, grad_out=gradient,
            stored=part.stored, rooms=part.rooms, launches=[Deal(part.scores)],
            part=part.keys, shared_scratch=scratch, tables={},
        )  # fmt: skip
        kernels.gradients(call, asked)

    def fast_total(scores: Tensor, own: Tensor, factor: float) -> bool:
        return total(scores, own, factor, config.arch, begun.stream, record)

    if division.direct and not kernels.overwrites(replace(config, stored=division.sums[0].number)):
        spare = ()
    given, grad_out = begun.operands, begun.grad_out
    return biases.gradients(grad_out, given, needs, division, launch, fast_total, record, spare)


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
    key, c = ("division", *wanted, ctas), plan.config
    return plan.once(key, lambda: biases.Division(o, wanted, c.cols, ctas, c.cuts_keys))


def _call(
    plan: LaunchPlan, o: Operands[Tensor], grad_out: Tensor, ctas: int, stream: int, ordered: bool,
    record: Record | None,
) -> "BackwardCall":  # fmt: skip
    read, gradient = plan.readable(o), aligned(grad_out)
    record = record or Unrecorded()
    plain = plan.plain and gradient is grad_out and not plan.config.shared
    record.begin((o.query, o.key, o.value, grad_out), o, plain)
    order = longest_first(read, plan.config, stream, record)
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
            no_such_dims(type(c), (c.head_dim, plan.output[-1]))
            or no_such_heads(*heads, heads[0] == heads[1])
            or no_such_biases(c.program, needs[3:], c.dtype)
        )

    return plan.once(("complaint", *needs), of_the_form) or _unlike_output(grad_out, plan, o)


def _unlike_output(grad_out: Tensor, plan: LaunchPlan, operands: Operands[Tensor]) -> str:
    """Why that is no gradient of the output, or ""."""
    value = operands.value
    given = (grad_out.shape, grad_out.dtype, grad_out.device)
    wanted = (plan.output_of(operands), value.dtype, value.device)
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
    """What the launches of one backward share.

    operands        as given
    read            as kernels read them
    order           of the sequences
    ordered         as `backward` has it
    record          of all that is done
    stored          the operand of the program whose gradient the launches store
    rooms           for dQ, dK, dV by letter, if they are there
    launches        one after the other; whoever gives them reads between them
    part            as `KernelConfig` has it
    shared_scratch  of several calls
    tables          those that were made
    """

    plan: LaunchPlan
    operands: Operands[Tensor]
    read: Operands[Tensor]
    grad_out: Tensor
    order: Tensor | None
    ctas: int
    stream: int
    ordered: bool
    record: Record
    stored: int | None = None
    rooms: Mapping[str, Tensor] = field(default_factory=dict)
    launches: Iterable[Deal] = (WHOLE,)
    part: str = ""
    shared_scratch: dict[str, Tensor] = field(default_factory=dict)
    tables: dict[TableKey, Table] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """There is nothing to compute, and every gradient is zero."""
        return self.plan.empty

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
        room = self.record.made(for_gradient(operand, empty), int(letter != "q"))
        if operand.dim() == 3 and not self.plan.config.clears:
            self.zero(room)
        return room

    def finished(self, letter: str, grad: Tensor) -> Tensor:
        """Summed over the batch where the operand was shared, always in the same order."""
        operand = self.operand(letter)
        if grad.shape == operand.shape:
            return grad
        return grad.sum(0, keepdim=True).to(operand.dtype)

    def operand(self, letter: str) -> Tensor:
        o = self.operands
        return {"q": o.query, "k": o.key, "v": o.value}[letter]

    def scratch(
        self, name: str, shape: Sequence[int], dtype: torch.dtype, side: int | None = None
    ) -> Tensor:
        """Memory for a while: the same for all calls that share it and ask for as much. side: as
        `Record.made` has it."""
        found = self.shared_scratch.get(name)
        if found is None or found.shape != torch.Size(shape):
            found = self.record.made(empty(shape, dtype, self.operands.query.device), side)
            self.shared_scratch[name] = found
        return found

    def clear(self, room: Tensor) -> None:
        """Of 32-bit numbers, by the driver."""
        cleared(room, self.stream)
        self.record.cleared(room)

    def zero(self, room: Tensor) -> None:
        """Whatever its numbers and strides are."""
        room.zero_()
        self.record.cleared(room)

    def table(self, key: TableKey) -> Table:
        if key not in self.tables:
            self.tables[key] = table(self.plan, self.read, key, self.stream, self.record)
        return self.tables[key]

    def launch(self, launcher: Launcher, others: Sequence[Tensor], own: Deal = WHOLE) -> None:
        """others: the matrices that the kernel takes beside query, key and value, but for those of
        the launch."""
        given, order = [*others, *own.matrices], self.order if own.order is None else own.order
        tables = list(map(self.table, launcher.tables))
        words = self.plan.call_words(self.read, given, order, self.ctas, self.stream, tables)
        form = self.plan.form_words(given, own.count, tables)
        launcher(words, form)
        self.record.launched(launcher, words, form, 3 + len(given), self.plan.scalars)
