"""Runs jobs in worker processes, past crashes and no longer than the budget.

In: jobs. Out: measurements as dicts, as they come. A job that killed its worker comes as one with
`error`, and so do those that no time was left for.
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

from .worker import Job, Measurement

Row = dict[str, Any]


def supervise(jobs: Sequence[Job], budget: float, env: Mapping[str, str]) -> Iterator[Row]:
    """Measurements of all jobs; a new worker takes over behind the job on which one died."""
    deadline = time.monotonic() + budget
    start = 0
    while start < len(jobs):
        if time.monotonic() >= deadline:
            yield from lost(jobs[start:], "no time left")
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
            why = "no time left" if time.monotonic() >= deadline else "the worker died"
            rest = lost(jobs[start + reached : start + reached + 1], why)
            yield from (r for r in rest if (r["contender"], r["measure"]) not in seen)
            start += reached + 1
            continue
        return


def cold_and_warm(
    jobs: Sequence[Job], budget: float, env: Mapping[str, str], at_once: int = 1
) -> Iterator[Row]:
    """Each job in two processes, one after the other: the first finds empty caches, the second what
    the first left there. `measure` says which. at_once: how many jobs run side by side."""
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
    """The jobs, dealt to several workers. They compile side by side; while one of them measures,
    the others wait."""
    if at_once == 1:
        yield from supervise(jobs, budget, env)
        return
    with tempfile.NamedTemporaryFile(prefix="gdpa-bench-") as file:
        sharing = [dataclasses.replace(job, turns=file.name) for job in jobs]
        parts = [sharing[k::at_once] for k in range(at_once)]
        yield from as_they_come([supervise(part, budget, env) for part in parts], at_once)


def as_they_come(streams: Sequence[Iterator[Row]], at_once: int) -> Iterator[Row]:
    """The rows of all; so many streams run side by side."""
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
    """The lines of one worker; `{"ended": 0}` last if it came to its end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gdpa_inductor.bench.worker"],
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
    for job in jobs:
        for name in job.contenders:
            for measure in job.measures:
                case = dataclasses.asdict(job.case)
                yield dataclasses.asdict(Measurement(case, name, measure, error=why))
