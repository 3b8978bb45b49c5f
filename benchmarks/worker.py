"""Measures jobs in a process of its own, so that a crash costs one job and not the run.

In, on stdin: a JSON list of jobs. Out, on stdout: JSON lines. A line is `{"begin": i}` before job
i, or the fields of a `Measurement`. If a contender raises an exception, its measurement has the
message as `error`.
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
from unittest import mock

import torch
from torch import Tensor
from torch._functorch import config
from torch._inductor.utils import fresh_cache

from gdpa_inductor._compat import dynamo

from .cases import Case, Function, Subject
from .contenders import CONTENDERS, OTHERS
from .measure import peak_extra_bytes, spread, times_ms
from .models import MODELS, training
from .peers import PEERS, build
from .profiled import share
from .subjects import reference, subject

Calls = dict[str, Callable[[], list[Tensor]]]
# FLOP relative to a forward with 2 products. A backward has 5, since it recomputes the scores.
WEIGHT = {"forward": 1.0, "step": 3.5, "backward": 2.5}


@dataclasses.dataclass(frozen=True)
class Job:
    """A case with its contenders and measures. On a CPU the contenders of a job take turns.

    seconds:  Seconds of timing, for each contender and measure.
    peers:    The folder of the public kernels.
    cold:     Each contender compiles with empty caches.
    turns:    A file to lock, so that parallel workers measure in turn. "" if there is one worker.
    """

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


SKIPPED = "skipped: budget"  # the error of what the run had no time left for


@dataclasses.dataclass
class Measurement:
    """One figure, or the error of a contender.

    ms:         The median time of a call.
    spread:     The spread of the times (measure.py).
    peak_mib:   Peak memory of a call, beyond that held before, in MiB.
    compile_s:  Seconds of the first call. In "train": of the steps that compiled.
    off:        Relative L2 distance from eager in the same dtype: of the output, or of the worst
                gradient.
    said:       The counters of gdpa, and its log messages, such as refusals.

    Fields of models:

    distance:   The same as `off`, from eager in the dtype `reference`.
    share:      The share of the kernels' time on tensors with as many elements as there are scores.
    regions:    The number of attentions that gdpa fused.

    Fields of the recommender in training:

    tokens:         Tokens per second, in "train".
    losses:         The losses of all steps, in "train".
    largest_batch:  The largest batch that fits, found by doubling, in "largest".
    """

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
    """A call of forward and backward, which returns the gradients of all leaves."""

    def call() -> list[Tensor]:
        return list(torch.autograd.grad(on.running(function), on.leaves, on.direction))

    return call


def backward_call(function: Function, on: Subject) -> Callable[[], list[Tensor]]:
    """A call of the backward alone. All calls share one forward."""
    out = on.running(function)

    def call() -> list[Tensor]:
        return list(torch.autograd.grad(out, on.leaves, on.direction, retain_graph=True))

    return call


CALLS = {"forward": forward_call, "step": step_call, "backward": backward_call}


def run_job(job: Job) -> Iterator[Measurement]:
    """The measurement of every measure and contender of a job."""
    torch.set_float32_matmul_precision(job.case.precision)
    for measure in job.measures:
        case = dataclasses.asdict(job.case)
        measurements = {name: Measurement(case, name, measure) for name in job.contenders}
        if measure in TRAINING:
            for name in job.contenders:
                with failing_into(measurements[name]), listening() as heard:
                    TRAINING[measure](job.case, name, measurements[name])
                    measurements[name].said = what_was_said(heard)
        else:
            with failing_into(*measurements.values()):
                run_measure(job, measure, subject(job.case), measurements)
        yield from measurements.values()


def run_measure(job: Job, measure: str, on: Subject, measurements: dict[str, Measurement]) -> None:
    """Compile all contenders, then measure time and memory of those without an error."""
    # A reset between contenders would remove the compiled code of the one before.
    torch.compiler.reset()
    is_model = job.case.variant == "model"
    with turn(job, alone=True):  # the reference takes the most memory
        truth, dtype = exactly(measure, on) if is_model else ([], "")
        release(job.case.device)
    ready: Calls = {}
    for name in job.contenders:
        with turn(job, alone=False), failing_into(measurements[name]), listening() as heard:
            ready[name] = prepare(job, name, measure, on, measurements[name])
            measurements[name].said = what_was_said(heard)
            if truth:
                measurements[name].distance = worst(ready[name](), truth)
                measurements[name].reference = dtype
    with turn(job, alone=True):
        weigh(job, measure, ready, measurements)
    ready.clear()
    release(job.case.device)


def weigh(job: Job, measure: str, ready: Calls, measurements: dict[str, Measurement]) -> None:
    """Measure time and memory, and for models the share of attention in the kernels' time."""
    for name, times in times_ms(ready, job.case.device, job.seconds).items():
        ms = statistics.median(times)
        measurements[name].ms = ms
        measurements[name].spread = spread(times) if len(times) > 1 else None
        if job.case.variant not in ("model", "layer"):
            measurements[name].tflops = job.case.flops * WEIGHT[measure] / ms / 1e9
    for name, call in ready.items():
        peak = peak_extra_bytes(call, job.case.device)
        measurements[name].peak_mib = None if peak is None else peak / 2**20
        if job.case.variant == "model" and job.case.device == "cuda":
            alone = MODELS[job.case.activation].attentions(job.case)
            measurements[name].share = share(call, {case.padded_scores for case in alone})


