"""Scenarios at the edges of a process: forks, signals, clocks, caches, low memory, odd settings.

    python edges.py NAME...  run scenarios; without a name, those whose names come by stdin

The parent compiles one model, and calls it without gradients: autograd's threads survive no fork.
Each scenario is a function, and runs in a fork. Those that are `COLD` come first, as their parent
must not have imported the package. For each there is a line, a JSON object with its name and its
problem, or null. The root of the repository has to be on Python's path.
"""

import concurrent.futures
import gc
import itertools
import json
import logging
import math
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
import torch.nn.functional as F
import torch.utils.data
from torch import Tensor

from tests.integration import edge_children, edge_memory  # noqa: F401 (their scenarios)
from tests.integration.edge_tools import (
    COLD,
    PACKAGE,
    SCENARIOS,
    WARNINGS,
    attempt,
    both,
    check,
    compiled,
    direct,
    equal,
    forget,
    matched,
    operands,
    require,
    scenario,
    surroundings,
    warm,
)
from tests.integration.programs import function
from tests.integration.threads import results

LIMIT = 300.0  # seconds of a scenario
HOUR = 3600
POINTS = 6  # of interrupts in a phase

# Processes


@scenario()
def fork_then_call() -> None:
    """What the parent compiled runs on, and is compiled once more for gradients."""
    before = torch._dynamo.utils.counters["gdpa"].copy()
    with torch.no_grad():
        torch.testing.assert_close(warm()(*operands()), function(*operands()))
    require(torch._dynamo.utils.counters["gdpa"] == before, "it was compiled again")
    check(warm())
    both()


@scenario()
def plain() -> None:
    import gdpa_inductor

    both()
    print(gdpa_inductor.explain(function, profit=False)(*operands()))


@scenario()
def disabled() -> None:
    both(fused=False)


def work(n: int) -> int:
    torch.set_num_threads(1)
    both(n)
    return matched()


class Works(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, number: int) -> int:
        return work(24 + 8 * number)


def loader(how: str) -> Iterable[int]:
    return torch.utils.data.DataLoader(Works(), num_workers=2, multiprocessing_context=how)


def pool(how: str) -> Iterable[int]:
    with multiprocessing.get_context(how).Pool(2) as processes:
        return processes.map(work, (24, 32))


def executor(how: str) -> Iterable[int]:
    context = multiprocessing.get_context(how)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as processes:
        return list(processes.map(work, (24, 32)))


WORKERS = {"loader": loader, "pool": pool, "executor": executor}


@scenario(*(f"{kind}_{how}" for kind in WORKERS for how in ("fork", "spawn")))
def workers(case: str) -> None:
    kind, how = case.split("_")
    require([int(n) for n in WORKERS[kind](how)] == [2, 2], "regions of the workers")


# Interrupts


def interrupted(run: Callable[[], object], point: int) -> int:
    """Press Ctrl-C at a call of a function of the package, by number; how many calls there were."""
    calls = itertools.count(1)
    last = 0

    def observe(frame: types.FrameType, event: str, _: object) -> None:
        nonlocal last
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            last = next(calls)
            if last == point:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)

    stopped = False
    sys.setprofile(observe)
    try:
        run()
    except KeyboardInterrupt:
        stopped = True
    finally:
        sys.setprofile(None)
    require(stopped == (last == point), f"the interrupt at call {point} is lost")
    return last


@scenario("compile", "direct", "run")
def interrupt(phase: str) -> None:
    """The next call is right and fused, and no state is left."""
    from gdpa_inductor.judge import memory

    memory.place_of = lambda *_: None  # the judge has to judge
    run = direct if phase == "direct" else warm()
    train = lambda: results(run, operands())
    forget()
    train()  # some of the first calls fill tables
    total, draw = 0, random.Random(0)
    for share in (0.0, *(draw.random() for _ in range(POINTS))):
        if phase != "run":
            forget()
        before, point = surroundings(), math.ceil(share * total)
        calls = interrupted(train, point)
        total = total or calls
        left = [name for name, value in surroundings().items() if before[name] != value]
        require(not left and not WARNINGS.seen, f"call {point}: {left} {WARNINGS.seen}")
        check(run)
        require(matched() >= 1, f"call {point}: it is not fused")


@scenario(*(f"{way}_{n}" for way in ("direct", "backend") for n in (600, 4000, 7000)), cold=True)
def interrupt_import(case: str) -> None:
    """By the first direct call, or as the backend is looked up: it can be done again."""
    way, point = case.split("_")
    run = direct if way == "direct" else lambda *inputs: warm()(*inputs)
    interrupted(lambda: results(run, operands()), int(point))
    check(run)
    require(matched() >= 1, "it is not fused")


# Settings of Python and torch


