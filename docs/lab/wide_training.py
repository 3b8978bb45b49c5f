"""Training at head dims of 192 and 256 on Hopper: `python docs/lab/wide_training.py [OPTIONS]`.

Each line is JSON. A case has the milliseconds of a step, in turns, of this backend with CuTe's and
with Triton's kernel of P and dS, and of stock Inductor; those of the same as CUDA graphs; its peak
MiB; and how its gradients break the error rule, or "". Cases are compiled by processes of their
own, all at once.

    --kernels [CTAS ...]                       P and dS of a chunk alone, by both kernels, as CUDA
                                               graphs; CuTe's also with so many CTAs
    --two                                      CuTe's kernel with two warpgroups at any head dim
    --tiles ROWS,KEYS,WARPS,STAGES,STEPS ...   Triton's kernel alone: TFLOP/s of each tile
    --products                                 products of torch's library for chunks: TFLOP/s
    --stored MIB                               bytes of P and dS of a chunk
    --only D,N,MASK ...                        these cases, such as 256,2048,none
    --seconds S                                begin no case after so many
"""

import argparse
import dataclasses
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor import config
from triton.testing import do_bench

import gdpa_inductor  # noqa: F401
from benchmarks.measure import peak_extra_bytes
from docs.tools.timing import graph_times
from gdpa_inductor import lowerings
from gdpa_inductor.kernels.blocked import chunks, loop
from gdpa_inductor.kernels.cute import weights as cute
from gdpa_inductor.kernels.cute.sm90.config import Sm90Weights
from gdpa_inductor.kernels.triton.configs import Config
from gdpa_inductor.lowerings import weights
from gdpa_inductor.lowerings.triton import launch
from gdpa_inductor.ops import operands_of
from gdpa_inductor.program.score_mod import ScoreMod
from tests._judge import Results, difference, results

ROWS, HEADS, TURNS = 32768, 4, 3
CASES = [(d, n, "none") for d in (256, 192) for n in (2048, 8192, 1024)]
CASES += [(d, 2048, mask) for mask in ("causal", "bias") for d in (256, 192)]
TILES = ("128,32,8,3,32", "128,32,8,4,32", "128,32,8,3,16", "128,32,8,3,64", "128,64,8,2,16",
         "128,64,8,3,16", "128,64,8,3,32", "64,64,4,3,16")  # fmt: skip
# Units, rows and columns of a chunk, and the parts of a sum.
PRODUCTS = ((8, 2048, 2048, 1), (32, 1024, 1024, 1), (1, 4096, 8192, 1), (1, 4096, 8192, 2),
            (1, 4096, 8192, 4), (1, 8192, 4096, 1), (1, 8192, 4096, 2))  # fmt: skip
# Program, units, rows and columns of a chunk.
ALONE = (("silu", 8, 2048, 2048), ("silu", 32, 1024, 1024), ("silu", 1, 4096, 8192),
         ("causal", 8, 2048, 2048), ("bias", 8, 2048, 2048))  # fmt: skip
PROGRAMS = {
    "silu": "div(silu(mul(s,{scale})),2048.0)",
    "causal": "where(ge(q_idx,kv_idx),div(silu(mul(s,{scale})),2048.0),0.0)",
    "bias": "a0:f[h,q_idx,kv_idx]; div(silu(add(mul(s,{scale}),a0)),2048.0)",
}
DIRECT = {"cute": weights.direct, "triton": lambda *_: None}  # of P and dS
KERNELS = tuple(DIRECT)
Call = Callable[[], object]


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.silu(query @ key.mT * query.shape[-1] ** -0.5) / query.shape[-2] @ value


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = F.silu(query @ key.mT * query.shape[-1] ** -0.5) / query.shape[-2]
    return scores.tril() @ value


