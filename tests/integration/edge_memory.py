"""Scenarios of `edges.py`: objects that go, memory, disks and caches."""

import copy
import gc
import os
import pickle
import resource
import shutil
import signal
import sys
import time
import types
import weakref
from pathlib import Path

import torch
import torch.nn.functional as F

from tests.integration.edge_tools import (
    MIB,
    PACKAGE,
    WARNINGS,
    attempt,
    both,
    check,
    compiled,
    direct,
    empty_caches,
    equal,
    forbid_writing,
    matched,
    obey_modes,
    operands,
    require,
    scenario,
    warm,
)
from tests.integration.programs import SMALL, Model, function
from tests.integration.threads import results

# The lives of objects


@scenario()
def reset_before_the_backward() -> None:
    for run in (warm(), direct):
        inputs = operands()
        out = run(*inputs)
        torch.compiler.reset()
        equal([out, *torch.autograd.grad(out.square().sum(), inputs)])


class Projected(Model):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.large = torch.nn.Linear(16, 16), torch.nn.Parameter(torch.zeros(MIB))

    def forward(self, q, k, v):
        return function(self.q(q), k, v)


@scenario()
def model_deleted_before_the_backward() -> None:
    model = Projected()
    weight, seen, out = model.q.weight, weakref.ref(model), compiled(model)(*operands())
    del model
    out.square().sum().backward()
    del out
    gc.collect()
    require(weight.grad is not None and seen() is None, "the model is kept")


@scenario()
def closures_are_freed() -> None:
    """Those of direct calls: at most the last is kept."""
    import gdpa_inductor

    def call() -> weakref.ref:
        bias = torch.randn(32, 32)
        mod = lambda s, b, h, i, j: F.silu(s * 0.25) + bias[i, j]
        gdpa_inductor.attention(*operands(), score_mod=mod).sum().backward()
        return weakref.ref(bias)

    seen = [call() for _ in range(3)]
    gc.collect()
    require(sum(one() is not None for one in seen) <= 1, "biases are kept")


@scenario()
def pickles() -> None:
    import gdpa_inductor as g

    report = g.explain(function, profit=False)(*operands())
    for value in (g.GDPAError("x"), g.Options.make({}), report):
        require(type(pickle.loads(pickle.dumps(value))) is type(value), value)
    model = Model()
    model.compile(backend="gdpa", options=SMALL)
    for one in (model, pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        check(one)


@scenario()
def two_hundred_models() -> None:
    """Models that are deleted leave no memory behind."""
    sizes, inputs = [], [x.detach() for x in operands(16)]
    for number in range(200):
        code = Projected.forward.__code__.replace(co_name=f"forward_{number}")
        model = type("Model", (Projected,), {"forward": types.FunctionType(code, globals())})()
        with torch.no_grad():
            torch.testing.assert_close(compiled(model)(*inputs), Projected.forward(model, *inputs))
        if number in (49, 199):
            del model
            gc.collect()
            sizes.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096 // MIB)
    require(matched() >= 200 and sizes[1] - sizes[0] < 150, f"{matched()} regions, {sizes} MiB")


# Memory, disks and caches


@scenario("first", "later")
def little_memory(call: str) -> None:
    """A call either raises or is right, and those after it are right."""
    # Autograd needs its threads before: it waits without end for those that it cannot start.
    check(function if call == "first" else warm(), 1000)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    for more in (0, 1, 2, 4, 8, 16, 64, 256):
        if call == "first":
            torch._dynamo.reset()
        inputs = operands(1000)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + more * MIB, hard))
        try:
            outputs = results(warm(), inputs)
        except Exception:
            outputs = None
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        if outputs:
            equal(outputs, 1000)
    both(1000)
    WARNINGS.seen.clear()  # of loops that could not be compiled


def spoil_verdicts() -> None:
    Path("caches/gdpa_verdicts").write_text("garbage")


def hide_verdicts() -> None:
    Path("caches/gdpa_verdicts").mkdir(mode=0)


def keep_all_from_writing() -> None:
    both()
    forbid_writing(Path("caches"))


SPOILED = {"spoiled": spoil_verdicts, "hidden": hide_verdicts, "read_only": keep_all_from_writing}


@scenario(*SPOILED)
def caches(how: str) -> None:
    """Caches that are garbage, or whose modes forbid it, cost time only."""
    empty_caches()
    SPOILED[how]()
    obey_modes()
    both()


@scenario()
def caches_deleted() -> None:
    empty_caches()
    check(warm())
    shutil.rmtree("caches")
    check(warm())
    both(48)


@scenario("full_disk", "no_compiler")
def loops_cannot_be_compiled(why: str) -> None:
    """Other sizes of a compiled model need another loop: it runs uncompiled, which is told once."""
    from gdpa_inductor.kernels.blocked import block_pass

    run, (soft, hard) = compiled(dynamic=True), resource.getrlimit(resource.RLIMIT_FSIZE)
    empty_caches()
    check(run)
    block_pass.RUNNERS.clear()
    block_pass._variant.cache_clear()
    torch._inductor.codecache.PyCodeCache.cache_clear()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path("other").absolute())
    compilers = torch._inductor.config.cpp.cxx
    if why == "full_disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    else:
        torch._inductor.config.cpp.cxx = ("/nowhere/g++",)
    for n in (33, 34, 35):
        check(run, n)
    torch._inductor.config.cpp.cxx = compilers
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    require(len(WARNINGS.seen) == 1 and "runs uncompiled" in WARNINGS.seen[0], WARNINGS.seen)
    WARNINGS.seen.clear()


def started() -> int:
    """A process that compiles into the caches of the scenario."""
    process = os.fork()
    if process == 0:
        os._exit(0 if not attempt(both) else 1)
    return process


@scenario()
def two_fill_the_caches() -> None:
    empty_caches()
    processes = [started(), started()]
    require([os.waitpid(one, 0)[1] for one in processes] == [0, 0], "one failed")


@scenario()
def killed_while_it_fills_the_caches() -> None:
    empty_caches()
    for seconds in (0.7, 2.0, 4.0, 7.0):
        process = started()
        time.sleep(seconds)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    both()


@scenario(cold=True)
def package_is_read_only() -> None:
    shutil.copytree(PACKAGE, "gdpa_inductor", ignore=shutil.ignore_patterns("__pycache__"))
    forbid_writing(Path("gdpa_inductor"))
    obey_modes()
    sys.path.insert(0, os.getcwd())
    both()
    require(sys.modules["gdpa_inductor"].__file__.startswith(os.getcwd()), "another package")
