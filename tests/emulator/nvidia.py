"""How NVIDIA's Blackwell examples are called: tensors, options, and the reference of each."""

import importlib.util
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from . import Report, device, recording, run

PROCESSORS = 4  # of the GPU that the examples ask about
BLACKWELL = "cute/blackwell/"
ONE_CTA = {
    "use_2cta_instrs": False,
    "cluster_shape_mnk": (1, 1, 1),
    "mma_inst_shape_mnk": (128, 256, 16),
    "mma_tiler_mnk": (128, 256, 64),
    "ab_stages": 4,
}
# By pairs of CTAs, with products of 128 rows.
HALVED = {"mma_inst_shape_mnk": (128, 256, 16), "mma_tiler_mnk": (128, 256, 64)}


@dataclass(frozen=True)
class Result:
    """error: the largest, relative to the largest value of the reference."""

    error: float
    report: Report


class Hardware:
    """What the examples ask of the driver, which is not there."""

    def __init__(self, *_: object) -> None: ...

    def get_max_active_clusters(self, _: int) -> int:
        return PROCESSORS

    def get_device_multiprocessor_count(self) -> int:
        return PROCESSORS


def versions() -> str:
    from importlib.metadata import version

    return f"nvidia-cutlass-dsl {version('nvidia-cutlass-dsl')}, torch {torch.__version__}"


def load(root: Path, name: str) -> ModuleType:
    """One of the examples, with the device questions answered here."""
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    path = root / BLACKWELL / f"{name}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if helpers := getattr(module, "fmha_utils", None):
        helpers.HardwareInfo = Hardware
    return module


def relative(result: torch.Tensor, reference: torch.Tensor) -> float:
    return float((result.double() - reference.double()).abs().max() / reference.abs().max())


def gemm(
    root: Path, *, script: str, shape: tuple[int, int, int], options: dict[str, Any] | None = None
) -> Result:
    """C = A Bᵀ on small integers: exact. options: of the script; by default it has one CTA."""
    from cutlass import cute
    from cutlass.cute.runtime import from_dlpack

    module = load(root, f"tutorial/tutorial_gemm/{script}")
    if script != "fp16_gemm_0":
        vars(module).update(ONE_CTA if options is None else options)
    m, n, k = shape
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-2, 3, (r, k), generator=generator).half() for r in (m, n))
    c = torch.full((m, n), math.nan, dtype=torch.float16)

    def argument(tensor: torch.Tensor) -> Any:
        view = from_dlpack(device(tensor), assumed_align=32).mark_layout_dynamic(leading_dim=1)
        return view.mark_compact_shape_dynamic(mode=1, divisibility=64)

    arguments = [argument(t) for t in (a, b, c)]
    with recording():
        compiled = cute.compile(module.host_function, *arguments)
    report = run(lambda: compiled(*arguments), (a, b, c), fences=False)
    return Result(relative(c, (a.float() @ b.float().T).half()), report)


def dynamic(tensor: torch.Tensor) -> Any:
    from cutlass.cute.runtime import from_dlpack

    leading = tensor.stride().index(1)
    return from_dlpack(device(tensor), assumed_align=32).mark_layout_dynamic(leading_dim=leading)


