"""`python -m tests.fuzz.kernels`: programs of the grammar on the kernels, at sizes of kernels.

    --seconds T     stop after T seconds (default 60)
    --start S       the first seed (default 0)
    --seed S        only this one: print its source, its operands and what came of it
    --family F      dense (the default) or jagged: of which grammar
    --workers W     processes (default 2)
    --kernels K     which backends, in turn (default: triton cute chunked auto)
    --device D      cuda (the default) or cpu

Every dense program that is fusable, and every jagged one, is compiled whole, whatever it costs.
Jagged ones are called with several batches. Results and gradients have to obey the error rule. The
exit status is not 0 if any breaks it.
"""

import argparse
import contextlib
import dataclasses
import multiprocessing
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.pool import IMapIterator

import torch

from gdpa_inductor import gdpa_backend
from tests._judge import Results, results
from tests.fuzz import growth
from tests.fuzz.__main__ import reproducer
from tests.fuzz.draft import FUSABLE, Program
from tests.fuzz.grammar import generate
from tests.fuzz.runner import BROKEN, RIGHT, WRONG, Outcome, fault_of, loaded, operands_of
from tests.operands import recast

KERNELS = ("triton", "cute", "chunked", "auto")
FAMILIES = {"dense": growth.dense, "jagged": growth.jagged}
UNFIT = {"randomness", "rounding"}  # in another precision they draw or round other values


@dataclasses.dataclass(frozen=True)
class Job:
    seed: int
    kernel: str
    device: str
    family: str = "dense"

    @property
    def program(self) -> Program:
        return FAMILIES[self.family](self.seed, self.device)


def run(job: Job) -> tuple[Job, Outcome, dict[str, int]]:
    """What came of a program, and what its regions were lowered to."""
    program = job.program
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
    fused = _compiled(function, job.kernel, _varies(program))
    traced = torch.compile(function, backend="aot_eager", dynamic=_varies(program))
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
            return WRONG, f"call {number}, {dict(sizes)}: {fault}"
    return RIGHT, ""


def overflows(computed: Results) -> bool:
    """Then it is luck which sums are infinite."""
    every = (*computed.outputs.values(), *computed.gradients.values())
    return not all(x.isfinite().all() for x in every if x.is_floating_point())


def _varies(program: Program) -> bool | None:
    """Half of the jagged programs with several batches are compiled for all sizes at once."""
    return True if program.lengths and program.dynamic and program.seed % 2 else None


def _compiled(function: Callable, kernel: str, dynamic: bool | None) -> Callable:
    options = {"gdpa.profit": False, "gdpa.kernel": kernel}
    backend = lambda graph, operands: gdpa_backend(graph, operands, options=options)
    return torch.compile(function, backend=backend, dynamic=dynamic)


def _moved(operands: Mapping[str, object], device: str) -> dict[str, object]:
    return {
        name: x.detach().to(device).requires_grad_(x.requires_grad) if torch.is_tensor(x) else x
        for name, x in operands.items()
    }


def jobs(start: int, count: int, kernels: list[str], device: str, family: str) -> list[Job]:
    """Of the programs among so many seeds; the kernels take turns."""
    seeds = range(start, start + count)
    fit = seeds if family == "jagged" else [seed for seed in seeds if _fits(generate(seed))]
    return [Job(seed, kernels[i % len(kernels)], device, family) for i, seed in enumerate(fit)]


def _fits(program: Program) -> bool:
    return program.label == FUSABLE and not UNFIT & set(program.features)


def main() -> int:
    a = _arguments()
    if a.seed is not None:
        computed = [run(Job(a.seed, kernel, a.device, a.family)) for kernel in a.kernels]
        for job, outcome, counts in computed:
            print(job, counts, reproducer(outcome), sep="\n")
        return int(any(outcome.failed for _, outcome, _ in computed))
    kinds, lowered, until = Counter[str](), Counter[str](), time.time() + a.seconds
    todo = jobs(a.start, int(20 * a.seconds) + 20, a.kernels, a.device, a.family)
    with multiprocessing.get_context("spawn").Pool(a.workers, torch.set_num_threads, (1,)) as pool:
        for job, outcome, counts in _until(until, pool.imap_unordered(run, todo)):
            kinds[f"{job.kernel}: {outcome.kind}"] += 1
            lowered.update(counts)
            if outcome.failed:
                print(job, counts, reproducer(outcome), sep="\n", flush=True)
    print(dict(kinds), dict(lowered), sep="\n")
    return int(any(kind.endswith((WRONG, BROKEN)) for kind in kinds))


def _until(end: float, results: IMapIterator) -> Iterator:
    """What a pool finds by then; programs that still run are left."""
    with contextlib.suppress(StopIteration, multiprocessing.TimeoutError):
        while True:
            yield results.next(max(0.0, end - time.time()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.kernels", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--family", choices=FAMILIES, default="dense")
    parser.add_argument("--kernels", nargs="+", default=list(KERNELS))
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
