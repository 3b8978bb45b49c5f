"""The demo: an ordinary recommender on real data, trained three times.

`python -m gdpa_inductor demo` trains one model in eager, under stock Inductor and under gdpa. All
three begin with the same parameters and see the same batches. Each runs in a process of its own
with empty compile caches. The results are printed side by side. The exit status is 1 if gdpa fused
nothing, if its loss curve differs from eager's, or if the time did not suffice for either.
"""

import argparse
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from . import data, metrics
from .report import Progress, difference, plot, summary
from .worker import Run, Setting

# Those that the verdict is about come first: the time may be over before the last has run.
CONTENDERS = ("eager", "gdpa", "inductor")
_TRAINING = 0.7  # of a contender's time: it compiles and trains. Then it measures and evaluates.

# The largest relative difference of two loss curves that count as the same. Rounding errors grow
# to this size over a few hundred steps.
CURVE_TOLERANCE = {"cpu": 1e-3, "cuda": 0.03}


class WorkerFailed(RuntimeError):
    """A training process ended without a result."""


def run_worker(setting: Setting, seconds: float) -> Run | None:
    """Train in a new process with an empty compile cache, and show the progress.

    The process and those that it has started are killed after `seconds`. Then the result is what
    the worker knew after the training, or None.
    """
    progress = Progress(setting.contender, setting.steps)
    progress.update(0, "compiling" if setting.contender != "eager" else "")
    command = [sys.executable, "-m", "examples.movielens.worker"]
    argument = json.dumps(dataclasses.asdict(setting))
    with tempfile.TemporaryDirectory(prefix="gdpa-demo-") as caches:
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": caches}
        process = subprocess.Popen(
            [*command, argument],
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
            start_new_session=True,  # so that the compile processes end with it
        )
        timer = threading.Timer(max(seconds, 0), end, [process])
        timer.start()
        try:
            result = follow(process, progress)
        finally:
            timer.cancel()
            end(process)
    if process.returncode not in (0, -signal.SIGKILL):
        raise WorkerFailed(f"{setting.contender} ended with status {process.returncode}")
    return result


def end(process: subprocess.Popen[str]) -> None:
    """Kill a worker, if it still runs, and the processes that it has started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def run_all(setting: Setting, contenders: Sequence[str], seconds: float, until: float) -> list[Run]:
    """Train all contenders for the same number of steps, and be done at the time.time() `until`.

    The first contender stops after `seconds` of training. The others train as many steps as it did,
    unless their share of the time is over before. A contender without a result is left out.
    """
    results: list[Run] = []
    for number, name in enumerate(contenders):
        share = (until - time.time()) / (len(contenders) - number)
        job = dataclasses.replace(
            setting, contender=name, seconds=seconds, until=time.time() + _TRAINING * share
        )
        result = run_worker(job, share)
        if result is None:
            print(f"{name}: no result in {max(share, 0):.0f} s.")
            continue
        results.append(result)
        steps = len(result.losses)
        if steps < setting.steps:
            print(f"{name}: {steps} of {setting.steps} steps, then its time was over.")
        if len(results) == 1:
            setting, seconds = dataclasses.replace(setting, steps=steps), float("inf")
    return results


def follow(process: subprocess.Popen[str], progress: Progress) -> Run | None:
    """Read a worker's lines to the end, and return its result, or None if there was none.

    Lines that are not JSON are copied to stderr.
    """
    assert process.stdout is not None
    result = None
    for line in process.stdout:
        try:
            message = json.loads(line)
        except ValueError:
            sys.stderr.write(line)
            continue
        if "result" in message:
            result = Run(**message["result"])
        else:
            progress.update(message["step"], f"loss {message['loss']:.3f}")
    process.wait()
    return result


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


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(prog="python -m gdpa_inductor demo", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default=device)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, help="users a step (8 on a CPU, 64 on a GPU)")
    parser.add_argument("--length", type=int, default=512, help="items of a history")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="of training for the first contender, at most"
    )
    parser.add_argument(
        "--limit", type=float, default=540.0, help="seconds for all; the demo ends by then"
    )
    parser.add_argument(
        "--users", type=int, default=100, help="whose held-out items are ranked (0: all)"
    )
    parser.add_argument("--contenders", nargs="+", default=CONTENDERS)
    parser.add_argument("--cache", type=Path, default=data.folder(), help="where data is kept")
    return parser.parse_args(argv)


def prepare(arguments: argparse.Namespace) -> tuple[data.Histories, Setting]:
    """The data, obtained if need be, and what all contenders have in common."""
    path = data.obtain(arguments.cache)
    setting = Setting(
        contender="",
        device=arguments.device,
        steps=arguments.steps,
        batch=arguments.batch or (64 if arguments.device == "cuda" else 8),
        length=arguments.length,
        data=str(path),
        ranked=arguments.users,
    )
    return data.load(path), setting


def main(argv: Sequence[str] = ()) -> int:
    arguments = parse_arguments(argv)
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
