"""Launch the backward on Hopper: one kernel computes all gradients. This runs on the host."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ... import launch
from ...backward.jagged_biases import StoredTiling
from ...backward.launch import BackwardCall
from ...backward.roots import adds_all, factor_of, masked
from ...launcher import Launcher
from ...plan import LaunchPlan
from ..config import HALF, Sm90Config


@dataclass(frozen=True)
class BackwardForm:
    """What the form of a call and `stored` decide. A plan keeps it."""

    config: Sm90Config  # the configuration of the kernel
    masked: bool  # the kernel may skip tiles of scores
    # The shape of the counters: one for each 64 columns of each query tile.
    counters: tuple[int, ...]
    launcher: Launcher | None  # the launcher of the kernel, or None if there is nothing to launch


def form_in(plan: LaunchPlan, stored: int | None, ordered: bool, part: str) -> BackwardForm:
    (kernel,) = plan.config.backward_kernels(ordered, stored)
    config = replace(kernel, part=part)
    assert isinstance(config, Sm90Config)
    tiles, columns = -(-plan.sizes[4] // config.query_rows), -(-config.head_dim // HALF)
    launcher = None if plan.empty else launch.launcher(config)
    return BackwardForm(
        config, masked(config), (plan.batch, plan.sizes[1], tiles, columns), launcher
    )


def gradients(call: BackwardCall, letters: str) -> dict[str, Tensor]:
    """dQ, dK and dV by letter: always all of them, even if `letters` has fewer."""
    form = call.plan.once(form_in, call.stored, call.ordered, call.part)
    grads = {letter: call.room(letter) for letter in "qkv"}
    config, grad_query = form.config, grads["q"]
    # The kernel does not write dQ of query tiles that meet no key. It clears such rows of jagged
    # queries itself, but not those that meet no key because of a mask.
    if form.masked or (config.jagged_k and not config.jagged_q):
        call.zero(grad_query)
    if form.launcher is None:
        for stored in call.launches:
            for x in [] if stored is None else stored.matrices:
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
    for stored in call.launches:
        if form.masked and stored is not None and stored.hulls is None:
            call.zero(stored.scores)
        call.launch(form.launcher, matrices, stored)
    # Usually the conversion applies the factor. The sums of a shared query are not converted.
    if "q" in config.shared and (factor := factor_of(config.program, config.stored)) != 1.0:
        sums.mul_(factor)
    return grads


def overwrites(config: Sm90Config, stored: int) -> bool:
    # Whether the gradient of an aux operand may overwrite the operand.
    # Each tile of it is read before it is overwritten. But scores must not be cleared before.
    (kernel,) = config.backward_kernels(True, stored)
    return not masked(kernel)


def tiling(config: Sm90Config) -> StoredTiling:
    return StoredTiling(config.query_rows, config.cols, by_keys=True)
