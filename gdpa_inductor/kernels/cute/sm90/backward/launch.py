"""Launch the backward on Hopper: one kernel computes all gradients. This runs on the host."""

import functools
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ... import disk, precompile
from ...backward.launch import BackwardCall, stored_dtypes
from ...backward.roots import adds_all, factor_of, masked, roots_of
from ...backward.stored import StoredTiling
from ...classes import TileSize, tables
from ...launcher import Launcher
from ...runtime import Kernel
from ..config import HALF, Sm90Config


@dataclass(frozen=True)
class Form:
    """What the form of a call and `stored` decide. A plan keeps it.

    config:    The configuration of the kernel.
    masked:    The kernel may skip tiles of scores.
    counters:  The shape of the counters: one for each 64 columns of each query tile.
    launcher:  The launcher of the kernel, or None if there is nothing to launch.
    """

    config: Sm90Config
    masked: bool
    counters: tuple[int, ...]
    launcher: Launcher | None

    @staticmethod
    def of(call: BackwardCall, stored: int | None) -> "Form":
        plan = call.plan
        assert isinstance(plan.config, Sm90Config)
        config = replace(plan.config, stored=stored, ordered=call.ordered, part=call.part)
        tiles, columns = -(-plan.sizes[4] // config.query_rows), -(-config.head_dim // HALF)
        kernel = None if call.empty else launcher(config)
        return Form(config, masked(config), (plan.batch, plan.sizes[1], tiles, columns), kernel)


def gradients(call: BackwardCall, letters: str) -> dict[str, Tensor]:
    """dQ, dK and dV by letter: always all of them, even if `letters` has fewer."""
    key = ("backward", call.stored, call.ordered, call.part)
    form = call.plan.once(key, lambda: Form.of(call, call.stored))
    grads = {letter: call.room(letter) for letter in "qkv"}
    config, grad_query = form.config, grads["q"]
    # The kernel does not write dQ of query tiles that meet no key. It clears such rows of jagged
    # queries itself, but not those that meet no key because of a mask.
    if form.masked or (config.jagged_k and not config.jagged_q):
        call.zero(grad_query)
    if form.launcher is None:
        for each in call.launches:
            for x in each.matrices:
                x.zero_()
        return {letter: x.zero_() for letter, x in grads.items()}
    # The sums of a shared query are its gradient in fp32: the kernel does not convert them.
    sums = grad_query
    if "q" not in config.shared:
        sums = call.scratch("sums", grad_query.shape, torch.float32, 0)
    if adds_all(config) and not config.continues:
        call.clear(sums)
    counters = call.scratch("counters", form.counters, torch.int32)
    call.clear(counters)
    matrices = (call.grad_out, sums, grads["k"], grads["v"], grad_query, counters)
    for each in call.launches:
        if form.masked and each.scores is not None and each.hulls is None:
            call.zero(each.scores)
        call.launch(form.launcher, matrices, each)
    # Usually the conversion applies the factor. The sums of a shared query are not converted.
    if "q" in config.shared and (factor := factor_of(config.program, config.stored)) != 1.0:
        sums.mul_(factor)
    return grads


def overwrites(config: Sm90Config) -> bool:
    """Whether the gradient of an aux operand may overwrite the operand.

    Each tile of it is read before it is overwritten. But scores must not be cleared before.
    """
    return not masked(config)


def tiling(config: Sm90Config) -> StoredTiling:
    """The tiles of the stored scores."""
    return StoredTiling(config.query_rows, config.cols, by_keys=True)


@functools.cache
def launcher(config: Sm90Config) -> Launcher:
    """The launcher of the kernel, loaded or compiled once."""
    precompile.finish(__name__, config)
    return launcher_of(Kernel(object_file(config)), config)


def launcher_of(kernel: Kernel, config: Sm90Config) -> Launcher:
    size = TileSize(config.query_rows, config.cols)
    bounds = tables(config, size, roots_of(config.program, stored=config.stored))
    return Launcher(kernel, config, 3 + len(others(config)), bounds)


def object_file(config: Sm90Config) -> bytes:
    """The object file of the kernel, from disk or compiled."""
    return disk.object_file(lambda: compiled(config), __name__, config)


@functools.cache
def compiled(config: Sm90Config, more: str = "") -> Any:
    """The compiled kernel. Compiling needs no GPU. more: Further options of the compiler."""
    from ...compiler import compile_kernel, example
    from .kernel import HopperBackward

    arguments = example(config, others(config), roots_of(config.program, stored=config.stored))
    return compile_kernel(HopperBackward(config), arguments, config.arch, more)


def others(config: Sm90Config) -> list[str]:
    """The dtypes of the matrices beside query, key and value, as `HopperBackward` takes them."""
    q, k, v = ("float32" if letter in config.shared else config.dtype for letter in "qkv")
    return [config.dtype, "float32", k, v, q, "int32", *stored_dtypes(config)]