def attention(
    root: Path, *, shape: tuple[int, ...], dtype: str = "bfloat16",
    causal: bool = False, persistent: bool = False,
) -> Result:  # fmt: skip
    """shape: batch, queries, keys, heads, key heads, head dim."""
    import cuda.bindings.driver as driver
    from cutlass import Float32, Int32, cute

    module = load(root, "kernel/attention/fmha/fmha")
    b, n, m, h, hk, d = shape
    generator = torch.Generator().manual_seed(0)
    draw = lambda *size: torch.randn(*size, generator=generator).to(getattr(torch, dtype))
    q, k, v = draw(b, n, hk, h // hk, d), draw(b, m, hk, 1, d), draw(b, m, hk, 1, d)
    o, lse = torch.full_like(q, math.nan), torch.full((b, n, hk, h // hk), math.nan)
    masks, scale = module.fmha_utils.MaskEnum, 1 / math.sqrt(d)
    mask = masks.WINDOW_MASK if causal or m % 128 == 0 else masks.RESIDUAL_MASK
    kernel = module.BlackwellFusedMultiHeadAttentionForward(
        Float32, Float32, (128, 128), d, persistent, mask, False, True, use_tma_store=True
    )
    arguments = [
        *map(dynamic, (q, k, v, o)), (b, n, n, m, h, hk, d, d), None, None, dynamic(lse), None,
        scale * math.log2(math.e), scale, 1.0, None, None, Int32(0) if causal else None,
        None, None, driver.CUstream(0), False,
    ]  # fmt: skip
    with recording():
        compiled = cute.compile(kernel, *arguments)
    report = run(lambda: compiled(*arguments), (q, k, v, o, lse), fences=False)
    scores = masked(torch.einsum("bqhrd,bkhxd->bhrqk", q.float(), k.float()) * scale, causal)
    expected = torch.einsum("bhrqk,bkhxd->bqhrd", scores.softmax(-1), v.float())
    expected_lse = scores.logsumexp(-1).permute(0, 3, 1, 2) * math.log2(
        math.e
    )  # as the kernel has it
    return Result(max(relative(o, expected), relative(lse, expected_lse)), report)


def masked(scores: torch.Tensor, causal: bool) -> torch.Tensor:
    if not causal:
        return scores
    return scores.masked_fill(~torch.ones(scores.shape[-2:]).tril().bool(), -math.inf)


@dataclass(frozen=True)
class Gradients:
    """What the backward takes and gives, each matrix as (s, d, h_r, h_k, b), and the leaves of the
    reference with their gradients."""

    inputs: list[torch.Tensor]  # q, k, v, o
    grad_out: torch.Tensor
    lse: torch.Tensor
    outputs: list[torch.Tensor]  # dq, dk, dv
    leaves: list[torch.Tensor]


def gradients(shape: tuple[int, ...], kind: torch.dtype, causal: bool) -> Gradients:
    b, n, m, h, hk, d = shape
    generator = torch.Generator().manual_seed(0)

    def draw(rows: int, heads: int) -> torch.Tensor:
        drawn = torch.randn(b, rows, hk, heads, d, generator=generator).to(kind)
        return drawn.permute(1, 4, 3, 2, 0)

    q, k, v, grad_out = draw(n, h // hk), draw(m, 1), draw(m, 1), draw(n, h // hk)
    leaves = [x.float().requires_grad_() for x in (q, k, v)]
    products = torch.einsum("qdrhb,kdxhb->bhrqk", *leaves[:2])
    scores = masked(products / math.sqrt(d), causal)
    expected = torch.einsum("bhrqk,kdxhb->qdrhb", scores.softmax(-1), leaves[2])
    expected.backward(grad_out.float())
    o = draw(n, h // hk).copy_(expected.detach())
    lse = scores.logsumexp(-1).detach().contiguous().permute(3, 2, 1, 0)
    outputs = [torch.zeros_like(x) for x in (q, k, v)]
    return Gradients([q, k, v, o], grad_out, lse, outputs, leaves)


def attention_backward(
    root: Path, *, shape: tuple[int, ...], dtype: str = "bfloat16", causal: bool = False
) -> Result:
    """shape as `attention`. The kernel frees tensor memory before a last read: not strict."""
    import cuda.bindings.driver as driver
    from cutlass import BFloat16, Float16, Float32, Int32, cute
    from cutlass.cute.runtime import from_dlpack

    def argument(tensor: torch.Tensor) -> Any:
        view = from_dlpack(device(tensor), assumed_align=16).mark_layout_dynamic(leading_dim=1)
        order = {"mode": 1, "stride_order": (4, 0, 3, 2, 1), "divisibility": 64}
        return view.mark_compact_shape_dynamic(**order)

    module = load(root, "kernel/attention/fmha/fmha_bwd")
    b, n, m, h, hk, d = shape
    data = gradients(shape, getattr(torch, dtype), causal)
    cls, masks = module.BlackwellFusedMultiHeadAttentionBackward, module.fmha_utils.MaskEnum
    mask = masks.WINDOW_MASK_BWD if causal or n % 128 == 0 else masks.RESIDUAL_MASK_BWD
    numeric = BFloat16 if dtype == "bfloat16" else Float16
    kernel = cls(numeric, Float32, (128, 128, d), False, mask)
    workspace = torch.zeros(cls._get_workspace_size(n, m, d, h, b, Float32), dtype=torch.uint8)
    matrices = [*data.inputs, *data.outputs, data.grad_out]
    arguments = [
        (n, m, d, ((h // hk, hk), b)), *map(argument, matrices),
        from_dlpack(device(data.lse), assumed_align=16).mark_layout_dynamic(leading_dim=0),
        None, None, 1 / math.sqrt(d), None, Int32(0) if causal else None,
        from_dlpack(device(workspace), assumed_align=16).mark_layout_dynamic(), driver.CUstream(0),
    ]  # fmt: skip
    with recording():
        compiled = cute.compile(kernel, *arguments)
    return each_schedule(lambda: compiled(*arguments), data, [*matrices, data.lse, workspace])


def each_schedule(launch: Callable[[], object], data: Gradients, memory: list) -> Result:
    """dQ is summed over key blocks by bulk reductions, whose order is free: one schedule at a time,
    from zeros."""
    reports, error = [], 0.0
    for schedule in ("lazy", "random", "eager"):
        for tensor in (*data.outputs, memory[-1]):
            tensor.zero_()
        reports.append(run(launch, memory, schedules=[schedule], strict=False, fences=False))
        pairs = zip(data.outputs, data.leaves, strict=True)
        error = max([error, *(relative(x, leaf.grad) for x, leaf in pairs)])
    return Result(error, merged(reports))


def merged(reports: list[Report]) -> Report:
    total = Report()
    for report in reports:
        total.warnings += report.warnings
        total.counts += report.counts
        total.seconds += report.seconds
    return total
