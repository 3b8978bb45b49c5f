"""Scenarios of `edges.py`: models in other processes, compilers that are stopped, disks, times."""

import copy
import faulthandler
import os
import pickle
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.utils.data

from tests.integration.edge_tools import (
    WARNINGS,
    both,
    check,
    compiled,
    direct,
    empty_caches,
    forget,
    matched,
    operands,
    require,
    scenario,
    surroundings,
    warm,
)
from tests.integration.programs import SMALL, Model, function
from tests.integration.threads import results

# Models that go to other processes


def rank(number: int, model: torch.nn.Module, folder: str) -> None:
    torch.set_num_threads(1)
    check(model, 24 + 8 * number)
    Path(folder, str(number)).write_text(str(matched()))


@scenario("new", "run")
def spawned(when: str) -> None:
    """A compiled model is an argument of `torch.multiprocessing.spawn`, before or after it ran."""
    model = compiled(Model())
    if when == "run":
        check(model)
    torch.multiprocessing.spawn(rank, (model, os.getcwd()), nprocs=2)
    regions = [Path(n).read_text() for n in "01"]
    require(regions == ["1", "1"], f"regions of the ranks: {regions}")
    check(model)


class Embedded(torch.utils.data.Dataset):
    """It runs a compiled model, as for features that a frozen model computes."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model

    def __len__(self) -> int:
        return 2

    def __getitem__(self, number: int) -> int:
        torch.set_num_threads(1)
        n = 24 + 8 * number
        with torch.no_grad():
            torch.testing.assert_close(self.model(*operands(n)), function(*operands(n)))
        return matched()


@scenario("fork", "spawn")
def loader_with_a_model(start: str) -> None:
    torch._dynamo.utils.counters.clear()
    data = Embedded(compiled(Model()))
    loader = torch.utils.data.DataLoader(data, num_workers=2, multiprocessing_context=start)
    regions = [int(n) for n in loader]
    require(regions == [1, 1], f"regions of the workers: {regions}")


@scenario()
def a_copy_is_not_compiled() -> None:
    """torch's `Module.compile` is not a part of a copy, nor of what another process gets."""
    model = Model()
    model.compile(backend="gdpa", options=SMALL)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        forget()
        check(copied)
        require(matched() == 0, "it is compiled: docs/recipes/training.md says that it is not")
        copied.compile(backend="gdpa", options=SMALL)
        check(copied)
        require(matched() == 1, f"{matched()} regions")


@scenario()
def forks_beside_a_thread() -> None:
    """A thread calls the model, whatever it holds when a process forks."""
    inputs, over = [x.detach() for x in operands()], threading.Event()
    expected = function(*inputs)

    def calls() -> None:
        while not over.is_set():
            warm()(*inputs)

    with torch.no_grad():
        warm()(*inputs)
    thread = threading.Thread(target=calls)
    sys.setswitchinterval(1e-6)
    thread.start()
    stuck = 0
    for _ in range(60):
        process = os.fork()
        if process == 0:
            faulthandler.dump_traceback_later(20, exit=True)
            with torch.no_grad():
                os._exit(not torch.allclose(warm()(*inputs), expected, atol=1e-3))
        stuck += os.waitpid(process, 0)[1] != 0
    over.set()
    thread.join()
    require(stuck == 0, f"{stuck} children have not ended")


# Compilers that are stopped


def compilers() -> Iterator[int]:
    """The processes of this session that compile C++."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name = (folder / "comm").read_text().strip()
            if name == "cc1plus" and os.getsid(int(folder.name)) == os.getsid(0):
                yield int(folder.name)
        except OSError:
            pass


@scenario("model", "direct")
def interrupt_compiler(way: str) -> None:
    """Ctrl-C reaches the compiler too, with all processes of the terminal."""
    run = direct if way == "direct" else warm()
    check(run)  # what finds out about the machine's instructions has been compiled
    empty_caches()
    over = threading.Event()

    def press() -> None:
        while not over.is_set() and not any(compilers()):
            time.sleep(0.01)
        if not over.is_set():
            os.killpg(0, signal.SIGINT)

    before, thread = surroundings(), threading.Thread(target=press)
    thread.start()
    stopped = False
    try:
        results(run, operands())
    except KeyboardInterrupt:
        stopped = True
    over.set()
    thread.join()
    left = [name for name, value in surroundings().items() if before[name] != value]
    require(stopped and not left, f"stopped: {stopped}, left behind: {left}")
    check(run)
    require(matched() >= 1, "it is not fused")


# Disks and times


@scenario("past", "future")
def times(when: str) -> None:
    """Files of caches whose times are far from now, as after a clock was set."""
    seconds = {"past": 0, "future": time.time() + 10**9}[when]
    empty_caches()
    both()
    for path in Path("caches").rglob("*"):
        os.utime(path, (seconds, seconds))
    both()
    both(48)


@scenario()
def disk_fills() -> None:
    """Nothing more can be written: a call is right or raises, and is fused once there is room."""
    from gdpa_inductor import direct as module

    empty_caches()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        check(direct)
        require("not fused" in " ".join(WARNINGS.seen), WARNINGS.seen)
        WARNINGS.seen.clear()
        try:
            check(warm())
        except Exception:
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    WARNINGS.seen.clear()
    module._failed.clear()
    both()
