"""Chunks against stock Inductor on a GPU: `python docs/lab/chunks.py [SECONDS]`.

Each line is a case: milliseconds of stock's forward and step, of the chunked operators, and of both
under a CUDA graph, where no CPU takes part; the CPU's microseconds for a call of the operators; the
chunks of forward and backward; extra MiB; the worst relative error against stock.
"""

import json
import sys
import time
from collections.abc import Callable

import torch
from triton.testing import do_bench

from benchmarks.cases import Case, formula
from docs.tools.timing import issue_seconds
from gdpa_inductor import lowerings
from gdpa_inductor.kernels.blocked import chunks
from gdpa_inductor.kernels.blocked.chunks import passes
from gdpa_inductor.program.score_mod import ScoreMod

PROGRAMS = {
    "relu2": "mul(relu(mul(s,{0})),relu(mul(s,{0})))",
    "silu": "silu(mul(s,{0}))",
    "laplace": "mul(add(erf(div(sub(mul(s,{0}),0.7071067811865476),0.3989422804014327)),1.0),0.5)",
}


def wide(length: int, width: int, activation: str = "relu2") -> Case:
    return Case(activation, "none", 32768 // length, 1, length, 128, "bfloat16", "cuda",
                value_dim=width)  # fmt: skip


def plain(batch: int, length: int, dim: int, dtype: str = "bfloat16") -> Case:
    return Case("silu", "none", batch, 4, length, dim, dtype, "cuda")


CASES = [
    wide(1024, 1024), wide(2048, 1024), wide(4096, 1024), wide(2048, 1536),
    plain(16, 2048, 256), plain(16, 1024, 64, "float32"), plain(4, 4096, 128, "float32"),
    plain(32, 1024, 192), wide(2048, 1024, "laplace"), plain(8, 1024, 64, "float64"),
    wide(1024, 1536), wide(4096, 1536), plain(4, 8192, 256),
]  # fmt: skip

Call = Callable[[], object]


def milliseconds(call: Call) -> float:
    return round(do_bench(call, warmup=8, rep=40, return_mode="median"), 4)


def captured(call: Call) -> float:
    graph = torch.cuda.CUDAGraph()
    call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        kept = call()
    found = milliseconds(graph.replay)
    del kept
    return found


def on_the_cpu(call: Call) -> int:
    return round(issue_seconds(call, 1, 3) * 1e6)


def extra_mib(call: Call) -> float:
    """Beyond what the call returns."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = call()
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    del kept
    return round((torch.cuda.max_memory_allocated() - max(held, before)) / 2**20, 1)


def measure(case: Case, timed: bool = True) -> dict[str, object]:
    torch.manual_seed(0)
    dtype, width = getattr(torch, case.dtype), case.value_dim or case.head_dim
    sizes = (case.head_dim, case.head_dim, width)
    q, k, v = (
        torch.randn(case.batch, case.heads, case.length, size, device="cuda", dtype=dtype,
                    requires_grad=True) for size in sizes
    )  # fmt: skip
    grad = torch.randn_like(v)
    program = str(ScoreMod.parse(PROGRAMS[case.activation].format(repr(case.head_dim**-0.5))))
    given = (*(t.detach() for t in (q, k, v)), [], [], program)
    counts: list[int] = []
    chunks.passes = lambda call: (
        counts.append(sum(len(p.blocks) for p in passes(call))) or passes(call)
    )
    torch.compiler.reset()
    stock = torch.compile(formula(case), dynamic=False)

    def stock_forward() -> object:
        with torch.no_grad():
            return stock(q, k, v)

    def stock_step() -> object:
        return torch.autograd.grad(stock(q, k, v), (q, k, v), grad)

    def forward() -> object:
        return torch.ops.gdpa.attention_chunked(*given)

    def backward() -> object:
        return torch.ops.gdpa.attention_chunked_backward(grad, *given, [True] * 3)

    def step() -> object:
        return forward(), *backward()

    wanted = [stock_forward(), *stock_step()]
    off = max(
        float((x.double() - y.double()).norm() / y.double().norm())
        for x, y in zip(step(), wanted, strict=True)
    )
    chunked = counts[:2]
    del wanted
    if not timed:
        return {}
    return {
        "case": case.label(),
        "stock": [milliseconds(stock_forward), milliseconds(stock_step)],
        "chunked": [milliseconds(forward), milliseconds(step)],
        "stock graph": captured(stock_forward),
        "chunked graph": [captured(forward), captured(step)],
        "cpu us": [on_the_cpu(forward), on_the_cpu(backward)],
        "chunks": chunked,
        "extra MiB": [extra_mib(forward), extra_mib(backward)],
        "off": float(f"{off:.1e}"),
    }


def main() -> None:
    lowerings.register()
    warm = sys.argv[2:]  # I N: compile every N-th case from the I-th on, and no more
    until = time.monotonic() + float(sys.argv[1] if len(sys.argv) > 1 else 600)
    for case in CASES[int(warm[0]) :: int(warm[1])] if warm else CASES:
        if time.monotonic() > until:
            break
        found = measure(case, timed=not warm)
        if found:
            print(json.dumps(found), flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
