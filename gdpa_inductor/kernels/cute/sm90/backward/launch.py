"""The gradients of one call on Hopper: one kernel gives all. Host only."""

import functools
from dataclasses import replace
from typing import Any

import torch
from cutlass import cute
from torch import Tensor

from ...backward.launch import BackwardCall
from ...backward.roots import masked
from ...launch import example, options
from ...launcher import Launcher
from ..config import Sm90Config
from .kernel import HopperBackward


def gradients(call: BackwardCall, asked: str) -> dict[str, Tensor]:
    """By letter; all of them, whatever is asked for."""
    found = {letter: call.room(letter) for letter in "qkv"}
    config, grad_query = call.plan.config, found["q"]
    assert isinstance(config, Sm90Config)
    scores: list[Tensor] = []
    if call.part is not None:
        config, scores = replace(config, stored=call.part.stored), [call.part.scores]
    # Query tiles that meet no key are left out. The kernel clears those of jagged queries, unless a
    # mask leaves them out.
    if masked(config) or (config.jagged_k and not config.jagged_q):
        grad_query.zero_()
    if masked(config) or call.empty:
        for x in scores:
            x.zero_()
    if call.empty:
        return {letter: x.zero_() for letter, x in found.items()}
    # The sums of a shared query are its gradient: they are not converted, but added up later.
    shared = "q" in config.shared
    sums = grad_query if shared else torch.empty_like(grad_query, dtype=torch.float32)
    tiles = -(-call.plan.sizes[4] // config.query_rows)
    shape = (call.plan.batch, call.plan.sizes[1], tiles, 1)
    counters = sums.new_zeros(shape, dtype=torch.int32)
    matrices = (call.grad_out, sums, found["k"], found["v"], grad_query, counters, *scores)
    made = call.plan.launcher(f"backward {config.stored}", lambda _: launcher(config))
    call.launch(made, matrices)
    return found


@functools.cache
def launcher(config: Sm90Config) -> Launcher:
    """It takes query, key, value, the gradient of O, sums and gradients, and counters."""
    return Launcher(compiled(config), config, 3 + len(others(config)))


@functools.cache
def compiled(config: Sm90Config, more: str = "") -> Any:
    """The kernel, ready to be launched. Needs no GPU. more: compiler options."""
    arguments = example(config, others(config))
    return cute.compile(HopperBackward(config), *arguments, options=options(config, more))


def others(config: Sm90Config) -> list[str]:
    """Dtypes of the matrices beside query, key and value."""
    q, k, v = ("float32" if letter in config.shared else config.dtype for letter in "qkv")
    scores = [] if config.stored is None else [config.dtype]
    return [config.dtype, "float32", k, v, q, "int32", *scores]
