"""The measurements of `bench ceiling`: its contenders, shape by shape, as JSON lines and tables.

In: the parsed arguments. A contender that is not installed, or computes wrong results, is left out.
"""

import argparse
import dataclasses
import functools
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch import config as functorch_config

from gdpa_inductor._compat import dynamo

from ..cases import ACTIVATIONS, Case, formula
from ..contenders import gdpa, sdpa
from ..machine import header
from ..suites import DENSE_SHAPES, Shape
from ..worker import WEIGHT
from .load import Call, Sampler, turns_ms, under_load

Row = dict[str, Any]
SMALL: Shape = (2, 4, 512, 128)  # the shape on which results are checked
ALLOWED = 0.02  # relative L2 distance from fp64; a correct result in bf16 has about 0.002
SIZE = 8192  # rows and columns of a plain matrix product
TURN = 0.03  # seconds
LOADED = 8192  # the length that is also measured under steady load


class Tensors:
    """Random q, k, v and dO in bf16.

    heads_first:  The tensors as [B, H, N, D].
    rows_first:   The same tensors as [B, N, H, D].
    """

    def __init__(self, shape: Shape) -> None:
        torch.manual_seed(0)
        self.case = Case("silu", "none", *shape, "bfloat16", "cuda")
        self.heads_first = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in "qkvo"]
        self.rows_first = [x.transpose(1, 2).contiguous() for x in self.heads_first]
        for x in (*self.heads_first[:3], *self.rows_first[:3]):
            x.requires_grad_()


def attention(
    function: Callable[..., Any], on: Tensors, measure: str, rows_first: bool = False
) -> Call:
    """A call of the forward, or of the backward alone, of a function of q, k, v.

    rows_first: The function takes [B, N, H, D]. The results of the call are [B, H, N, D] anyway.
    """
    *leaves, direction = on.rows_first if rows_first else on.heads_first

    def output() -> Tensor:
        out = function(*leaves)
        return out[0] if isinstance(out, tuple) else out

    def forward() -> list[Tensor]:
        with torch.no_grad():
            return ordered([output()])

    def ordered(tensors: Sequence[Tensor]) -> list[Tensor]:
        return [x.transpose(1, 2) if rows_first else x for x in tensors]

    if measure == "forward":
        return forward
    with functorch_config.patch(donated_buffer=False):
        out = output()
        call = lambda: ordered(torch.autograd.grad(out, leaves, direction, retain_graph=True))
        call()  # this call compiles, in the context that keeps saved buffers
        return call


def cudnn(on: Tensors, measure: str) -> Call:
    return attention(sdpa("CUDNN_ATTENTION")(formula(on.case)), on, measure)


def flash3(on: Tensors, measure: str) -> Call:
    from fa3_fwd_interface import flash_attn_func

    return attention(flash_attn_func, on, measure, rows_first=True)


def flash4(on: Tensors, measure: str, deterministic: bool = False) -> Call:
    from flash_attn.cute.interface import flash_attn_func

    function = functools.partial(flash_attn_func, deterministic=deterministic)
    return attention(function, on, measure, rows_first=True)


def ours(
    on: Tensors, measure: str, activation: str, kernel: str, deterministic: bool = True
) -> Call:
    function = formula(dataclasses.replace(on.case, activation=activation))
    # By default the second shape would compile a kernel for dynamic shapes.
    compiled = gdpa(dynamic=False, kernel=kernel, deterministic=deterministic)(function)
    return attention(compiled, on, measure)


Make = Callable[[Tensors, str], Call]
Check = Callable[[Tensors, str], float | None]


@dataclasses.dataclass(frozen=True)
class Contender:
    """An attention to measure.

    make:      It returns the call for a measure, or raises an exception.
    computes:  "softmax", or the name of an activation.
    measures:  The measures that it supports.
    """

    make: Make
    computes: str
    measures: tuple[str, ...] = ("forward", "backward")


CONTENDERS = {
    "cudnn": Contender(cudnn, "softmax"),
    "fa3": Contender(flash3, "softmax", ("forward",)),
    "fa4": Contender(flash4, "softmax"),
    "fa4 deterministic": Contender(
        functools.partial(flash4, deterministic=True), "softmax", ("backward",)
    ),
    **{
        f"gdpa {name} {kernel}": Contender(
            functools.partial(ours, activation=name, kernel=kernel), name
        )
        for name in ("silu", "gelu_tanh")
        for kernel in ("triton", "cute")
    },
    "gdpa silu cute, any order": Contender(
        functools.partial(ours, activation="silu", kernel="cute", deterministic=False),
        "silu",
        ("backward",),
    ),
}


def reference(computes: str, on: Tensors, measure: str) -> list[Tensor]:
    """The exact results in fp64: O in the forward, and dQ, dK and dV in the backward."""
    q, k, v, direction = (x.detach().double() for x in on.heads_first)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    scores = q @ k.mT * on.case.head_dim**-0.5
    weights = scores.softmax(-1) if computes == "softmax" else ACTIVATIONS[computes](scores)
    out = weights @ v
    return [out] if measure == "forward" else list(torch.autograd.grad(out, leaves, direction))


