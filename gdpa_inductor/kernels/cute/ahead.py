"""Kernels that processes of Inductor compile while it goes on. The first call finds them on disk.

What is asked for is a guess: no address is known before the first call, and some sizes may not be.
A wrong guess costs another process some seconds, and the first call compiles as without it.
"""

import logging
from collections.abc import Callable, Hashable
from concurrent.futures import Future
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


def ask(kept: Callable[..., Any], *given: Hashable) -> None:
    """Have `kept(*given)` run elsewhere, once; it keeps a kernel on disk. kept: of a module."""
    if (kept, given) not in _ASKED and disk.keeps():
        _ASKED[kept, given] = inductor.in_background(_keep, kept, *given)


def _keep(kept: Callable[..., Any], *given: Hashable) -> None:
    kept(*given)  # a kernel cannot be sent from process to process


def finish(kept: Callable[..., Any], *given: Hashable) -> None:
    """Wait for it, if it was asked for."""
    future = _ASKED.get((kept, given))
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
