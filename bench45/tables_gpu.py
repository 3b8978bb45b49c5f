"""`python bench45/tables_gpu.py [--no-gradients]`: CuTe kernels of programs that look up tables.

Forward and step (its backward with the gradients of tables) of causal silu attention in bf16:
without a bias, with tables of positions, of times, and both. Prints the time of each kernel,
the peak of memory over what is allocated before, and errors against fp64 of one (batch, head).
"""

import argparse
from collections import defaultdict

import torch

from gdpa_inductor.kernels.cute.backward.launch import backward
from gdpa_inductor.kernels.cute.launch import forward
from gdpa_inductor.operands import Operands
from gdpa_inductor.program.score_mod import ScoreMod

SIZES = [(16, 8, 1024, 64), (16, 4, 1024, 128), (8, 4, 2048, 128)]
CAUSAL = "where(ge(q_idx,kv_idx),div(silu({}),1024.0),0.0)"
POSITION = "lookup(a0,add(sub(q_idx,kv_idx),{}))"
BUCKETS = 129
RUNS = 20


def programs(n: int) -> dict[str, str]:
    position = POSITION.format(n - 1)
    stored = "a0:f[h,q_idx,kv_idx]; "
    times = "a0:f[h,t]; a1:i[b,q_idx,kv_idx]; "
    both = "a0:f[h,t]; a1:i[b,q_idx,kv_idx]; a2:f[h,t]; "
    return {
        "no bias": CAUSAL.format("s"),
        "stored bias": stored + CAUSAL.format("add(s,a0)"),
        "positions": "a0:f[h,t]; " + CAUSAL.format(f"add(s,{position})"),
        "times": times + CAUSAL.format("add(s,lookup(a0,a1))"),
        "both": both + CAUSAL.format(f"add(add(s,{position}),lookup(a2,a1))"),
    }


def operands(name: str, b: int, h: int, n: int, d: int) -> Operands[torch.Tensor]:
    torch.manual_seed(0)
    program = ScoreMod.parse(programs(n)[name])
    q, k, v = (torch.randn(b, h, n, d, device="cuda").bfloat16() for _ in range(3))
    gaps = torch.randn(b, n, device="cuda").mul(2).exp().cumsum(1)
    index = (gaps[:, :, None] - gaps[:, None, :]).abs().add(1).log().mul(12)
    index = index.clamp(max=BUCKETS - 1).to(torch.uint8)
    aux = []
    for spec in program.aux:
        if spec.kind == "i":
            aux.append(index)
        elif spec.is_table:
            first = not aux and name != "times"
            aux.append(torch.randn(h, 2 * n - 1 if first else BUCKETS, device="cuda"))
        else:
            aux.append(torch.randn(h, n, n, device="cuda").bfloat16())
    return Operands(q, k, v, aux, (), program, None, None, 0, 0)


def bias_of(o: Operands[torch.Tensor], name: str, aux: list[torch.Tensor]) -> torch.Tensor:
    """Of batch 0 and head 0."""
    n = o.query.shape[2]
    at = torch.arange(n, device="cuda")
    if name == "no bias":
        return torch.zeros(n, n, device="cuda")
    if name == "stored bias":
        return aux[0][0]
    index = o.aux[1][0].long() if len(o.aux) > 1 else None
    if name == "times":
        return aux[0][0][index]
    position = aux[0][0][at[:, None] - at + n - 1]
    return position if name == "positions" else position + aux[2][0][index]