def distance(got: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """The largest relative L2 distance of any result."""
    pairs = ((g.detach().double(), w.detach().double()) for g, w in zip(got, wanted, strict=True))
    return max(float((g - w).norm() / w.norm()) for g, w in pairs)


def everybody(measure: str) -> Iterator[tuple[str, Make, Check]]:
    """All contenders of a measure as (name, make, check).

    make:   It returns the call.
    check:  It returns the distance of the call's results from the exact ones, or None if the
            contender computes no meaningful results.
    """
    from .products import LOOPS, Launch, expected

    def check_products(on: Tensors, measure: str, loop: Any) -> float | None:
        tensors = [x.detach() for x in on.heads_first]
        if loop.resident:
            return None
        return distance(Launch(loop, *tensors).results(), expected(loop, *tensors))

    def check(on: Tensors, measure: str, who: Contender) -> float:
        got: Any = who.make(on, measure)()
        return distance(got, reference(who.computes, on, measure))

    for name, loop in LOOPS[measure].items():
        make = lambda on, measure, loop=loop: Launch(loop, *on.heads_first)
        yield name, make, functools.partial(check_products, loop=loop)
    for name, who in CONTENDERS.items():
        if measure in who.measures:
            yield name, who.make, functools.partial(check, who=who)


def calls_of(on: Tensors, measure: str) -> Iterator[tuple[str, Call, float | None]]:
    """(name, call, error) of each contender that is available and computes correct results."""
    small = Tensors(SMALL)
    for name, make, check in everybody(measure):
        try:
            error = check(small, measure)
            if error is not None and error > ALLOWED:
                raise ValueError(f"off by {error:.3f}")
            yield name, make(on, measure), error
        except Exception as why:
            torch.cuda.synchronize()
            print(f"{measure} {name}: {type(why).__name__}: {why}"[:600], file=sys.stderr)


def measured(shape: Shape, measure: str, turns: int, seconds: float) -> Iterator[Row]:
    """A row for each contender at a shape.

    Some fields of a row:

    spread:     The slowest turn over the fastest.
    off:        The relative L2 distance from fp64.
    same_bits:  True if several runs give the same bits. Only loops have this field.
    load:       Rate, clock and power under steady load, at the length LOADED.
    """
    on = Tensors(shape)
    outcomes = {name: (call, error) for name, call, error in calls_of(on, measure)}
    calls = {name: call for name, (call, _) in outcomes.items()}
    flops = on.case.flops * WEIGHT[measure]
    times = turns_ms(calls, turns, TURN)
    with Sampler() as sampler:
        for name, runs in times.items():
            ms = statistics.median(runs)
            row = {"measure": measure, "shape": list(shape), "contender": name, "ms": ms}
            row |= {"tflops": flops / ms / 1e9, "spread": max(runs) / min(runs)}
            row["off"] = outcomes[name][1]
            if repeated := getattr(calls[name], "same_bits", None):
                row["same_bits"] = repeated()
            if seconds and shape[2] == LOADED:
                row["load"] = under_load(calls[name], flops, sampler, seconds)
            yield row


def plain(turns: int, seconds: float) -> Iterator[Row]:
    """A row for a plain matrix product in torch, which runs in cuBLAS."""
    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    call, flops = (lambda: a @ b), 2.0 * SIZE**3
    ms = statistics.median(turns_ms({"": call}, turns, TURN)[""])
    with Sampler() as sampler:
        load = under_load(call, flops, sampler, seconds) if seconds else {}
    yield {"measure": "gemm", "shape": [SIZE] * 3, "contender": "cublas", "ms": ms,
           "tflops": flops / ms / 1e9, "load": load}  # fmt: skip


def table(rows: Sequence[Row], field: Callable[[Row], str]) -> str:
    """A table in Markdown: a line for each contender and measure, a column for each length."""
    lengths = list(dict.fromkeys(r["shape"][2] for r in rows))
    cells = {(r["measure"], r["contender"], r["shape"][2]): field(r) for r in rows}
    names = list(dict.fromkeys((r["measure"], r["contender"]) for r in rows))
    lines = [["", "", *(f"N = {n}" for n in lengths)], ["---"] * (2 + len(lengths))]
    lines += [[*name, *(cells.get((*name, n), "–") for n in lengths)] for name in names]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def loaded(row: Row) -> str:
    """The cell of a row under steady load: TFLOP/s, MHz, W and the share of the peak rate."""
    load = row.get("load") or {}
    if "of_peak" not in load:
        return "–"
    return "{tflops:.0f}, {mhz:.0f} MHz, {watt:.0f} W, {of_peak:.0%}".format(**load)


def run(chosen: argparse.Namespace, argv: Sequence[str]) -> int:
    rows: list[Row] = []

    def keep(more: Iterator[Row]) -> None:
        for row in more:
            rows.append(row)
            print(json.dumps(row), flush=True)

    print(json.dumps(header("cuda", ("ceiling", *argv))), flush=True)
    keep(plain(chosen.turns, chosen.seconds))
    for shape in DENSE_SHAPES:
        for measure in chosen.measures:
            torch.compiler.reset()
            with dynamo.without_limit():  # all contenders compile the same function
                keep(measured(shape, measure, chosen.turns, chosen.seconds))
    print(table(rows[1:], lambda row: f"{row['tflops']:.0f}"))
    print(table([r for r in rows if r.get("load")], loaded))
    return 0