@scenario("time", "monotonic")
def clock_jumps(name: str) -> None:
    """Forth and back by an hour, amid a first call and a later one."""
    real, readings = getattr(time, name), itertools.count()
    setattr(time, name, lambda: real() + HOUR * (next(readings) % 2))
    for run in (warm(), direct):
        forget()
        check(run)
        check(run)
        require(matched() == 1, f"{matched()} regions")
    require(name != "monotonic" or next(readings) > 2, "nobody reads the clock")


@scenario("call", "thread", "backward")
def meta_device(where: str) -> None:
    """A default device is for new tensors of the user's, not for those of a kernel."""
    forget()
    outputs: list[list[Tensor]] = []

    def calls() -> None:
        for run in (warm(), direct):
            inputs = operands()
            with torch.device("cpu" if where == "backward" else "meta"):
                out = run(*inputs)
            with torch.device("meta"):
                grads = torch.autograd.grad(out.square().sum(), inputs)
            outputs.append([out, *grads])

    thread = threading.Thread(target=calls)
    thread.start() if where == "thread" else calls()
    thread.join() if where == "thread" else None
    require(len(outputs) == matched() == 2, f"{matched()} regions")
    for one in outputs:
        equal(one)


@scenario()
def default_dtype() -> None:
    inputs = [operands(), operands()]
    torch.set_default_dtype(torch.float64)
    forget()
    outputs = [results(run, x) for run, x in zip((warm(), direct), inputs)]
    torch.set_default_dtype(torch.float32)
    require(matched() == 2, f"{matched()} regions")
    for one in outputs:
        equal(one)


@scenario("force_eager", "fail_on_recompile", "eager_on_recompile", "eager_then_compile")
def stance(name: str) -> None:
    for run in (warm(), direct):
        check(run)
        with torch.compiler.set_stance(name):
            check(run)
            if name != "fail_on_recompile":
                forget()
                check(run)


OBSERVED = {
    "traced": lambda: sys.settrace(lambda *_: None),
    "profiled": lambda: sys.setprofile(lambda *_: None),
    "warnings_are_errors": lambda: warnings.simplefilter("error"),
    "uncollected": gc.disable,
    "little_stack": lambda: sys.setrecursionlimit(350),
}


@scenario(*OBSERVED)
def python(how: str) -> None:
    OBSERVED[how]()
    both()
    sys.settrace(None)
    sys.setprofile(None)
    check(warm())


@scenario("objects", "descriptors", cold=True)
def no_streams(which: str) -> None:
    """Standard output and errors are closed before the package is imported."""
    sys.stdout = sys.stderr = None
    if which == "descriptors":
        for descriptor in (0, 1, 2):
            os.close(descriptor)
    both()


@scenario()
def no_source() -> None:
    """As in a notebook whose cells are gone."""
    import gdpa_inductor

    scope = {"F": F}
    text = (
        "model = lambda q, k, v: F.silu(q @ k.mT * 0.25) @ v\nmod = lambda s, *_: F.silu(s * 0.25)"
    )
    exec(compile(text, "<ipython-input-3>", "exec"), scope)
    check(compiled(scope["model"], fullgraph=True))
    check(lambda q, k, v: gdpa_inductor.attention(q, k, v, score_mod=scope["mod"]))
    require("1 region" in str(gdpa_inductor.explain(scope["model"], profit=False)(*operands())), "")


# The program


def problem_of(name: str, folder: Path) -> str | None:
    """The problem of a scenario that runs in a fork, and there in a folder of its own."""
    report = folder / f"{name}.txt"
    (folder / name).mkdir()
    process = os.fork()
    if process == 0:
        os.setsid()
        os.dup2(2, 1)
        os.chdir(folder / name)
        report.write_text(attempt(SCENARIOS[name]))
        os._exit(0)
    until = time.monotonic() + LIMIT
    while (ended := os.waitpid(process, os.WNOHANG))[0] == 0 and time.monotonic() < until:
        time.sleep(0.02)
    try:
        os.killpg(process, signal.SIGKILL)  # what it has started
    except ProcessLookupError:
        pass
    if ended[0] == 0:
        os.waitpid(process, 0)
        return f"it took more than {LIMIT:.0f} seconds"
    text = report.read_text() if report.exists() else ""
    return text or (f"it ended with {ended[1]}" if ended[1] else None)


def main(names: Iterable[str]) -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.getLogger("gdpa_inductor").addHandler(WARNINGS)
    torch.compile(torch.sin, backend="inductor")(torch.ones(3))
    folder = Path(tempfile.mkdtemp())
    for name in names:
        if name not in COLD and "gdpa_inductor" not in sys.modules:
            with torch.no_grad():
                warm()(*operands()), direct(*operands())
            torch._dynamo.utils.counters.clear()
        print(json.dumps({"name": name, "problem": problem_of(name, folder)}), flush=True)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o700) if path.is_dir() else None
    shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1:] or (line.strip() for line in sys.stdin))
