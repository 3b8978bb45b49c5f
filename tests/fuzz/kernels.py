"""`python -m tests.fuzz.kernels`: programs of the grammar on the kernels, at sizes of kernels.

    --seconds T     stop after T seconds (default 60)
    --start S       the first seed (default 0)
    --seed S        only this one: print its source, its operands and what came of it
    --workers W     processes (default 2)
    --kernels K     which backends, in turn (default: triton cute chunked auto)
    --device D      cuda (the default) or cpu

Every fusable program is compiled whole, whatever it costs. Results and gradients have to obey the
error rule. The exit status is not 0 if any breaks it.
"""

import argparse
import dataclasses
import multiprocessing
import random
import re
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping

import torch

from gdpa_inductor import gdpa_backend
from tests._judge import Results, results
from tests.fuzz.__main__ import reproducer
from tests.fuzz.draft import FUSABLE, STATIC, Program
from tests.fuzz.grammar import generate
from tests.fuzz.runner import BROKEN, RIGHT, WRONG, Outcome, fault_of, loaded, operands_of
from tests.operands import recast

KERNELS = ("triton", "cute", "chunked", "auto")
HEAD_DIMS = (8, 16, 24, 32, 40, 64, 64, 96, 128, 128, 192)
LENGTHS = (1, 2, 15, 17, 63, 64, 65, 100, 127, 128, 129, 191, 256, 300, 513)
_FACTORY = re.compile(r"\btorch\.(arange|empty|eye|full|linspace|ones|tensor|zeros)\(")
UNFIT = {"randomness", "rounding"}  # in another precision they draw or round other values


@dataclasses.dataclass(frozen=True)
class Job:
    seed: int
    kernel: str
    device: str


def grown(program: Program, device: str) -> Program:
    """The same program at sizes of kernels, in bf16 or fp32, on a device."""
    rng = random.Random(program.seed)
    sizes = {"h": rng.choice([1, 2, 4]), "g": rng.choice([1, 2]), "d": rng.choice(HEAD_DIMS)}
    sizes["e"] = rng.choice([sizes["d"], sizes["d"], rng.choice(HEAD_DIMS)])
    drawn = [{"b": rng.randint(1, 3), "n": _length(rng), "m": _length(rng)} for _ in program.sizes]
    if rng.random() < 0.3:
        drawn = [{**each, "m": each["n"]} for each in drawn]
    if len(drawn) > 1:  # marked as varying: then none may be 1
        drawn = [{letter: max(2, size) for letter, size in each.items()} for each in drawn]
    source = program.source.replace('torch.autocast("cpu"', f'torch.autocast("{device}"')
    source = _FACTORY.sub(rf'functools.partial(torch.\1, device="{device}")(', source)
    source = f"import functools\n{source}"
    for letter in STATIC:
        source = re.sub(rf"^(\s+{letter}) = \d+$", rf"\1 = {sizes[letter]}", source, flags=re.M)
    autocast = "wrap:autocast" in program.features
    dtype = "float32" if autocast else rng.choice(["bfloat16", "bfloat16", "float32"])
    return dataclasses.replace(
        program, source=source, dtype=dtype, sizes=tuple({**sizes, **each} for each in drawn)
    )


def _length(rng: random.Random) -> int:
    return rng.choice([rng.choice(LENGTHS), rng.randint(1, 600)])


def run(job: Job) -> tuple[Job, Outcome, dict[str, int]]:
    """What came of a program, and what its regions were lowered to."""
    program = grown(generate(job.seed), job.device)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with loaded(program) as function, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            kind, detail = _judged(program, job, function)
        except Exception:
            kind, detail = WRONG, traceback.format_exc()
    counts = {k: v for k, v in torch._dynamo.utils.counters["gdpa"].items() if "lowered" in k}
    return job, Outcome(program, kind, detail), counts


def _judged(program: Program, job: Job, function: Callable) -> tuple[str, str]:
    fused = _compiled(function, job.kernel)
    traced = torch.compile(function, backend="aot_eager")
    judge = {"training": program.training, "seed": program.seed}
    dtype = getattr(torch, program.dtype)
    for number, sizes in enumerate(program.sizes):
        operands = _moved(operands_of(program, number), job.device)
        try:
            own = results(function, recast(operands, dtype), **judge)
            exact = results(function, recast(operands, torch.float64), **judge)
        except Exception:
            return BROKEN, traceback.format_exc(limit=-2)
        try:
            results(traced, recast(operands, dtype), **judge)
        except Exception as error:
            return RIGHT, f"torch cannot trace it: {error}"
        mine = results(fused, recast(operands, dtype), **judge)
        if overflows(own):
            continue
        fault = fault_of(program, function, operands, (mine, own, exact))
        if fault:
            return WRONG, f"{dict(sizes)}: {fault}"
    return RIGHT, ""


def overflows(found: Results) -> bool:
    """Then it is luck which sums are infinite."""
    every = (*found.outputs.values(), *found.gradients.values())
    return not all(x.isfinite().all() for x in every if x.is_floating_point())


def _compiled(function: Callable, kernel: str) -> Callable:
    options = {"gdpa.profit": False, "gdpa.kernel": kernel}
    return torch.compile(function, backend=lambda g, x: gdpa_backend(g, x, options=options))


def _moved(operands: Mapping[str, object], device: str) -> dict[str, object]:
    return {
        name: x.detach().to(device).requires_grad_(x.requires_grad) if torch.is_tensor(x) else x
        for name, x in operands.items()
    }


def jobs(start: int, count: int, kernels: list[str], device: str) -> list[Job]:
    """Of the fusable programs among so many seeds; the kernels take turns."""
    seeds = range(start, start + count)
    drawn = ((seed, generate(seed)) for seed in seeds)
    fit = [s for s, p in drawn if p.label == FUSABLE and not UNFIT & set(p.features)]
    return [Job(seed, kernels[i % len(kernels)], device) for i, seed in enumerate(fit)]


def main() -> int:
    a = _arguments()
    if a.seed is not None:
        found = [run(Job(a.seed, kernel, a.device)) for kernel in a.kernels]
        for job, outcome, counts in found:
            print(job, counts, reproducer(outcome), sep="\n")
        return int(any(outcome.failed for _, outcome, _ in found))
    kinds, lowered, until = Counter[str](), Counter[str](), time.time() + a.seconds
    todo = jobs(a.start, int(20 * a.seconds) + 20, a.kernels, a.device)
    with multiprocessing.get_context("spawn").Pool(a.workers, torch.set_num_threads, (1,)) as pool:
        for job, outcome, counts in pool.imap_unordered(run, todo):
            kinds[f"{job.kernel}: {outcome.kind}"] += 1
            lowered.update(counts)
            if outcome.failed:
                print(job, counts, reproducer(outcome), sep="\n", flush=True)
            if time.time() > until:
                break
    print(dict(kinds), dict(lowered), sep="\n")
    return int(any(kind.endswith((WRONG, BROKEN)) for kind in kinds))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.kernels", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kernels", nargs="+", default=list(KERNELS))
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
