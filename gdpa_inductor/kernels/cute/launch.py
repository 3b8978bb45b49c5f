"""From the operands of a call to a launch; compiled kernels by configuration.

Kernels take raw pointers, sizes and strides, so that compiling needs no tensors and no GPU, and a
launch no DLPack. What follows from the form of a call is computed once (`plan`). Nothing here reads
a length from the device.
"""

import functools
import importlib
from collections.abc import Sequence
from typing import Any

import cuda.bindings.driver as cuda
import torch
from cutlass import Int32, Int64, cute
from torch import Tensor

from ..._compat.device import current_stream
from ...operands import Operands
from ...rejection import GDPAError
from . import ahead, disk
from .config import LETTERS, KernelConfig
from .launcher import SIZES, Launcher, pointer
from .order import longest_first
from .plan import ALIGNMENT, LaunchPlan, plan_of
from .replay import Record


@functools.cache
def compiled(config: KernelConfig, more: str = "") -> Any:
    """The kernel of a configuration, ready to be launched. Needs no GPU. more: compiler options."""
    return cute.compile(forward_kernel(config), *example(config), options=options(config, more))


@functools.cache
def launcher(config: KernelConfig) -> Launcher:
    """Of the forward of a configuration."""
    ahead.finish(__name__, config)
    return Launcher(kept(config), config)


def kept(config: KernelConfig) -> Any:
    """The kernel, from disk or compiled."""
    return disk.kept(lambda: compiled(config), __name__, config)


def forward_kernel(config: KernelConfig) -> Any:
    """The forward of a configuration, before it is compiled."""
    folder = importlib.import_module(f".{config.folder}.forward.kernel", __package__)
    return folder.KERNEL(config)


def options(config: KernelConfig, more: str = "") -> str:
    """Of the compiler."""
    return f"--gpu-arch={config.arch} {more}".rstrip()


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
    plan: LaunchPlan | None = None,
    record: Record | None = None,
) -> Tensor:
    """O of gdpa::attention, in its layout.

    ctas: how many to launch, by default one for each multiprocessor. stream: a handle of the
    current CUDA stream, if it is known. out: where to store, contiguous; with a jagged query it has
    to be zero where no sequence is, unless the kernel clears these rows (`KernelConfig.clears`).
    order: int64, in which the sequences are dealt to the CTAs, by default the longest first. kind:
    for which architecture, by default the device's. plan: that of the call, if it is known. record:
    to be filled, if the call can be replayed.

    Raises:
        GDPAError: what the kernel does not take, and why.
    """
    plan = plan or plan_of(operands, fast, skip, kind)
    own, out = out is None, plan.room(operands) if out is None else out
    if plan.empty:
        return out.zero_()
    ctas, stream = place(operands.query.device, ctas, stream)
    read = plan.readable(operands)
    order = longest_first(read, plan.config, stream) if order is None else order
    call = plan.call_words(read, [out], order, ctas, stream)
    form = plan.output_words if own else plan.form_words([out])
    run = plan.once("forward", lambda: launcher(plan.config))
    run(call, form)
    if record is not None and own and plan.plain:
        record.begin((operands.query, operands.key, operands.value), operands.aux, True)
        record.made(out)
        record.launched(run, call, form, plan.scalars)
        record.finish([out])
    return out


def place(device: torch.device, ctas: int, stream: int | None) -> tuple[int, int]:
    """ctas and stream as given, or one for each multiprocessor, and the current one."""
    if stream is None:
        if torch.cuda.current_device() != device.index:
            raise GDPAError(f"the operands are on {device}, which is not the current device")
        stream = current_stream(device.index)
    return ctas or multiprocessors(device), stream


@functools.cache
def multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def example(config: KernelConfig, others: Sequence[str] = ()) -> tuple[Any, ...]:
    """Arguments of the right types for tracing; nothing is read from them. others: dtypes of the
    matrices beside query, key and value, by default the output's."""
    dtypes = [config.dtype] * 3 + list(others or (config.dtype,))
    jagged = (config.jagged_q, config.jagged_k)
    return (
        tuple(pointer(dtype, ALIGNMENT) for dtype in dtypes),
        tuple(Int32(1) for _ in range(SIZES)),
        tuple(tuple(Int64(8) for _ in range(3)) for _ in dtypes),
        *(pointer(config.offsets) if side else None for side in jagged),
        pointer("int64") if any(jagged) else None,
        tuple((pointer(dtype), tuple(Int64(0) for _ in LETTERS)) for dtype in config.aux) or None,
        tuple(Int64(0) for _ in range(config.mod.num_scalars)) or None,
        Int32(1),
        cuda.CUstream(0),
    )