@contextlib.contextmanager
def around_comparisons(
    around: Callable[[], contextlib.AbstractContextManager[None]],
) -> Iterator[None]:
    """A context in which Inductor times configurations of Triton kernels inside of `around()`."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    compare = CachingAutotuner.benchmark_all_configs

    def within(*args: Any, **kwargs: Any) -> Any:
        with around():
            return compare(*args, **kwargs)

    with mock.patch.object(CachingAutotuner, "benchmark_all_configs", within):
        yield


@contextlib.contextmanager
def turn(job: Job, alone: bool) -> Iterator[None]:
    """A context for a part of a job that runs alone, or at the same time as other workers.

    If it does not run alone, Inductor's comparisons of kernels in it do: other workers wait.
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
        with around_comparisons(while_others_wait):
            yield


def release(device: str) -> None:
    """Free the memory that torch's allocator caches, so that other workers can use it."""
    if device == "cuda":
        torch.cuda.empty_cache()


def run_training(case: Case, name: str, measurement: Measurement) -> None:
    """Train the recommender under one contender, and fill in its measurement."""
    forget()
    trained = training.train(case, CONTENDERS[name])
    measurement.regions = dynamo.counters["gdpa"]["matched"]
    measurement.ms, measurement.spread = statistics.median(trained.ms), spread(trained.ms)
    measurement.compile_s, measurement.tokens = trained.compile_s, trained.tokens
    measurement.losses = trained.losses
    measurement.peak_mib = None if trained.peak is None else trained.peak / 2**20


def run_largest(case: Case, name: str, measurement: Measurement) -> None:
    """Find the largest batch of histories on which one contender can train."""
    forget()
    measurement.largest_batch = training.largest_batch(case, CONTENDERS[name])


def forget() -> None:
    """Forget the compiled code and the counters of the contender before."""
    torch.compiler.reset()
    dynamo.counters.clear()


TRAINING = {"train": run_training, "largest": run_largest}


def exactly(measure: str, on: Subject) -> tuple[list[Tensor], str]:
    """The results of eager in fp64, and the name of the dtype.

    They are in fp32 if an operator has no kernel for fp64 or memory does not suffice. The list is
    empty if fp32 fails too.
    """
    for dtype in (torch.float64, torch.float32):
        with contextlib.suppress(RuntimeError):
            exact = reference(on, dtype)
            return CALLS[measure](exact.function, exact)(), str(dtype).removeprefix("torch.")
    return [], ""


def prepare(
    job: Job, name: str, measure: str, on: Subject, measurement: Measurement
) -> Callable[[], list[Tensor]]:
    """Compile a contender, run it once, and compare it with eager. Returns the compiled call."""
    if name != "eager":
        compiler_loaded(job.case.device)
    dynamo.counters.clear()
    caches = fresh_cache() if job.cold else contextlib.nullcontext()
    start = time.perf_counter()
    # A backward that runs again must not reuse its saved buffers. All measures of the job are
    # compiled in the same way, so that they share caches.
    reuses = config.donated_buffer and "backward" not in job.measures
    with caches, config.patch(donated_buffer=reuses):
        call = CALLS[measure](built(job, name, on), on)
        got = call()
        synchronize(job.case.device)
        measurement.compile_s = time.perf_counter() - start
    if name.startswith("gdpa"):
        measurement.regions = dynamo.counters["gdpa"]["matched"]
    if name not in OTHERS and name != "eager":
        # Eager needs the most memory. If it runs out of memory, the contender is not at fault.
        with contextlib.suppress(torch.OutOfMemoryError):
            wanted = CALLS[measure](on.function, on)()
            measurement.off = worst(got, wanted)
    return call


@functools.cache
def compiler_loaded(device: str) -> None:
    """Compile something small once, so that no contender pays for loading the compiler."""
    torch.compile(lambda x: x + 1)(torch.zeros(8, device=device))


def worst(got: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    return max(distance(g, w) for g, w in zip(got, wanted, strict=True))


def built(job: Job, name: str, on: Subject) -> Function:
    """The function that a contender runs in place of the case's formula."""
    if name in PEERS:
        return build(name, job.case, job.peers)
    return CONTENDERS[name](on.function)


def distance(got: Tensor, wanted: Tensor) -> float:
    """The relative L2 distance. It is computed in slices, to save memory."""
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
def failing_into(*measurements: Measurement) -> Iterator[None]:
    """A context that writes an exception into the measurements.

    If the device is broken, the exception of torch ends the process.
    """
    try:
        yield
    except Exception as error:
        for measurement in measurements:
            measurement.error = measurement.error or f"{type(error).__name__}: {error}"[:500]
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


@contextlib.contextmanager
def listening() -> Iterator[list[str]]:
    """A context that collects the log messages of the package: matches and refusals."""
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
    """The text with paths shortened to a file and its folder."""
    return re.sub(r"(?<!\S)/(?:[^\s/:]+/)*([^\s/:]+/[^\s/:]+\.py)", r"\1", text)


def what_was_said(heard: Sequence[str]) -> str:
    """The counters of gdpa and the messages in one line. It is "" if nothing was counted."""
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
