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
from ...operands import Operands, dtype_name
from ...rejection import GDPAError
from ..devices import processors
from .bounds import TileBounds, table
from .config import KernelConfig, TableKey
from .launcher import Launcher, load, word_launcher
from .plan import LaunchPlan, offsets_of, plan_of
from .replay import Record

MOST_RANKED = 8192  # sequences; for more, a sort is faster
multiprocessors = functools.cache(processors)  # of each device


@functools.cache
def compiled(config: KernelConfig, more: str = "") -> Any:
    """The compiled kernel of a configuration. Compiling needs no GPU. more: compiler options."""
    from .compiler import compile_kernel, example

    return compile_kernel(kernel_of(config), example(config), config.arch, more)


@functools.cache
def launcher(config: KernelConfig) -> Launcher:
    return Launcher(load("launch", config), config)


def kernel_of(config: KernelConfig) -> Any:
    part = config.kernel if config.kernel in ("forward", "weights") else "backward"
    module = importlib.import_module(f".{config.folder}.{part}.kernel", __package__)
    return module.KERNEL(config)


def launcher_in(plan: LaunchPlan, first: bool) -> Launcher:
    """first: Of the first slice of V, with which row sums are stored."""
    return launcher(plan.config if first else plan.config.without_sums)


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
) -> Any:
    """O of gdpa::attention: dense [B, H, M, Dv], or [L, H, Dv] for a jagged query.

    Of a program with row sums, (O, row sums): these in fp32, [B, H, M] or [L, H].

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
    if record is None or out is not None or order is not None:
        record = Record(fails=True)
    record.begin((o.query, o.key, o.value), o, plan.plain)
    if out is None:
        out = record.add_buffer(empty(plan.output_of(o), o.value.dtype, o.value.device), 0)
        if plan.leaves_rows:
            record.add_clear(out.zero_())
    results = [out]
    if plan.sums_rows:
        sums = empty(plan.output_of(o)[:-1], torch.float32, o.value.device)
        results.append(record.add_buffer(sums, 0))
    if plan.empty:
        return _one_or_both([x.zero_() for x in results])
    ctas, stream = place(o.query.device, ctas, stream)
    read = plan.readable(o)
    order = longest_first(read, plan.config, stream, record) if order is None else order
    tables: dict[TableKey, TileBounds] = {}
    for number, (part, channels) in enumerate(plan.slices(read, out)):
        run = plan.once(launcher_in, number == 0)
        for key in run.tables:
            tables[key] = tables.get(key) or table(plan, read, key, stream, record)
        bounds = [tables[key] for key in run.tables]
        # Row sums are a matrix of one column.
        matrices = [channels, *(x[..., None] for x in results[1:] if number == 0)]
        form = plan.form_words(matrices, tables=bounds)
        call = plan.call_words(part, matrices, order, ctas, stream, bounds)
        run(call, form)
        record.add_kernel(run, call, form, 3 + len(matrices), plan.scalars)
    record.finish(results)
    return _one_or_both(results)


def _one_or_both(results: list[Tensor]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)


def place(device: torch.device, ctas: int, stream: int | None) -> tuple[int, int]:
    """(ctas, stream) as given. Defaults: one CTA for each multiprocessor, the current stream."""
    if stream is None:
        if torch.cuda.current_device() != device.index:
            raise GDPAError(f"the operands are on {device}, which is not the current device")
        stream = current_stream(device.index)
    return ctas or multiprocessors(device), stream


def longest_first(
    operands: Operands[Tensor], config: KernelConfig, stream: int, record: Record
) -> Tensor | None:
    """The numbers of the sequences, longest first, as int64 [B + 1]. None if both sides are dense.

    The last element is 0. It is the counter of the tiles that CTAs have taken (`forward/work.py`).
    """
    offsets = offsets_of(operands)
    if offsets is None:
        return None
    batch = offsets.shape[0] - 1
    if not _is_ranked(offsets.device, batch):
        order = torch.argsort(offsets[1:] - offsets[:-1], descending=True, stable=True)
        return torch.nn.functional.pad(order, (0, 1))
    order = record.add_buffer(empty((batch + 1,), torch.int64, offsets.device))
    ranking = word_launcher("ranking", 4, dtype_name(offsets.dtype), config.arch)
    ranking(offsets.data_ptr(), order.data_ptr(), batch, stream)
    record.add_ranking(ranking, offsets, order, batch)
    return order


def _is_ranked(device: torch.device, batch: int) -> bool:
    return device.type == "cuda" and 0 < batch <= MOST_RANKED
