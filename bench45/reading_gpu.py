"""`python bench45/reading_gpu.py [--backward]`: how long kernels of programs with tables take.

The forward, and with `--backward` also the backward without gradients of tables, of causal silu
attention in bf16: without a bias, with a table of positions, one of times, and both. Tables lie in
memory as [H, T] and as [T, H]. One process for each case compiles; they run in turn. Prints the
median time of the kernels, errors against fp64 of the first and the last (batch, head), and whether
a second run gives the same bits.
"""

import argparse
import fcntl
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from statistics import median

import torch

from gdpa_inductor.kernels.cute.backward.launch import backward
from gdpa_inductor.kernels.cute.launch import forward
from gdpa_inductor.kernels.cute.sm90 import config
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config
from gdpa_inductor.operands import Operands
from gdpa_inductor.program.score_mod import ScoreMod

SIZES = {"64": (16, 8, 1024, 64), "128": (8, 4, 2048, 128)}
CAUSAL = "where(ge(q_idx,kv_idx),div(silu({}),1024.0),0.0)"
POSITION = "lookup(a0,add(sub(q_idx,kv_idx),{}))"
TABLES = {"positions": "0", "times": "1", "both": "01"}
NAMES = ["none", *(f"{name} {layout}" for name in TABLES for layout in ("h,t", "t,h"))]
BUCKETS = 129
RUNS = 30


def program_of(name: str, n: int) -> ScoreMod:
    kind, _, layout = name.partition(" ")
    position = POSITION.format(n - 1)
    index = "a1:i[b,q_idx,kv_idx]; "
    declared, score = {
        "none": ("", "s"),
        "positions": (f"a0:f[{layout}]; ", f"add(s,{position})"),
        "times": (f"a0:f[{layout}]; {index}", "add(s,lookup(a0,a1))"),
        "both": (
            f"a0:f[{layout}]; {index}a2:f[{layout}]; ",
            f"add(add(s,{position}),lookup(a2,a1))",
        ),
    }[kind]
    return ScoreMod.parse(declared + CAUSAL.format(score))


def operands(name: str, b: int, h: int, n: int, d: int) -> Operands[torch.Tensor]:
    torch.manual_seed(0)
    program = program_of(name, n)
    q, k, v = (torch.randn(b, h, n, d, device="cuda").bfloat16() for _ in range(3))
    times = torch.randn(b, n, device="cuda").mul(2).exp().cumsum(1)
    index = (times[:, :, None] - times[:, None, :]).abs().add(1).log().mul(12)
    index = index.clamp(max=BUCKETS - 1).to(torch.uint8)
    aux = []
    for spec in program.aux:
        if spec.kind == "i":
            aux.append(index)
            continue
        first = not aux and not name.startswith("times")
        table = torch.randn(h, 2 * n - 1 if first else BUCKETS, device="cuda")
        aux.append(table.T.contiguous() if spec.access[0] == "t" else table)
    return Operands(q, k, v, aux, (), program, None, None, 0, 0)


def formula(
    o: Operands[torch.Tensor], place: tuple[int, int], grad: torch.Tensor, dtype: torch.dtype
) -> list[torch.Tensor]:
    (b, h), n = place, o.query.shape[2]
    q, k, v = (x[b, h].to(dtype).requires_grad_() for x in (o.query, o.key, o.value))
    at = torch.arange(n, device="cuda")
    scores = q @ k.mT
    for spec, x in zip(o.program.aux, o.aux, strict=True):
        if spec.kind == "f":
            table = x[:, h] if spec.access[0] == "t" else x[h]
            index = o.aux[1][b].long() if len(table) == BUCKETS else at[:, None] - at + n - 1
            scores = scores + table.to(dtype if dtype == torch.float64 else x.dtype)[index]
    mask = at[:, None] >= at
    out = torch.where(mask, torch.nn.functional.silu(scores) / 1024, 0).to(dtype) @ v
    return [out, *torch.autograd.grad(out, (q, k, v), grad[b, h].to(dtype))]


def error(mine: torch.Tensor, exact: torch.Tensor, theirs: torch.Tensor) -> str:
    mine, exact, theirs = (x.double() for x in (mine, exact, theirs))
    most = (mine - exact).abs().max() / (theirs - exact).abs().max()
    mean = (mine - exact).abs().mean() / (theirs - exact).abs().mean()
    return f"{most:.2f}/{mean:.2f}"


def kernels(run) -> float:
    """Microseconds of all CuTe kernels of a run, the median."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(RUNS):
            run()
        torch.cuda.synchronize()
    times = defaultdict(list)
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA and "cutlass" in event.name:
            times[event.name].append(event.device_time_total)
    return sum(map(median, times.values()))


def measure(size: str, name: str, both: bool, lock) -> str:
    o = operands(name, *SIZES[size])
    grad = torch.randn_like(o.query)
    needs = (True,) * 3 + (False,) * len(o.aux)
    step = lambda: backward(grad, o, needs)
    start = time.time()
    results = [forward(o), *(step() if both else [])]
    torch.cuda.synchronize()
    compiled = time.time() - start
    words = []
    for place in ((0, 0), (o.query.shape[0] - 1, o.query.shape[1] - 1)):
        exact, eager = (formula(o, place, grad, x) for x in (torch.float64, torch.bfloat16))
        pairs = zip(results, exact, eager, strict=False)
        words.append(" ".join(error(x[place], y, z) for x, y, z in pairs))
    fcntl.flock(lock, fcntl.LOCK_EX)
    again = [forward(o), *(step() if both else [])]
    same = all(map(torch.equal, again, results))
    line = f"{size:>4} {name:14} forward {kernels(lambda: forward(o)):6.1f}"
    if both:
        line += f" backward {kernels(step):6.1f}"
    line += f" us; errors of eager's (max/mean) {'; '.join(words)}; same bits {same}"
    return f"{line}; compiled in {compiled:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--only", default="", help="names of cases, or parts of them")
    parser.add_argument("--one", nargs=3)
    parser.add_argument("--set", default="", help="tiles=3 or TABLES=8704: of Sm90Config")
    parser.add_argument("--checks", action="store_true", help="check places on all masked tiles")
    args = parser.parse_args()
    if args.checks:
        from gdpa_inductor.kernels.cute.program import Program

        Program.saves_checks = property(lambda self: False, lambda self, value: None)
    for words in filter(None, args.set.split(",")):
        name, value = words.split("=")
        if name.isupper():
            setattr(config, name, int(value))
        else:
            setattr(Sm90Config, name, property(lambda _, value=int(value): value))
    if args.one:
        size, name, path = args.one
        with open(path, "w") as lock:
            print(measure(size, name, args.backward, lock), flush=True)
        return
    wanted = [(size, name) for size in SIZES for name in NAMES if args.only in f"{size} {name}"]
    more = ["--backward"] * args.backward + [f"--set={args.set}"] + ["--checks"] * args.checks
    with tempfile.NamedTemporaryFile() as lock, tempfile.TemporaryDirectory() as cache:
        own = [sys.executable, __file__, *more, "--one"]
        env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
        env["PYTHONWARNINGS"] = "ignore"
        runs = [subprocess.Popen([*own, *x, lock.name], env=env) for x in wanted]
        for run in runs:
            run.wait()


if __name__ == "__main__":
    main()
