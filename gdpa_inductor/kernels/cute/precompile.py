"""Compile CuTe kernels ahead, in worker processes of Inductor, while Inductor lowers the graph.

The lowering calls `forward` or `backward` with the configuration that it expects. A worker compiles
the kernel and stores it on disk (`disk`). The first call of the model then loads it.

The configuration is a guess: addresses are unknown before the first call, and some sizes may be. A
wrong guess costs a worker some seconds. Then the first call compiles its kernel itself. This module
does not import cutlass, which takes seconds.
"""

import gc
import logging
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import torch

from ..._compat import inductor, shapes
from ...operands import Operands, score_shape
from . import disk
from .config import KernelConfig
from .plan import config_for

PATIENCE = 60.0  # seconds that the first call waits for a worker; then it compiles by itself

log = logging.getLogger("gdpa_inductor")
_FUTURES: dict[Hashable, "Future[Any] | None"] = {}


def forward(config: KernelConfig, sliced: bool = False) -> None:
    """Have the kernels of a forward compiled. sliced: V goes in slices."""
    _request("launch", config)
    if sliced:
        _request("launch", config.without_sums)


def backward(
    config: KernelConfig, needs: Sequence[bool], ordered: bool, most: tuple[int, int]
) -> None:
    """Have the kernels of a backward compiled. most: The most queries and keys of a sequence."""
    # The small kernels that sum gradients over the dims that a bias lacks compile in no time.
    wanted = [number for number, need in enumerate(needs[3:]) if need]
    if wanted and not config.jagged:
        config = replace(config, shared=frozenset())  # see `biases.unshared`
    for kernel in config.backward_kernels(ordered, wanted[0] if wanted else None, most):
        _request("launch", kernel)


def weights(config: KernelConfig) -> None:
    """Have the kernel of P and dS compiled."""
    if config.weights_config is not None:
        _request("launch", config.weights_config)


def table(*arguments: Hashable) -> None:
    _request("table_sums", *arguments)


def _request(module: str, *arguments: Hashable) -> None:
    key = (module, *arguments)
    if key not in _FUTURES and disk.keeps() and not disk.has(*key):
        _FUTURES[key] = inductor.in_background(_keep, *key)


def _keep(module: str, *arguments: Hashable) -> None:
    """The worker's part. Objects that it holds already are no garbage, so they are frozen:
    collections that look through them take a tenth of the time.
    """
    gc.freeze()
    disk.kernel_file(module, *arguments)


def finish(module: str, *arguments: Hashable) -> None:
    """Wait until the worker has compiled a kernel, if it was asked to."""
    future = _FUTURES.get((module, *arguments))
    try:
        if future is not None:
            future.result(PATIENCE)
    except Exception as error:
        log.debug("a CuTe kernel was not compiled ahead: %s: %s", type(error).__name__, error)


def guess(
    operands: Operands[Any], kind: type[KernelConfig], fast: bool, skip: bool
) -> KernelConfig:
    """The configuration that a call will probably have. Operands are fake; sizes may be symbols."""
    return config_for(operands.filled([_likely(x) for x in operands.flat()]), kind, fast, skip)


def likely_sizes(operands: Operands[Any]) -> tuple[int, int]:
    """The most queries and keys of a sequence, as a call will probably have them."""
    *_, rows, cols = score_shape(operands)
    return _hint(rows), _hint(cols)


def _likely(item: Any) -> Any:
    if not isinstance(item, torch.Tensor):
        return _hint(item)
    size, strides = ([_hint(x) for x in numbers] for numbers in (item.shape, item.stride()))
    return torch.empty_strided(size, strides, dtype=item.dtype, device="meta")


def _hint(size: Any) -> int:
    """The hint of a size or a stride. An unknown stride is taken as a multiple of 16 bytes."""
    known = shapes.size_hint(size)
    return 8 if known is None else known
