"""`gdpa prove` on a Hopper GPU, unharmed and with planted faults.

    PYTHONPATH=. python docs/lab/prove.py [run ...]

Runs: unharmed, hang, index, race, address, slow; all if none is named. Each proves kernels with a
cache folder of its own, then checks this process: a matmul, and a training step with
`gdpa.kernel="auto"`. It prints one line of JSON for each run, and one about all. The status is 1 if
a fault was missed or the process was harmed.

A fault replaces a function of the kernels in the processes that prove, and in no other. They import
a `sitecustomize` that this script writes, so the package knows nothing of faults.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FAULT = "LAB_FAULT"
SITE = f"""
import importlib.util, os, sys
if os.environ.get({FAULT!r}):
    spec = importlib.util.spec_from_file_location("lab_prove", {__file__!r})
    sys.modules["lab_prove"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.FAULTS[os.environ[{FAULT!r}]][1]()
"""
SHAPE = (4, 8, 2048, 128)  # large enough for Hopper's kernels


def hang() -> None:
    """A wrong phase: producers wait until a buffer that was never filled is read."""
    from gdpa_inductor.kernels.cute.barriers import Ring

    Ring.wait_for_room = lambda self, at: self.empty.wait(at)


def index() -> None:
    """A wrong index: matrices of the first head for all heads."""
    from gdpa_inductor.kernels.cute.forward.loads import ForwardLoads

    def fetch(self, tiles, rows, head, batch, ring, at, stage, column=0):
        ring.wait_for_room(at)
        tiles.load(rows, head * 0, batch, stage, ring.full, at, column)

    ForwardLoads.fetch = fetch


def race() -> None:
    """Key tiles add to dQ without waiting for their turn. The first one stores, whenever it is."""
    from cutlass import Int32, cute

    from gdpa_inductor.kernels.cute.sm90.backward.sums import Counters

    def advance(self, counter, before):
        cute.arch.atomic_add(counter, Int32(1), sem="release", scope="gpu")

    Counters.wait = lambda self, counter, count, seen: cute.arch.fence_proxy("async.global")
    Counters.advance = advance


def address() -> None:
    """An illegal address: O lies where no memory is."""
    from gdpa_inductor.kernels.cute.plan import LaunchPlan

    words_of = LaunchPlan.call_words

    def call_words(*args: Any, **options: Any) -> list[int]:
        words = words_of(*args, **options)
        words[3] += 1 << 46
        return words

    LaunchPlan.call_words = call_words


def slow() -> None:
    """Four CTAs, which are right and slow."""
    from gdpa_inductor.kernels.cute import launch

    place = launch.place
    launch.place = lambda device, ctas, stream: place(device, ctas or 4, stream)


# The families that a run proves, all if none is named, and the fault.
FAULTS: dict[str, tuple[tuple[str, ...], Callable[[], None]]] = {
    "unharmed": ((), lambda: None),
    "hang": (("forward",), hang),
    "index": (("forward",), index),
    "race": (("backward",), race),
    "address": (("forward",), address),
    "slow": (("forward",), slow),
}


def proved(name: str) -> tuple[dict[str, Any], list[str]]:
    """The certificate, and what `gdpa prove` says."""
    import torch

    from gdpa_inductor import proving

    said: list[str] = []
    with tempfile.TemporaryDirectory() as site:
        Path(site, "sitecustomize.py").write_text(SITE)
        before = os.environ.get("PYTHONPATH", "")
        os.environ |= {FAULT: name, "PYTHONPATH": os.pathsep.join([site, before])}
        try:
            return proving.prove(torch.device("cuda", 0), FAULTS[name][0], said.append), said
        finally:
            del os.environ[FAULT]
            os.environ["PYTHONPATH"] = before


def multiplies() -> bool:
    """Whether the GPU still works for this process."""
    import torch

    x = torch.ones(1024, 1024, device="cuda")
    return bool(((x @ x) == 1024).all())


def trained() -> tuple[dict[str, int], str]:
    """A training step under `auto`: which kernels ran, and how a gradient breaks the error rule."""
    import torch

    from gdpa_inductor import gdpa_backend
    from gdpa_inductor._compat import dynamo
    from gdpa_inductor.error_rule import error_of

    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(q @ k.mT * 0.088) @ v

    def step(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in operands]
        out = function(*leaves)
        return [out.detach(), *torch.autograd.grad(out, leaves, direction.to(dtype))]

    torch.manual_seed(0)
    *operands, direction = torch.randn(4, *SHAPE, device="cuda", dtype=torch.bfloat16)
    torch.compiler.reset()
    dynamo.counters.clear()
    fused = step(torch.compile(model, backend=gdpa_backend), torch.bfloat16)
    lowered = {x: n for x, n in dynamo.counters["gdpa"].items() if x.startswith("lowered")}
    eager, exact = step(model, torch.bfloat16), step(model, torch.float64)
    for number, results in enumerate(zip(fused, eager, exact, strict=True)):
        direction_of = "backward" if number else "forward"
        if fault := error_of(*results, direction=direction_of):
            return lowered, f"result {number}: {fault}"
    return lowered, ""


def run(name: str) -> dict[str, Any]:
    from gdpa_inductor.kernels.cute import certificates

    start = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        record, said = proved(name)
        seconds = time.monotonic() - start
        works = multiplies()
        kernels, wrong = trained()
    families = FAULTS[name][0] or record["families"]
    failures = {x: certificates.failure_of(record, x) for x in families}
    speeds = record["speeds"].values()
    slower = any(x["cute"] > certificates.SLOWER * x["triton"] for x in speeds if len(x) > 1)
    caught = slower if name == "slow" else any(failures.values())
    return {
        "run": name,
        "as_expected": works and not wrong and caught == (name != "unharmed"),
        "failures": failures,
        "cases": {x: len(record["families"][x]) for x in families},
        "speeds": record["speeds"],
        "matmul_afterwards": works,
        "training_afterwards": kernels,
        "error_of_training": wrong,
        "seconds_of_proof": round(seconds, 1),
        "seconds": round(time.monotonic() - start, 1),
        "said": said,
    }


def main(names: list[str]) -> int:
    missed = []
    for name in names or FAULTS:
        result = run(name)
        missed += [] if result["as_expected"] else [name]
        print(json.dumps(result), flush=True)
    print(json.dumps({"not_as_expected": missed}))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
