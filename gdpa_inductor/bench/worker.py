"""Measures jobs in a process of its own, so that a crash costs one job and not the run.

In on stdin: a JSON list of jobs. Out on stdout, one JSON line each: `{"begin": i}` before job i,
and measurements, the fields of `Measurement`. What a contender raises becomes a measurement with
`error`.
"""

import contextlib
import dataclasses
import functools
import json
import logging
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gdpa_inductor._compat import autograd, dynamo, inductor
from gdpa_inductor.measure import peak_extra_bytes, spread, times_ms

from .cases import Case, Function, Subject
from .contenders import CONTENDERS, OTHERS
from .models import MODELS, training
from .peers import PEERS, build
from .profiled import share
from .subjects import reference, subject

Calls = dict[str, Callable[[], list[Tensor]]]
# Operations relative to the forward's: the backward recomputes the scores in its 5 products.
WEIGHT = {"forward": 1.0, "step": 3.5, "backward": 2.5}


@dataclasses.dataclass(frozen=True)
class Job:
    """Contenders of one job take turns on a CPU. `seconds`: of timing, per contender and measure.
    `peers`: the folder of the public kernels. `cold`: each compiles with empty caches. `turns`: the
    file by which workers that run side by side measure in turn."""

    case: Case
    contenders: tuple[str, ...]
    measures: tuple[str, ...]
    seconds: float = 0.3
    peers: str = ""
    cold: bool = False
    turns: str = ""

    @staticmethod
    def parse(fields: dict[str, Any]) -> "Job":
        lists = {name: tuple(fields[name]) for name in ("contenders", "measures")}
        return Job(**{**fields, **lists, "case": Case.parse(fields["case"])})


@dataclasses.dataclass
class Measurement:
    """One figure. `spread`: of its runs (measure.py). `off`: relative L2 distance from eager in the
    same dtype, of the output (forward) or the worst gradient (step). `said`: what gdpa counted and
    why it refused.

    Of models only: `distance`, the same from eager in the dtype `reference`. `share`, the part of
    the kernels' time in those that read or write as many elements as there are scores. `regions`,
    how many attentions became ours. Of "train" only: `losses`, and `tokens` per second. Of
    "largest" only: the `largest_batch` that fits, by doubling."""

    case: dict[str, Any]
    contender: str
    measure: str
    ms: float | None = None
    tflops: float | None = None
    spread: float | None = None
    peak_mib: float | None = None
    compile_s: float | None = None
    off: float | None = None
    said: str = ""
    error: str = ""
    distance: float | None = None
    reference: str = ""
    share: float | None = None
    regions: int | None = None
    tokens: float | None = None
    losses: list[float] | None = None
    largest_batch: int | None = None


def forward_call(function: Function, on: Subject) -> Callable[[], list[Tensor]]:
    def call() -> list[Tensor]:
        with torch.no_grad():
            return [on.running(function)]

    return call


def step_call(function: Function, on: Subject) -> Callable[[], list[Tensor]]:
    """Forward and backward, all gradients, nothing kept."""

    def call() -> list[Tensor]:
        return list(torch.autograd.grad(on.running(function), on.leaves, on.direction))

    return call


def backward_call(function: Function, on: Subject) -> Callable[[], list[Tensor]]:
    """The backward alone, over and over the same forward."""
    out = on.running(function)

    def call() -> list[Tensor]:
        return list(torch.autograd.grad(out, on.leaves, on.direction, retain_graph=True))

    return call


CALLS = {"forward": forward_call, "step": step_call, "backward": backward_call}


def run_job(job: Job) -> Iterator[Measurement]:
    """Every measure of every contender of the job."""
    torch.set_float32_matmul_precision(job.case.precision)
    for measure in job.measures:
        case = dataclasses.asdict(job.case)
        found = {name: Measurement(case, name, measure) for name in job.contenders}
        if measure in TRAINING:
            for name in job.contenders:
                with failing_into(found[name]), listening() as heard:
                    TRAINING[measure](job.case, name, found[name])
                    found[name].said = what_was_said(heard)
        else:
            with failing_into(*found.values()):
                run_measure(job, measure, subject(job.case), found)
        yield from found.values()


def run_measure(job: Job, measure: str, on: Subject, found: dict[str, Measurement]) -> None:
    """Prepares all contenders, then times and weighs those that could be prepared."""
    # Not between contenders: it would throw away what the one before has compiled.
    torch.compiler.reset()
    is_model = job.case.variant == "model"
    with turn(job, alone=True):  # it takes the most memory
        truth, dtype = exactly(measure, on) if is_model else ([], "")
        release(job.case.device)
    ready: Calls = {}
    for name in job.contenders:
        with turn(job, alone=False), failing_into(found[name]), listening() as heard:
            ready[name] = prepare(job, name, measure, on, found[name])
            found[name].said = what_was_said(heard)
            if truth:
                found[name].distance = worst(ready[name](), truth)
                found[name].reference = dtype
    with turn(job, alone=True):
        weigh(job, measure, ready, found)
    ready.clear()
    release(job.case.device)


def weigh(job: Job, measure: str, ready: Calls, found: dict[str, Measurement]) -> None:
    """Time, memory, and the share of attention in the kernels of a model."""
    for name, times in times_ms(ready, job.case.device, job.seconds).items():
        ms = statistics.median(times)
        found[name].ms, found[name].spread = ms, spread(times) if len(times) > 1 else None
        if job.case.variant not in ("model", "layer"):
            found[name].tflops = job.case.flops * WEIGHT[measure] / ms / 1e9
    for name, call in ready.items():
        peak = peak_extra_bytes(call, job.case.device)
        found[name].peak_mib = None if peak is None else peak / 2**20
        if job.case.variant == "model" and job.case.device == "cuda":
            alone = MODELS[job.case.activation].attentions(job.case)
            found[name].share = share(call, {case.padded_scores for case in alone})