def formula(o, name: str, grad: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    q, k, v = (x[0, 0].to(dtype).requires_grad_() for x in (o.query, o.key, o.value))
    aux = [x.to(dtype if dtype == torch.float64 else x.dtype) for x in o.aux]
    n = q.shape[0]
    mask = torch.ones(n, n, device="cuda", dtype=torch.bool).tril()
    scores = q @ k.mT + bias_of(o, name, aux)
    out = torch.where(mask, torch.nn.functional.silu(scores) / 1024, 0).to(dtype) @ v
    return [out, *torch.autograd.grad(out, (q, k, v), grad[0, 0].to(dtype))]


def table_gradients(o, name: str, grad, dtype) -> list[torch.Tensor]:
    """Of all batches, in turn, by autograd in `dtype` (scores), sums in fp64."""
    tables = [i for i, spec in enumerate(o.program.aux) if spec.kind == "f"]
    sums = [torch.zeros_like(o.aux[i], dtype=torch.float64) for i in tables]
    n = o.query.shape[2]
    at = torch.arange(n, device="cuda")
    mask = torch.ones(n, n, device="cuda", dtype=torch.bool).tril()
    for b in range(o.query.shape[0]):
        for h in range(o.query.shape[1]):
            q, k, v = (x[b, h].to(dtype) for x in (o.query, o.key, o.value))
            bias, places = torch.zeros(n, n, device="cuda", dtype=torch.float64), []
            for i in tables:
                if not o.program.aux[i].is_table:
                    bias, place = bias + o.aux[i][h].double(), None
                else:
                    place = at[:, None] - at + n - 1
                    if name == "times" or i == 2:
                        place = o.aux[1][b].long()
                    bias = bias + o.aux[i][h].double()[place]
                places.append(place)
            scores = ((q @ k.mT).double() + bias).to(dtype).requires_grad_()
            out = torch.where(mask, torch.nn.functional.silu(scores) / 1024, 0).to(dtype) @ v
            (ds,) = torch.autograd.grad(out, scores, grad[b, h].to(dtype))
            for total, place in zip(sums, places, strict=True):
                if place is None:
                    total[h] += ds.double()
                else:
                    total[h].index_add_(0, place.reshape(-1), ds.double().reshape(-1))
    return sums


def errors(mine, exact, theirs) -> str:
    mine, exact, theirs = (x.double() for x in (mine, exact, theirs))
    most, other = (mine - exact).abs().max().item(), (theirs - exact).abs().max().item()
    mean = ((mine - exact).abs().mean() / (theirs - exact).abs().mean()).item()
    return f"{most:.2e} ({most / max(other, 1e-30):.2f} of eager's, mean {mean:.2f})"


def kernels(run) -> dict[str, float]:
    """Microseconds of each kernel in one run, by name."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(RUNS):
            run()
        torch.cuda.synchronize()
    times = defaultdict(float)
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times[event.name] += event.device_time_total / RUNS
    return dict(sorted(times.items(), key=lambda x: -x[1]))


def short(name: str) -> str:
    return name.replace("kernel_cutlass_kernel_gdpa_inductorkernelscute", "")[:60]


def show(what: str, run) -> None:
    times = kernels(run)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    print(f"  {what}: {sum(times.values()):.0f} us, peak +{peak:.0f} MiB", flush=True)
    for name, time in times.items():
        if time > 0.5:
            print(f"    {time:8.1f}  {short(name)}")


def bench(name: str, sizes: tuple[int, int, int, int], gradients: bool) -> None:
    o = operands(name, *sizes)
    grad = torch.randn_like(o.query)
    learned = [gradients and spec.kind == "f" for spec in o.program.aux]
    needs = (True, True, True, *learned)
    print(f" {name}: {o.program}")
    out = forward(o)
    exact = formula(o, name, grad, torch.float64)
    eager = formula(o, name, grad, torch.bfloat16)
    print(f"  O {errors(out[0, 0], exact[0], eager[0])}")
    show("forward", lambda: forward(o))
    grads = backward(grad, o, needs)
    for letter, mine, truth, other in zip("qkv", grads, exact[1:], eager[1:], strict=False):
        print(f"  d{letter} {errors(mine[0, 0], truth, other)}")
    if any(learned):
        truths = table_gradients(o, name, grad, torch.float64)
        others = table_gradients(o, name, grad, torch.bfloat16)
        for mine, truth, other in zip(grads[3:], truths, others, strict=True):
            print(f"  da {errors(mine, truth, other)}")
    again = all(map(torch.equal, backward(grad, o, needs), grads))
    print(f"  the same bits: {again}")
    show("backward", lambda: backward(grad, o, needs))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--no-gradients", action="store_true", help="not those of tables")
    parser.add_argument("--sizes", type=int, default=3)
    parser.add_argument("--names", default="")
    args = parser.parse_args()
    for sizes in SIZES[: args.sizes]:
        b, h, n, d = sizes
        print(f"(B,H,N,D) = {sizes}; one matrix {b * h * n * d * 2 / 2**20:.0f} MiB")
        for name in programs(n):
            if not args.names or name in args.names.split(","):
                try:
                    bench(name, sizes, not args.no_gradients)
                except Exception as error:
                    print(f"  failed: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
