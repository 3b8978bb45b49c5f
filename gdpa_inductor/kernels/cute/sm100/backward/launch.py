"""Launch the backward on Blackwell: one kernel for each side. This runs on the host."""

import functools
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ... import disk, precompile
from ...backward.launch import WHOLE, BackwardCall, stored_dtypes
from ...backward.roots import masked, roots_of
from ...backward.stored import StoredTiling
from ...classes import TileSize, tables
from ...launcher import Launcher
from ...runtime import Kernel
from ..config import SIDES, Sm100Config, stored_by


def gradients(call: BackwardCall, letters: str) -> dict[str, Tensor]:
    """The gradients in `letters`, and those that the same kernels compute.

    The rows side stores dS as the gradient of a bias. So it runs too if that is wanted.
    """
    grads: dict[str, Tensor] = {}
    for side, own in SIDES.items():
        stored = stored_by(side, call.stored)
        if set(letters) & set(own) or stored is not None:
            outputs = [call.room(letter) for letter in own]
            _launch(call, side, stored, outputs)
            grads |= dict(zip(own, outputs, strict=True))
    return grads


def _launch(call: BackwardCall, side: str, stored: int | None, outputs: list[Tensor]) -> None:
    form = call.plan.once((side, stored), lambda: SideForm.of(call, side, stored))
    if form.launcher is None:
        for x in outputs:
            x.zero_()
    for each in call.launches if stored is not None else (WHOLE,):
        if each.scores is not None and each.hulls is None and form.clears:
            call.zero(each.scores)
        if form.launcher is not None:
            call.launch(form.launcher, (call.grad_out, *outputs), each)


@dataclass(frozen=True)
class SideForm:
    """What the form of a call decides for one side.

    launcher: The launcher, or None if there is nothing to launch. clears: The kernel may not store
    all scores, so they are set to zero before.
    """

    launcher: Launcher | None
    clears: bool

    @staticmethod
    def of(call: BackwardCall, side: str, stored: int | None) -> "SideForm":
        config = replace(call.plan.config, stored=stored)
        assert isinstance(config, Sm100Config)
        if call.empty:
            return SideForm(None, True)
        return SideForm(launcher(config, side), masked(config, weight=False))


def overwrites(config: Sm100Config) -> bool:
    """Whether the gradient of a bias may overwrite the bias: no, because both sides read it."""
    return False


def tiling(config: Sm100Config) -> StoredTiling:
    """The tiles of the stored scores."""
    return StoredTiling(config.rows, config.cols, by_keys=False)


@functools.cache
def launcher(config: Sm100Config, side: str) -> Launcher:
    """The launcher of one side, loaded or compiled once."""
    precompile.finish(__name__, config, side)
    size = TileSize(config.rows, config.cols)
    bounds = tables(config, size, roots_of(config.program, side == "keys", config.stored))
    return Launcher(
        Kernel(object_file(config, side)), config, 3 + len(others(config, side)), bounds
    )


def object_file(config: Sm100Config, side: str) -> bytes:
    """The object file of the kernel, from disk or compiled."""
    return disk.object_file(lambda: compiled(config, side), __name__, config, side)


def others(config: Sm100Config, side: str) -> list[str]:
    """The dtypes of the matrices beside query, key and value: dO, then what the side writes."""
    outputs = ["float32" if letter in config.shared else config.dtype for letter in SIDES[side]]
    return [config.dtype, *outputs, *stored_dtypes(config)]


@functools.cache
def compiled(config: Sm100Config, side: str, more: str = "") -> Any:
    """The compiled kernel of one side. Compiling needs no GPU. more: Further compiler options."""
    from ...compiler import compile_kernel, example
    from .kernel import BackwardKernel

    roots = roots_of(config.program, side == "keys", config.stored)
    arguments = example(config, others(config, side), roots)
    return compile_kernel(BackwardKernel(config, side), arguments, config.arch, more)
