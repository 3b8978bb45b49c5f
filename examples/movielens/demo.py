"""The contenders of the demo: started, watched, stopped in time, and judged.

In: the parsed arguments. Out: results side by side, and the exit status.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence

import torch

from . import data, metrics
from .report import Progress, difference, plot, summary
from .worker import Run, Setting

# Those that the verdict is about come first: the time may be over before the last has run.
CONTENDERS = ("eager", "gdpa", "inductor")
_COMPILING = 0.7  # the share of the time by which contenders have compiled
_TRAINING = 0.7  # of a contender's time after that: it trains. Then it measures and evaluates.

# The largest relative difference of two loss curves that count as the same. Rounding errors grow
# to this size over a few hundred steps.
CURVE_TOLERANCE = {"cpu": 1e-3, "cuda": 0.03}


class WorkerFailed(RuntimeError):
    """A training process ended without a result."""


class Worker:
    """A contender in a process of its own, with an empty compile cache."""

    def __init__(self, setting: Setting) -> None:
        self.name = setting.contender
        self.result: Run | None = None
        self._progress = Progress(setting.contender, setting.steps)
        self._progress.update(0, "compiling" if setting.contender != "eager" else "")
        self._caches = tempfile.TemporaryDirectory(prefix="gdpa-demo-")
        command = [sys.executable, "-m", "examples.movielens.worker"]
        self._process = subprocess.Popen(
            [*command, json.dumps(dataclasses.asdict(setting))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": self._caches.name},
            text=True,
            start_new_session=True,  # so that the compile processes end with it
        )

    def compile(self, seconds: float) -> bool:
        """Read until it has compiled. Returns whether it has. After `seconds` it is killed."""
        return self._follow(seconds)

    def train(self, seconds: float) -> None:
        """Have it train, and read to the end. After `seconds` it is killed.

        Then the result is what the worker knew after the training, or None.
        """
        with contextlib.suppress(BrokenPipeError):
            print(time.time() + _TRAINING * seconds, file=self._process.stdin, flush=True)
        self._follow(seconds)

    def end(self) -> None:
        """Kill it, if it still runs, and the processes that it has started."""
        self._kill()
        self._process.wait()
        self._caches.cleanup()

    def _kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def _follow(self, seconds: float) -> bool:
        timer = threading.Timer(max(seconds, 0), self._kill)
        timer.start()
        try:
            if self._read():
                return True
            status = self._process.wait()
        finally:
            timer.cancel()
        if status not in (0, -signal.SIGKILL):
            raise WorkerFailed(f"{self.name} ended with status {status}")
        return False

    def _read(self) -> bool:
        """Read lines until it has compiled (True), or to the end.

        Lines that are not JSON are copied to stderr.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                sys.stderr.write(line)
                continue
            if "compiled" in message:
                return True
            if "result" in message:
                self.result = Run(**message["result"])
            else:
                self._progress.update(message["step"], f"loss {message['loss']:.3f}")
        return False


def run_all(setting: Setting, contenders: Sequence[str], seconds: float, until: float) -> list[Run]:
    """Train all contenders for the same number of steps, and be done at the time.time() `until`.

    The first contender stops after `seconds` of training. The others train as many steps as it did,
    unless their share of the time is over before. They compile at the same time and train in turn.
    A contender without a result is left out.
    """
    first, *others = contenders
    setting = dataclasses.replace(setting, seconds=seconds)
    results = run_group(setting, [first], time.time() + (until - time.time()) / len(contenders))
    if results:
        setting = dataclasses.replace(setting, steps=len(results[0].losses), seconds=math.inf)
    return results + run_group(setting, others, until)


def run_group(setting: Setting, contenders: Sequence[str], until: float) -> list[Run]:
    """Compile contenders at the same time, and train them one after the other."""
    workers = [Worker(dataclasses.replace(setting, contender=name)) for name in contenders]
    try:
        late = time.time() + _COMPILING * (until - time.time())
        compiled = [worker for worker in workers if worker.compile(late - time.time())]
        for number, worker in enumerate(compiled):
            worker.train((until - time.time()) / (len(compiled) - number))
    finally:
        for worker in workers:
            worker.end()
    for worker in workers:
        steps = 0 if worker.result is None else len(worker.result.losses)
        if worker.result is None:
            print(f"{worker.name}: no result in time.")
        elif steps < setting.steps:
            print(f"{worker.name}: {steps} of {setting.steps} steps, then its time was over.")
    return [worker.result for worker in workers if worker.result is not None]


