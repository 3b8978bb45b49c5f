"""The demo: an ordinary recommender on real data, trained three times.

`python -m gdpa_inductor demo` trains one model in eager, under stock Inductor and under gdpa. All
three begin with the same parameters and see the same batches. Each runs in a process of its own
with empty compile caches. The results are printed side by side. The exit status is 1 if gdpa fused
nothing, or if its loss curve differs from eager's.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from . import data, metrics
from .report import Progress, difference, plot, summary
from .worker import Run, Setting

CONTENDERS = ("eager", "inductor", "gdpa")

# The largest relative difference of two loss curves that count as the same. Rounding errors grow
# to this size over a few hundred steps.
CURVE_TOLERANCE = {"cpu": 1e-3, "cuda": 0.03}


class WorkerFailed(RuntimeError):
    """A training process ended without a result."""


def run_worker(setting: Setting) -> Run:
    """Train in a new process with an empty compile cache, and show the progress."""
    progress = Progress(setting.contender, setting.steps)
    progress.update(0, "compiling" if setting.contender != "eager" else "")
    command = [sys.executable, "-m", "gdpa_inductor.demo.worker"]
    argument = json.dumps(dataclasses.asdict(setting))
    with tempfile.TemporaryDirectory(prefix="gdpa-demo-") as caches:
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": caches}
        process = subprocess.Popen(
            [*command, argument], stdout=subprocess.PIPE, env=environment, text=True
        )
        result = follow(process, progress)
    if process.returncode or result is None:
        raise WorkerFailed(f"{setting.contender} ended with status {process.returncode}")
    return result


def run_all(setting: Setting, contenders: Sequence[str], seconds: float) -> list[Run]:
    """Train all contenders for the same number of steps.

    The first contender stops after `seconds` of training. The others train as many steps as it did.
    """
    first = run_worker(dataclasses.replace(setting, contender=contenders[0], seconds=seconds))
    steps = len(first.losses)
    if steps < setting.steps:
        print(f"{steps} of {setting.steps} steps in {seconds:.0f} s; the others train as many.")
    others = (dataclasses.replace(setting, contender=name, steps=steps) for name in contenders[1:])
    return [first, *map(run_worker, others)]


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


def show(results: Sequence[Run], histories: data.Histories, setting: Setting) -> bool:
    """Print all results. Returns whether gdpa fused something and trained the same model."""
    by_name = {result.contender: result for result in results}
    if "gdpa" in by_name:
        print("\nWhat gdpa found (gdpa_inductor.explain):\n")
        print(by_name["gdpa"].explained)
    print("\nTraining loss\n")
    print(plot({result.contender: result.losses for result in results}))
    baseline = metrics.evaluate(histories, metrics.popularity(histories), setting.length)
    popular = ", ".join(f"{name} {value:.4f}" for name, value in baseline.items())
    print(f"\n{summary(results)}\n")
    print(f"Ranking by popularity alone: {popular}.")
    print("step, peak: one training step's median time and extra memory. Errors: relative, of the")
    print("first loss and of the worst parameter gradient, against the same model in fp64.")
    good, line = verdict(by_name, setting)
    print(f"\n{line}" if line else "")
    return good


def verdict(by_name: dict[str, Run], setting: Setting) -> tuple[bool, str]:
    """True if gdpa fused something and trained the same model, with a line that says so.

    The line is "" if eager or gdpa did not run.
    """
    if not {"eager", "gdpa"} <= by_name.keys():
        return True, ""
    ours = by_name["gdpa"]
    apart, limit = difference(ours, by_name["eager"]), CURVE_TOLERANCE[setting.device]
    same, found = apart <= limit, ours.matches > 0
    relation = "the same losses as eager" if same else "OTHER LOSSES than eager"
    regions = f"{ours.matches} region{'s' if ours.matches != 1 else ''}" if found else "NOTHING"
    times = [f"{run.step_ms:.1f} ms ({name})" for name, run in by_name.items()]
    return same and found, (
        f"{'PASSED' if same and found else 'FAILED'}: gdpa fused {regions} and trained to "
        f"{relation} ({apart:.1e} apart, limit {limit}); a step takes {', '.join(times)}."
    )


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(prog="python -m gdpa_inductor demo", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default=device)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, help="users a step (8 on a CPU, 64 on a GPU)")
    parser.add_argument("--length", type=int, default=512, help="items of a history")
    parser.add_argument(
        "--seconds", type=float, default=75.0, help="of training for the first contender, at most"
    )
    parser.add_argument("--contenders", nargs="+", default=CONTENDERS)
    parser.add_argument("--cache", type=Path, default=data.folder(), help="where data is kept")
    return parser.parse_args(argv)


def main(argv: Sequence[str] = ()) -> int:
    arguments = parse_arguments(argv)
    path = data.obtain(arguments.cache)
    histories = data.load(path)
    setting = Setting(
        contender="",
        device=arguments.device,
        steps=arguments.steps,
        batch=arguments.batch or (64 if arguments.device == "cuda" else 8),
        length=arguments.length,
        data=str(path),
    )
    print(
        f"{histories.name}: {len(histories.users)} users, {histories.items} items. "
        f"{setting.steps} steps of {setting.batch} histories of {setting.length} "
        f"on {setting.device}."
    )
    try:
        results = run_all(setting, arguments.contenders, arguments.seconds)
    except WorkerFailed as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return 1
    return 0 if show(results, histories, setting) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
