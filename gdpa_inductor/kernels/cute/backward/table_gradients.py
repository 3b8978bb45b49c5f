"""Launches `table_pass`, which sums the gradients of tables that a program looks up.

Each CTA has sums of its own, in fp32. When all are done they are added up (`gathering`). This
module runs on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ...._compat.device import empty
from ....operands import dtype_name
from .. import launch
from ..launcher import Launcher, word_launcher
from ..plan import LaunchPlan
from .roots import factor_of
from .table_config import TableConfig, TableSlice, passes

if TYPE_CHECKING:
    from .launch import BackwardCall


class TableLaunch(NamedTuple):
    """ctas: Of a head."""

    config: TableConfig
    launcher: Launcher
    ctas: int


def table_gradients(call: BackwardCall, wanted: Sequence[int]) -> dict[int, Tensor]:
    """The gradients of tables, by the number of the aux operand.

    Each is summed in a fixed order, which depends on the number of CTAs of the call only.
    """
    o, record = call.operands, call.record
    grads = {n: empty(o.aux[n].shape, o.aux[n].dtype, o.query.device) for n in wanted}
    if call.plan.empty:
        record.fails = True
        return {number: grad.zero_() for number, grad in grads.items()}
    for grad in grads.values():
        record.add_buffer(grad)
    heads = call.plan.sizes[1]
    for config, launcher, ctas in call.plan.once(_launches, call.ctas, *wanted):
        sums = [
            record.add_buffer(empty((ctas, heads, 1, x.places), torch.float32, o.query.device))
            for x in config.slices
        ]
        replace(call, ctas=ctas).launch(launcher, (call.grad_out, *sums))
        for one, own in zip(config.slices, sums, strict=True):
            _gather(call, one, own, grads[one.number], config)
    return grads


def _launches(plan: LaunchPlan, ctas: int, *wanted: int) -> list[TableLaunch]:
    found = []
    for config in passes(plan.config, wanted):
        tiles = plan.batch * -(-plan.sizes[4] // config.tile_rows)
        each = max(1, min(ctas // plan.sizes[1], tiles))
        found.append(TableLaunch(config, launch.launcher(config), each))
    return found


def _gather(
    call: BackwardCall, one: TableSlice, sums: Tensor, grad: Tensor, config: TableConfig
) -> None:
    program = str(call.operands.program)
    factor = factor_of(program, config.stored) / factor_of(program, one.number)
    access = call.operands.program.aux[one.number].access
    steps = [grad.stride(access.index(x)) if x in access else 0 for x in "ht"]
    form = (dtype_name(grad.dtype), factor, "h" in access, config.arch)
    launcher = word_launcher("backward.gathering", 9, *form)
    addresses = (sums.data_ptr(), grad.data_ptr())
    numbers = (one.first, one.places, *sums.shape[:2], *steps)
    launcher(*addresses, *numbers, call.stream)
    call.record.add_sum(launcher, addresses, *numbers)