def show(
    results: Sequence[Run], histories: data.Histories, setting: Setting, contenders: Sequence[str]
) -> bool:
    """Print all results. Returns whether gdpa fused something and trained the same model.

    contenders: Those that should have run.
    """
    by_name = {result.contender: result for result in results}
    if not results:
        print("\nUNDECIDED: no contender had a result in time.")
        return False
    if "gdpa" in by_name:
        print("\nWhat gdpa found (gdpa_inductor.explain):\n")
        print(by_name["gdpa"].explained)
    print("\nTraining loss\n")
    print(plot({result.contender: result.losses for result in results}))
    baseline = popularity(histories, setting)
    popular = ", ".join(f"{name} {value:.4f}" for name, value in baseline.items())
    ranked = len(histories.sample(setting.ranked).users)
    print(f"\n{summary(results)}\n")
    print(
        f"Of {ranked} users (--users). Ranking by popularity alone: {popular}. To rank better "
        "takes about 300 steps (--steps)."
    )
    print("step, peak: one training step's median time and extra memory. Errors: relative, of the")
    print("first loss and of the worst parameter gradient, against the same model in fp64.")
    good, line = verdict(by_name, setting, contenders)
    print(f"\n{line}" if line else "")
    return good


def popularity(histories: data.Histories, setting: Setting) -> dict[str, float]:
    """What ranking by popularity alone reaches."""
    scorer = metrics.popularity(histories)
    return metrics.evaluate(histories.sample(setting.ranked), scorer, setting.length)


def verdict(
    by_name: dict[str, Run], setting: Setting, contenders: Sequence[str]
) -> tuple[bool, str]:
    """True if gdpa fused something and trained the same model, with a line that says so.

    The line is "" if eager and gdpa were not both asked for.
    """
    if not {"eager", "gdpa"} <= {*contenders}:
        return True, ""
    late = [name for name in ("eager", "gdpa") if name not in by_name]
    if late:
        return False, f"UNDECIDED: {' and '.join(late)} had no result in time."
    ours = by_name["gdpa"]
    apart, limit = difference(ours, by_name["eager"]), CURVE_TOLERANCE[setting.device]
    same, fused = apart <= limit, ours.matches > 0
    relation = "the same losses as eager" if same else "OTHER LOSSES than eager"
    steps = min(len(ours.losses), len(by_name["eager"].losses))
    over = f"in {steps} step{'s' if steps != 1 else ''}"
    regions = f"{ours.matches} region{'s' if ours.matches != 1 else ''}" if fused else "NOTHING"
    times = [f"{run.step_ms:.1f} ms ({name})" for name, run in by_name.items()]
    return same and fused, (
        f"{'PASSED' if same and fused else 'FAILED'}: gdpa fused {regions} and trained to "
        f"{relation} {over} ({apart:.1e} apart, limit {limit}); a step takes {', '.join(times)}."
    )


def completed(arguments: argparse.Namespace) -> argparse.Namespace:
    """With a value for each argument that was left out."""
    arguments.device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    arguments.batch = arguments.batch or (64 if arguments.device == "cuda" else 8)
    arguments.contenders = arguments.contenders or CONTENDERS
    arguments.cache = arguments.cache or data.folder()
    return arguments


def prepare(arguments: argparse.Namespace) -> tuple[data.Histories, Setting]:
    """The data, obtained if need be, and what all contenders have in common."""
    path = data.obtain(arguments.cache)
    setting = Setting(
        contender="",
        device=arguments.device,
        steps=arguments.steps,
        batch=arguments.batch,
        length=arguments.length,
        data=str(path),
        ranked=arguments.users,
    )
    return data.load(path), setting


def run(arguments: argparse.Namespace) -> int:
    until = time.time() + arguments.limit
    histories, setting = prepare(arguments)
    print(
        f"{histories.name}: {len(histories.users)} users, {histories.items} items. "
        f"{setting.steps} steps of {setting.batch} histories of {setting.length} "
        f"on {setting.device}."
    )
    try:
        results = run_all(setting, arguments.contenders, arguments.seconds, until)
    except WorkerFailed as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return 1
    return 0 if show(results, histories, setting, arguments.contenders) else 1