@contextlib.contextmanager
def turn(job: Job, alone: bool) -> Iterator[None]:
    """Beside other workers, or while all of them wait. Beside them Inductor compares its kernels
    alone.
    """
    if not job.turns:
        yield
        return
    import fcntl  # Windows has none

    @contextlib.contextmanager
    def while_others_wait() -> Iterator[None]:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_SH)

    with open(job.turns) as file:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        if alone or job.case.device != "cuda":
            yield
            return
        with inductor.around_comparisons(while_others_wait):
            yield


def release(device: str) -> None:
    """What the allocator keeps, for other workers."""
    if device == "cuda":
        torch.cuda.empty_cache()


def run_training(case: Case, name: str, found: Measurement) -> None:
    """Trains a recommender under one contender."""
    forget()
    trained = training.train(case, CONTENDERS[name])
    found.regions = dynamo.counters["gdpa"]["matched"]
    found.ms, found.spread = statistics.median(trained.ms), spread(trained.ms)
    found.compile_s, found.tokens = trained.compile_s, trained.tokens
    found.losses = trained.losses
    found.peak_mib = None if trained.peak is None else trained.peak / 2**20


def run_largest(case: Case, name: str, found: Measurement) -> None:
    """How many histories one contender can train on at once."""
    forget()
    found.largest_batch = training.largest_batch(case, CONTENDERS[name])


def forget() -> None:
    """What was compiled and counted for the contender before."""
    torch.compiler.reset()
    dynamo.counters.clear()


TRAINING = {"train": run_training, "largest": run_largest}


def exactly(measure: str, on: Subject) -> tuple[list[Tensor], str]:
    """What eager gives in fp64; in fp32 where there is no kernel for doubles, or no memory."""
    for dtype in (torch.float64, torch.float32):
        with contextlib.suppress(RuntimeError):
            exact = reference(on, dtype)
            return CALLS[measure](exact.function, exact)(), str(dtype).removeprefix("torch.")
    return [], ""


def prepare(
    job: Job, name: str, measure: str, on: Subject, found: Measurement
) -> Callable[[], list[Tensor]]:
    """Compiles, runs once, and compares with eager."""
    if name != "eager":
        compiler_loaded(job.case.device)
    dynamo.counters.clear()
    caches = inductor.fresh_cache() if job.cold else contextlib.nullcontext()
    start = time.perf_counter()
    # A backward that will run again must not give its saved buffers away. The whole job is compiled
    # alike, so that its measures share what is cached.
    with caches, autograd.keep_saved_buffers("backward" in job.measures):
        call = CALLS[measure](built(job, name, on), on)
        got = call()
        synchronize(job.case.device)
        found.compile_s = time.perf_counter() - start
    if name.startswith("gdpa"):
        found.regions = dynamo.counters["gdpa"]["matched"]
    if name not in OTHERS and name != "eager":
        # Eager needs the most memory; that it finds none is no fault of the contender.
        with contextlib.suppress(torch.OutOfMemoryError):
            wanted = CALLS[measure](on.function, on)()
            found.off = worst(got, wanted)
    return call


@functools.cache
def compiler_loaded(device: str) -> None:
    """No contender pays for what the first compile of a process loads."""
    torch.compile(lambda x: x + 1)(torch.zeros(8, device=device))


def worst(got: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    return max(distance(g, w) for g, w in zip(got, wanted, strict=True))


def built(job: Job, name: str, on: Subject) -> Function:
    """What the contender runs in place of the case's formula."""
    if name in PEERS:
        return build(name, job.case, job.peers)
    return CONTENDERS[name](on.function)


def distance(got: Tensor, wanted: Tensor) -> float:
    """Relative L2. In slices, so that comparing large tensors takes no memory to speak of."""
    pairs = zip(got.flatten().split(1 << 26), wanted.flatten().split(1 << 26), strict=True)
    apart, norm = 0.0, 0.0
    for g, w in pairs:
        apart += (g.double() - w.double()).square().sum().item()
        norm += w.double().square().sum().item()
    return (apart / norm) ** 0.5 if norm else apart**0.5


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


@contextlib.contextmanager
def failing_into(*found: Measurement) -> Iterator[None]:
    """Notes an exception in the measurements and goes on; a broken device ends the process."""
    try:
        yield
    except Exception as error:
        for measurement in found:
            measurement.error = measurement.error or f"{type(error).__name__}: {error}"[:500]
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


@contextlib.contextmanager
def listening() -> Iterator[list[str]]:
    """What the package logs meanwhile: its matches and refusals."""
    heard: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(off_this_machine(record.getMessage()))

    logger, ear = logging.getLogger("gdpa_inductor"), Ear()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(ear)
    try:
        yield heard
    finally:
        logger.removeHandler(ear)
        logger.setLevel(level)


def off_this_machine(text: str) -> str:
    """Files with their folder, and not where they lie here."""
    return re.sub(r"(?<!\S)/(?:[^\s/:]+/)*([^\s/:]+/[^\s/:]+\.py)", r"\1", text)


def what_was_said(heard: Sequence[str]) -> str:
    counted = {name: n for name, n in dynamo.counters["gdpa"].items() if n}
    return "; ".join([*(f"{name}={n}" for name, n in counted.items()), *heard]) if counted else ""


def main() -> None:
    jobs = [Job.parse(fields) for fields in json.load(sys.stdin)]
    for index, job in enumerate(jobs):
        print(json.dumps({"begin": index}), flush=True)
        for measurement in run_job(job):
            print(json.dumps(dataclasses.asdict(measurement)), flush=True)


if __name__ == "__main__":
    main()
