"""Run the forward of a call: `forward` takes its operands and launches the compiled kernel.

Kernels take raw pointers, sizes and strides. So compiling needs no tensors and no GPU, and a launch
needs no DLPack. All that the form of a call decides is computed once (`plan`). The host reads no
sequence length from the device. cutlass is imported only to compile a kernel.
"""

import functools
import importlib
from typing import Any

import torch
from torch import Tensor

from ..._compat.device import current_stream, empty
from ...operands import Operands
from ...rejection import GDPAError
from . import disk, precompile
from .bounds import table
from .classes import TileSize, tables
from .config import KernelConfig
from .launcher import Launcher
from .order import longest_first
from .plan import plan_of
from .replay import Record, Unrecorded
from .runtime import Kernel


@functools.cache
def compiled(config: KernelConfig, more: str = "") -> Any:
    """The compiled kernel of a configuration. Compiling needs no GPU. more: compiler options."""
    from .compiler import compile_kernel, example

    return compile_kernel(forward_kernel(config), example(config), config.arch, more)


@functools.cache
def launcher(config: KernelConfig) -> Launcher:
    """The launcher of the forward kernel of a configuration, loaded or compiled once."""
    precompile.finish(__name__, config)
    return launcher_of(Kernel(object_file(config)), config)


def launcher_of(kernel: Kernel, config: KernelConfig) -> Launcher:
    return Launcher(kernel, config, tables=tables(config, TileSize(config.rows, config.cols)))


def object_file(config: KernelConfig) -> bytes:
    """The object file of the forward kernel, from disk or compiled."""
    return disk.object_file(lambda: compiled(config), __name__, config)


def forward_kernel(config: KernelConfig) -> Any:
    """The forward kernel of a configuration, not compiled."""
    folder = importlib.import_module(f".{config.folder}.forward.kernel", __package__)
    return folder.KERNEL(config)


def forward(
    operands: Operands[Tensor],
    *,
    fast: bool = True,
    skip: bool = True,
    ctas: int = 0,
    stream: int | None = None,
    out: Tensor | None = None,
    order: Tensor | None = None,
    kind: type[KernelConfig] | None = None,
    record: Record | None = None,
) -> Tensor:
    """O of gdpa::attention: dense [B, H, M, Dv], or [L, H, Dv] for a jagged query.

    Args:
        fast: Use approximate functions (emit.py).
        skip: Skip tiles where the score program is zero.
        ctas: How many CTAs to launch. By default one for each multiprocessor.
        stream: A handle of the current CUDA stream, if the caller has it.
        out: A contiguous tensor for O. With a jagged query its rows that no sequence owns have to
            be zero, unless the kernel clears them (`KernelConfig.clears`).
        order: The order in which CTAs take sequences, with a zero at the end as a counter. By
            default the longest come first (`longest_first`).
        kind: The configuration class of an architecture. By default that of the device.
        record: Gets the steps of the call, if the caller wants to replay it (replay.py).

    Raises:
        GDPAError: The kernel does not take the operands. The message says why.
    """
    o, plan = operands, plan_of(operands, fast, skip, kind)
    record = Unrecorded() if record is None or out is not None or order is not None else record
    record.begin((o.query, o.key, o.value), o, plan.plain)
    if out is None:
        out = record.add_buffer(empty(plan.output_of(o), o.value.dtype, o.value.device), 0)
        if plan.leaves_rows:
            record.add_clear(out.zero_())
    if plan.empty:
        return out.zero_()
    ctas, stream = place(o.query.device, ctas, stream)
    read = plan.readable(o)
    order = longest_first(read, plan.config, stream, record) if order is None else order
    run = plan.once("forward", lambda: launcher(plan.config))
    bounds = [table(plan, read, key, stream, record) for key in run.tables]
    form = plan.form_words([out], tables=bounds)
    for part, channels in plan.slices(read, out):
        call = plan.call_words(part, [channels], order, ctas, stream, bounds)
        run(call, form)
        record.add_kernel(run, call, form, 4, plan.scalars)
    record.finish([out])
    return out


def place(device: torch.device, ctas: int, stream: int | None) -> tuple[int, int]:
    """(ctas, stream) as given. Defaults: one CTA for each multiprocessor, the current stream."""
    if stream is None:
        if torch.cuda.current_device() != device.index:
            raise GDPAError(f"the operands are on {device}, which is not the current device")
        stream = current_stream(device.index)
    return ctas or multiprocessors(device), stream


@functools.cache
def multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
