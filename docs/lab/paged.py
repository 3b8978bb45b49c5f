"""Serving from keys and values in pages: time and memory of one attention over a cache.

    python docs/lab/paged.py

It writes a line of JSON for each case: 256 requests of up to 4096 cached rows, bf16, with 1, 16 and
128 new rows each. "dense" reads a cache without pages, fused; "paged" reads pages in place, fused;
"stock" is stock Inductor on the pages. A result is first held to the error rule against fp64, on a
few requests. Times are ms of CUDA graphs, with the L2 cache flushed before each call: the
contenders of a case take turns, and each turn has its median. `extra_mib` is the peak beyond the
inputs. It stops when `--seconds` are over.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import peak_extra_bytes
from docs.tools.timing import graph_times

HEADS = ((4, 64), (8, 128))  # H, D
NEW = (1, 16, 128)
CHECKED = 4  # requests


def attend(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor) -> Tensor:
    """The last rows of each request attend to all rows before them. [B, H, M, D]"""
    rows, keys = query.shape[2], key.shape[2]
    place = lengths[:, None] - rows + torch.arange(rows, device=query.device)
    seen = torch.arange(keys, device=query.device) <= place[:, None, :, None]
    return (F.silu(query @ key.mT * query.shape[-1] ** -0.5) / keys * seen) @ value


def dense(query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
    return attend(query, keys.transpose(1, 2), values.transpose(1, 2), lengths)


def paged(query: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
    key, value = (pool[table].flatten(1, 2) for pool in (keys, values))
    return dense(query, key, value, lengths)


def inputs(o: argparse.Namespace, heads: int, dim: int, new: int, page: int) -> list[Tensor]:
    """query, keys, values, table and lengths; without a page the cache is dense."""
    torch.manual_seed(0)
    drawn = lambda *size: torch.randn(size, device=o.device, dtype=torch.bfloat16)
    query = drawn(o.requests, new, heads, dim).transpose(1, 2)
    lengths = torch.randint(o.rows // 2, o.rows + 1, (o.requests,), device=o.device)
    if not page:
        return [query, *(drawn(o.requests, o.rows, heads, dim) for _ in range(2)), lengths]
    count = o.requests * o.rows // page
    table = torch.randperm(count, device=o.device).view(o.requests, -1)
    table = table.masked_fill(
        torch.arange(o.rows // page, device=o.device) * page >= lengths[:, None], -1
    )
    return [query, *(drawn(count, page, heads, dim) for _ in range(2)), table, lengths]


def fault(function: Callable, out: Tensor, given: list[Tensor]) -> str:
    """The breach of the error rule on a few requests, or ""."""
    query, keys, values, *rest = given
    rest = [x[:CHECKED] for x in rest]
    if len(given) == 4:
        keys, values = keys[:CHECKED], values[:CHECKED]
    few = [query[:CHECKED], keys, values, *rest]
    eager = function(*few)
    copies = few
    if len(given) == 5:  # no pool is converted to fp64
        copies = [few[0], *(pool[rest[0]].flatten(1, 2) for pool in (keys, values)), rest[-1]]
    exact = dense(*(x.double() if x.is_floating_point() else x for x in copies))
    error, bound = ((x[:CHECKED].double() - exact).abs().max().item() for x in (out, eager))
    least = 2 * torch.finfo(out.dtype).eps * exact.abs().max().item()
    return "" if error <= max(2 * bound, least) else f"error {error:.2e}, eager {bound:.2e}"


def checked(function: Callable, given: list[Tensor], fused: bool) -> tuple[Callable, dict]:
    """The compiled function, and what is known of it before it is timed."""
    options = {"gdpa.expect": 1, "gdpa.strict": True, "gdpa.profit": False}
    fused_options = {"backend": "gdpa", "options": options} if fused else {}
    compiled = torch.compile(function, dynamic=False, **fused_options)
    before = time.perf_counter()
    row: dict = {"fault": fault(function, compiled(*given), given)}
    lowered = torch._dynamo.utils.counters["gdpa"]
    row["lowered"] = [name for name in lowered if name.startswith("lowered_")]
    lowered.clear()
    row["compile_s"] = round(time.perf_counter() - before, 1)
    return (lambda: compiled(*given)), row


def measured(o: argparse.Namespace, heads: int, dim: int, new: int) -> Iterator[dict]:
    """A row for each contender of a case."""
    torch._dynamo.reset()
    calls: list[Callable] = []
    rows: list[dict] = []
    for name, page in (("dense", 0), *(("paged", x) for x in o.pages), ("stock", o.pages[0])):
        row = {"contender": name, "H": heads, "D": dim, "new": new, "page": page}
        given = inputs(o, heads, dim, new, page)
        try:
            call, known = checked(paged if page else dense, given, name != "stock")
        except Exception as error:
            yield row | {"error": f"{type(error).__name__}: {error}"[:300]}
            continue
        calls.append(call)
        rows.append(row | known)
    if o.device == "cuda":
        for call, row, times in zip(calls, rows, graph_times(calls, o.turns), strict=True):
            peak = round((peak_extra_bytes(call, "cuda") or 0) / 2**20, 1)
            row |= {"extra_mib": peak, "ms": [round(x, 4) for x in times]}
    yield from rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--pages", type=int, nargs="+", default=[16, 128])
    parser.add_argument("--new", type=int, nargs="+", default=NEW)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=160)
    o, start = parser.parse_args(), time.perf_counter()
    gpu = o.device == "cuda"
    print(
        json.dumps(
            {"device": torch.cuda.get_device_name() if gpu else "cpu", "torch": torch.__version__}
        )
    )
    for (heads, dim), new in itertools.product(HEADS, o.new):
        if time.perf_counter() - start > o.seconds:
            print(json.dumps({"stopped_after_s": o.seconds}))
            break
        for row in measured(o, heads, dim, new):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    with torch.no_grad():
        main()
