"""Kernels that processes of Inductor compile while it goes on. The first call finds them on disk.

What is asked for is a guess: no address is known before the first call, and some sizes may not be.
A wrong guess costs another process some seconds, and the first call compiles as without it. Asking
needs no cutlass, which takes seconds to import.
"""

import gc
import importlib
import logging
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import torch

from ..._compat import inductor, shapes
from ...operands import Operands
from . import disk
from .config import KernelConfig
from .plan import config_for

PATIENCE = 60.0  # seconds; then the first call compiles

log = logging.getLogger("gdpa_inductor")
_ASKED: dict[Hashable, "Future[Any] | None"] = {}


def forward(config: KernelConfig) -> None:
    """Ask for the kernel of a forward."""
    _ask(f"{__package__}.launch", config)


def backward(config: KernelConfig, needs: Sequence[bool], ordered: bool) -> None:
    """Ask for the kernels of a backward, but for sums over what a bias lacks: they compile in no
    time. config: of the call. needs: of query, key, value and the operands of the program."""
    wanted = [number for number, need in enumerate(needs[3:]) if need]
    if wanted and not config.jagged:
        config = replace(config, shared=frozenset())  # see `biases.unshared`
    for given in config.backward_kernels(ordered, wanted[0] if wanted else None):
        _ask(f"{__package__}.{config.folder}.backward.launch", *given)


def _ask(module: str, *given: Hashable) -> None:
    """Have `kept(*given)` of a module run elsewhere, once, unless the kernel is on disk."""
    key = (module, *given)
    if key not in _ASKED and disk.keeps() and not disk.has(*key):
        _ASKED[key] = inductor.in_background(_keep, *key)


def _keep(module: str, *given: Hashable) -> None:
    """In such a process. What it holds already is no garbage: looking through it again and again
    takes a tenth of the time."""
    gc.freeze()
    importlib.import_module(module).kept(*given)


def finish(module: str, *given: Hashable) -> None:
    """Wait for it, if it was asked for."""
    future = _ASKED.get((module, *given))
    try:
        if future is not None:
            future.result(PATIENCE)
    except Exception as error:
        log.debug("a CuTe kernel was not compiled ahead: %s: %s", type(error).__name__, error)


def guess(
    operands: Operands[Any], kind: type[KernelConfig], fast: bool, skip: bool
) -> KernelConfig:
    """The configuration of a call. operands: fake tensors, and sizes that may be symbols."""
    return config_for(operands.filled([_likely(x) for x in operands.flat()]), kind, fast, skip)


def _likely(item: Any) -> Any:
    """A tensor of no memory with the sizes and strides of the hints, its address aligned."""
    if not isinstance(item, torch.Tensor):
        return _hint(item)
    size, strides = ([_hint(x) for x in numbers] for numbers in (item.shape, item.stride()))
    return torch.empty_strided(size, strides, dtype=item.dtype, device="meta")


def _hint(size: Any) -> int:
    """Unknown strides are multiples of 16 bytes."""
    known = shapes.size_hint(size)
    return 8 if known is None else known
