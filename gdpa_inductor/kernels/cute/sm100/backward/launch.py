"""The gradients of one call on Blackwell: one kernel for each side that is asked for. Host only."""

import functools
from typing import Any

from cutlass import cute
from torch import Tensor

from ... import ahead, disk
from ...backward.launch import BackwardCall
from ...launch import example, options
from ...launcher import Launcher
from ..config import Sm100Config
from .kernel import BackwardKernel

SIDES = {"keys": "kv", "rows": "q"}  # which gradients a side writes


def gradients(call: BackwardCall, asked: str) -> dict[str, Tensor]:
    """By letter, those that are asked for, and what comes with them."""
    found: dict[str, Tensor] = {}
    for side, letters in SIDES.items():
        if set(asked) & set(letters):
            outputs = [call.room(letter) for letter in letters]
            if call.empty:
                outputs = [x.zero_() for x in outputs]
            else:
                config = call.plan.config
                made = call.plan.once(side, functools.partial(launcher, config, side))
                call.launch(made, (call.grad_out, *outputs))
            found |= dict(zip(letters, outputs, strict=True))
    return found


@functools.cache
def launcher(config: Sm100Config, side: str) -> Launcher:
    """Of one side. It takes query, key, value, the gradient of O, and what it writes."""
    ahead.finish(kept, config, side)
    return Launcher(kept(config, side), config, 4 + len(SIDES[side]))


def kept(config: Sm100Config, side: str) -> Any:
    """The kernel, from disk or compiled."""
    return disk.kept(lambda: compiled(config, side), "backward", side, config)


def compile_ahead(config: Sm100Config, ordered: bool) -> None:
    """The kernels of both sides."""
    for side in SIDES:
        ahead.ask(kept, config, side)


@functools.cache
def compiled(config: Sm100Config, side: str, more: str = "") -> Any:
    """The kernel of one side, ready to be launched. Needs no GPU."""
    outputs = ["float32" if letter in config.shared else config.dtype for letter in SIDES[side]]
    arguments = example(config, [config.dtype, *outputs])
    return cute.compile(BackwardKernel(config, side), *arguments, options=options(config, more))
