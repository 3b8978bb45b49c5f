"""Launch the backward on Hopper: one kernel computes all gradients. This runs on the host."""

import torch
from torch import Tensor

from ...backward.launch import BackwardCall, kernel_form
from ...backward.roots import adds_all, factor_of
from ...plan import LaunchPlan
from ..config import HALF, Sm90Config


def counters_in(plan: LaunchPlan) -> tuple[int, ...]:
    """The shape of the counters: one for each 64 columns of each query tile."""
    assert isinstance(plan.config, Sm90Config)
    tiles = -(-plan.sizes[4] // plan.config.query_rows)
    return plan.batch, plan.sizes[1], tiles, -(-plan.config.head_dim // HALF)


def gradients(call: BackwardCall, letters: str) -> dict[str, Tensor]:
    """dQ, dK and dV by letter: always all of them, even if `letters` has fewer."""
    form = call.plan.once(kernel_form, 0, call.stored, call.ordered, call.part)
    grads = {letter: call.room(letter) for letter in "qkv"}
    config, grad_query = form.config, grads["q"]
    assert isinstance(config, Sm90Config)
    # The kernel does not write dQ of query tiles that meet no key. It clears such rows of jagged
    # queries itself, but not those that meet no key because of a mask.
    if form.masked or (config.jagged_k and not config.jagged_q):
        call.zero(grad_query)
    if form.launcher is None:
        call.run(form, (), call.launches)
        return {letter: x.zero_() for letter, x in grads.items()}
    # The sums of a shared query are its gradient in fp32: the kernel does not convert them.
    sums = grad_query
    if "q" not in config.shared:
        sums = call.scratch("sums", grad_query.shape, torch.float32, 0)
    if adds_all(config) and not config.continues:
        call.clear(sums)
    counters = call.scratch("counters", call.plan.once(counters_in), torch.int32)
    call.clear(counters)
    matrices = (call.grad_out, sums, grads["k"], grads["v"], grad_query, counters)
    call.run(form, matrices, call.launches)
    # Usually the conversion applies the factor. The sums of a shared query are not converted.
    if "q" in config.shared and (factor := factor_of(config.program, config.stored)) != 1.0:
        sums.mul_(factor)
    return grads