def biased(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    return F.silu(query @ key.mT * query.shape[-1] ** -0.5 + bias) / query.shape[-2] @ value


def milliseconds(call: Call) -> float:
    return round(do_bench(call, warmup=20, rep=120, return_mode="median"), 4)


def peak_mib(call: Call) -> float:
    return round((peak_extra_bytes(call, "cuda") or 0) / 2**20, 1)


def fault(
    function: Callable[..., Tensor], plain: Callable[..., Tensor], given: list[Tensor]
) -> str:
    """How output and gradients of the first (batch, head) break the error rule."""

    def run(call: Callable[..., Tensor], operands: Sequence[Tensor]) -> Results:
        leaves = dict(zip(("query", "key", "value", "bias"), operands, strict=False))
        found = results(lambda **named: call(**named)[:1, :1], leaves)
        own = {name: grad[:1, :1] for name, grad in found.gradients.items()}
        return dataclasses.replace(found, gradients=own)

    head = [t.detach()[:1, :1].clone().requires_grad_() for t in given]
    exact = [t.detach().double().requires_grad_() for t in head]
    return difference(run(function, given), run(plain, head), run(plain, exact))


def use(kernel: str) -> None:
    """Have chunks use this kernel of P and dS from now on."""
    if weights.direct is not DIRECT[kernel]:
        weights.direct = DIRECT[kernel]
        loop._RECORDINGS.clear()


def measure(dim: int, length: int, mask: str, timed: bool = True) -> None:
    torch.manual_seed(0)
    torch.compiler.reset()
    plain = {"none": attention, "causal": causal, "bias": biased}[mask]
    size: tuple[int, ...] = (ROWS // length, HEADS, length, dim)
    given = [
        torch.randn(size, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    ]
    grad = torch.randn_like(given[0])
    if mask == "bias":  # of each head
        size = (1, HEADS, length, length)
        given.append(torch.randn(size, device="cuda", dtype=torch.bfloat16, requires_grad=True))
    options = {"gdpa.expect": 1, "gdpa.profit": False}
    ours = torch.compile(plain, backend="gdpa", options=options, dynamic=False)
    stock = torch.compile(plain, dynamic=False)

    def step(name: str) -> tuple[Tensor, ...]:
        if name in KERNELS:
            use(name)
        return torch.autograd.grad((stock if name == "stock" else ours)(*given), given, grad)

    steps: dict[str, Call] = {name: lambda n=name: step(n) for name in (*KERNELS, "stock")}
    for run in steps.values():
        run()
    if not timed:
        return
    line: dict[str, object] = {"dim": dim, "length": length, "mask": mask}
    line["fault"] = {}
    for name in KERNELS:
        use(name)
        line["fault"][name] = fault(ours, plain, given)
    line["forward"] = milliseconds(lambda: ours(*given).detach())
    found = {name: [] for name in steps}
    for _ in range(TURNS):
        for name, run in steps.items():
            found[name].append(milliseconds(run))
    best = {name: sorted(turns)[TURNS // 2] for name, turns in found.items()}
    line |= found | {"times": {x: round(best["stock"] / best[x], 3) for x in KERNELS}}
    line["graphs"] = as_graphs(steps)
    line["mib"] = {name: peak_mib(run) for name, run in steps.items()}
    line["share"] = round(line["mib"]["cute"] / line["mib"]["stock"], 3)
    print(json.dumps(line), flush=True)


def as_graphs(calls: dict[str, Call]) -> dict[str, list[float]] | str:
    """Milliseconds of each call without the CPU's, or why there are none."""
    try:
        times = graph_times(calls.values(), TURNS)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[-200:]}"
    rounded = [[round(x, 4) for x in turns] for turns in times]
    return dict(zip(calls, rounded, strict=True))


def alone(dim: int, name: str, units: int, rows: int, cols: int, ctas: Sequence[int]) -> None:
    """P and dS of a chunk, by each kernel: TFLOP/s of its two products, whatever a mask hides."""
    torch.manual_seed(0)
    torch.compiler.reset()
    program = PROGRAMS[name].format(scale=repr(dim**-0.5))
    sizes = [(1, units, n, dim) for n in (rows, rows, cols, cols)]
    sizes += [(units, rows, cols)] * (name == "bias")
    given = [torch.randn(size, device="cuda", dtype=torch.bfloat16) for size in sizes]
    needs = [True] * 3 + [False] * (len(given) - 4)

    @functools.partial(torch.compile, dynamic=False, fullgraph=True)
    def by_triton(*tensors: Tensor) -> list[Tensor]:
        op = torch.ops.gdpa.attention_weights.default
        made: list[Tensor] = op(*tensors[:4], [*tensors[4:]], [], program, needs, "")
        return made

    grad, *others = given
    operands = operands_of(*others[:3], others[3:], [], program)
    calls: dict[str, Call] = {"triton": lambda: by_triton(*given)}
    for name_of, n in {"cute": 0, **{f"cute, {n} CTAs": n for n in ctas}}.items():
        calls[name_of] = lambda n=n: cute.weights(grad, operands, ctas=n)
    line: dict[str, object] = {"dim": dim, "program": name, "chunk": [units, rows, cols]}
    results = {x: call() for x, call in calls.items()}
    line["off"] = {
        x: [float((a - b).abs().max()) for a, b in zip(made, results["triton"], strict=True)]
        for x, made in results.items()
    }
    times = as_graphs(calls)
    if isinstance(times, dict):
        flop = 4 * dim * units * rows * cols
        best = {x: sorted(turns)[TURNS // 2] for x, turns in times.items()}
        line["tflops"] = {x: round(flop / ms / 1e9) for x, ms in best.items()}
    print(json.dumps(line | {"ms": times}), flush=True)


def tile(dim: int, text: str) -> None:
    """Triton's kernel of P and dS alone, for a chunk of 32 Mi scores."""
    rows, keys, warps, stages, steps = map(int, text.split(","))
    config_of_tile = Config(rows, keys, warps, stages)
    launch.configs = lambda *_: [config_of_tile]
    launch.PART = steps * keys
    torch.compiler.reset()
    program = str(ScoreMod.parse(f"div(silu(mul(s,{dim**-0.5!r})),2048.0)"))
    size = (1, 8, 2048, dim)
    given = [torch.randn(size, device="cuda", dtype=torch.bfloat16) for _ in range(4)]

    def kernel(*matrices: Tensor) -> list[Tensor]:
        op = torch.ops.gdpa.attention_weights.default
        made: list[Tensor] = op(*matrices, [], [], program, [True] * 3, "")
        return made

    line: dict[str, object] = {"dim": dim, "tile": text}
    try:
        with config.patch(force_disable_caches=True):
            compiled = torch.compile(kernel, dynamic=False, fullgraph=True)
            pairs = zip(compiled(*given), kernel(*given), strict=True)
            line["off"] = [float((x - y).abs().max()) for x, y in pairs]
            line["ms"] = taken = milliseconds(lambda: compiled(*given))
        line["tflops"] = round(4 * dim * 8 * 2048**2 / taken / 1e9)
    except Exception as error:
        line["error"] = f"{type(error).__name__}: {str(error)[-200:]}"
    print(json.dumps(line), flush=True)


def product(dim: int, units: int, rows: int, cols: int, parts: int) -> None:
    """A product of a chunk of 32 Mi scores. parts: of the sum over the columns, a batch each."""
    scores = torch.randn(units, rows, cols, device="cuda", dtype=torch.bfloat16)
    right = torch.randn(units, cols, dim, device="cuda", dtype=torch.bfloat16)
    if parts > 1:
        scores = scores[0].unflatten(1, (parts, -1)).movedim(1, 0)
        right = right[0].unflatten(0, (parts, -1))
    out = torch.empty(len(scores), rows, dim, device="cuda", dtype=torch.bfloat16)
    wide, turned = out.float(), scores.mT.contiguous().mT
    f32, aten = torch.float32, torch.ops.aten
    calls: dict[str, Call] = {
        "bf16": lambda: torch.bmm(scores, right, out=out),
        "fp32": lambda: aten.bmm.dtype_out(scores, right, f32, out=wide),
        "fp32, added": lambda: aten.baddbmm.dtype_out(wide, scores, right, f32, out=wide),
        "turned": lambda: torch.bmm(turned, right, out=out),
        "turned, added": lambda: aten.baddbmm.dtype_out(wide, turned, right, f32, out=wide),
    }
    if parts > 1:
        calls["fp32, summed"] = lambda: (calls["fp32"](), out[0].copy_(wide.sum(0)))
    flop = 2 * units * rows * cols * dim
    rates = {name: round(flop / milliseconds(call) / 1e9) for name, call in calls.items()}
    print(json.dumps({"dim": dim, "product": [units, rows, cols, parts], **rates}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kernels", nargs="*", type=int)
    parser.add_argument("--two", action="store_true")
    parser.add_argument("--tiles", nargs="*")
    parser.add_argument("--products", action="store_true")
    parser.add_argument("--stored", type=int)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--seconds", type=float, default=130)
    parser.add_argument("--warm", action="store_true")
    given = parser.parse_args()
    lowerings.register()
    if given.two:
        os.environ["CUTE_DSL_NO_CACHE"] = "1"  # kernels on disk may have three
        Sm90Weights.tiles = property(lambda _: 2)
    if given.stored:
        chunks.STORED = given.stored << 20
    weights.register()
    if parts(given):
        return
    until = time.monotonic() + given.seconds
    cases = [x.split(",") for x in given.only or ()] or CASES
    if not given.warm:
        command = [sys.executable, __file__, "--warm"]
        command += ["--stored", str(given.stored)] if given.stored else []
        command += ["--two"] * given.two
        each = [[*command, "--only", ",".join(map(str, case))] for case in cases]
        for process in [subprocess.Popen(command) for command in each]:
            process.wait()
    for dim, length, mask in cases:
        if time.monotonic() < until:
            measure(int(dim), int(length), mask, timed=not given.warm)
            torch.cuda.empty_cache()


def parts(given: argparse.Namespace) -> bool:
    """Measure what a step consists of, and return whether that was asked for."""
    for dim in (256, 192):
        for chunk in () if given.kernels is None else ALONE:
            alone(dim, *chunk, given.kernels)
        for text in () if given.tiles is None else given.tiles or TILES:
            tile(dim, text)
        for shape in PRODUCTS if given.products else ():
            product(dim, *shape)
    return given.products or given.tiles is not None or given.kernels is not None


if __name__ == "__main__":
    main()
