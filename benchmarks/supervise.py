"""Runs jobs in worker processes, within a budget of time. A crash costs only the job that crashed.

In: jobs. Out: measurements as dicts, as soon as they are there. A job that crashed its worker gives
measurements with `error`. So does a job for which no time is left: the error is SKIPPED.
"""

import dataclasses
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .worker import SKIPPED, Job, Measurement

Row = dict[str, Any]


def supervise(jobs: Sequence[Job], budget: float, env: Mapping[str, str]) -> Iterator[Row]:
    """Measurements of all jobs. If a worker dies, a new one continues after the job that failed.

    budget: Seconds for all jobs. env: The environment of the workers.
    """
    deadline = time.monotonic() + budget
    start = 0
    while start < len(jobs):
        if time.monotonic() >= deadline:
            yield from lost(jobs[start:], SKIPPED)
            return
        reached = 0
        seen: set[tuple[str, str]] = set()
        for row in one_worker(jobs[start:], deadline, env):
            if "begin" in row:
                reached, seen = row["begin"], set()
            elif "ended" in row:
                break
            else:
                seen.add((row["contender"], row["measure"]))
                yield row
        else:
            why = SKIPPED if time.monotonic() >= deadline else "the worker died"
            rest = lost(jobs[start + reached : start + reached + 1], why)
            yield from (r for r in rest if (r["contender"], r["measure"]) not in seen)
            start += reached + 1
            continue
        return


def cold_and_warm(
    jobs: Sequence[Job], budget: float, env: Mapping[str, str], at_once: int = 1
) -> Iterator[Row]:
    """Each job in two processes, one after the other.

    The first, of measure "cold", begins with empty caches. The second, of measure "warm", finds in
    them what the first has compiled. at_once: The number of jobs that run at the same time.
    """
    deadline = time.monotonic() + budget

    def both(job: Job) -> Iterator[Row]:
        with tempfile.TemporaryDirectory(prefix="gdpa-bench-") as folder:
            caches = {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": f"{folder}/triton"}
            for measure in ("cold", "warm"):
                left = deadline - time.monotonic()
                for row in supervise([job], left, {**env, **caches}):
                    yield {**row, "measure": measure}

    yield from as_they_come([both(job) for job in jobs], at_once)


def side_by_side(
    jobs: Sequence[Job], budget: float, env: Mapping[str, str], at_once: int
) -> Iterator[Row]:
    """The jobs, distributed over `at_once` workers.

    The workers compile at the same time. While one of them measures, the others wait.
    """
    if at_once == 1:
        yield from supervise(jobs, budget, env)
        return
    with tempfile.NamedTemporaryFile(prefix="gdpa-bench-") as file:
        sharing = [dataclasses.replace(job, turns=file.name) for job in jobs]
        parts = [sharing[k::at_once] for k in range(at_once)]
        yield from as_they_come([supervise(part, budget, env) for part in parts], at_once)


def as_they_come(streams: Sequence[Iterator[Row]], at_once: int) -> Iterator[Row]:
    """The rows of all streams. At most `at_once` streams run at the same time."""
    rows: queue.SimpleQueue[Row | None] = queue.SimpleQueue()

    def drain(stream: Iterator[Row]) -> None:
        try:
            for row in stream:
                rows.put(row)
        finally:
            rows.put(None)

    with ThreadPoolExecutor(at_once) as threads:
        done = [threads.submit(drain, stream) for stream in streams]
        for _ in done:
            yield from iter(rows.get, None)
        for stream in done:
            stream.result()


def one_worker(jobs: Sequence[Job], deadline: float, env: Mapping[str, str]) -> Iterator[Row]:
    """The lines of one worker as dicts. The last is `{"ended": 0}` if it ended without an error."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(env),
        text=True,
    )
    timer = threading.Timer(max(deadline - time.monotonic(), 0), process.kill)
    timer.start()
    try:
        assert process.stdin is not None and process.stdout is not None
        json.dump([dataclasses.asdict(job) for job in jobs], process.stdin)
        process.stdin.close()
        for line in process.stdout:
            try:
                yield json.loads(line)
            except ValueError:
                sys.stderr.write(line)
        if process.wait() == 0:
            yield {"ended": 0}
    finally:
        timer.cancel()
        process.kill()


def lost(jobs: Sequence[Job], why: str) -> Iterator[Row]:
    """A measurement with the error `why` for everything that these jobs would have measured."""
    for job in jobs:
        for name in job.contenders:
            for measure in job.measures:
                case = dataclasses.asdict(job.case)
                yield dataclasses.asdict(Measurement(case, name, measure, error=why))
