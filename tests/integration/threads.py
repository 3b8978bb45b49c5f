"""Threads that compile and run models at the same time: `python threads.py THREADS CALLS DEVICE`.

Each thread calls all models in an order of its own, forward and backward. The first to call a model
compiles it. Up to torch 2.13 a thread that compiles makes compiled calls of other threads raise,
with any backend (findings/one_compile_stops_other_threads.sh). There all are compiled before, and
calls run eagerly beside a compile (docs/recipes/serving.md): threads that call at once may compile
again (findings/threads_compile_again.sh). The last line is one JSON object.
"""

import json
import logging
import random
import sys
import threading
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS = [F.silu, torch.tanh, torch.sigmoid, F.gelu, F.relu, F.softplus, torch.sin, F.mish]
SIZES = [(2, 2, 20, 16), (1, 3, 33, 16), (2, 2, 20, 16), (3, 1, 7, 16)]


def model(number: int) -> Callable[..., Tensor]:
    activation, factor = ACTIVATIONS[number % len(ACTIVATIONS)], 0.25 * (1 + number)
    return lambda q, k, v: activation(q @ k.mT * factor) @ v


def operands(seed: int, device: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = SIZES[seed % len(SIZES)]
    matrices = [torch.randn(shape, generator=generator).to(device) for _ in range(3)]
    return [x.requires_grad_() for x in matrices]


def results(function: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    out = function(*inputs)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), inputs)]


def state() -> dict[str, object]:
    """What a compile changes and has to put back."""
    return {
        "tracing": torch.fx._symbolic_trace.is_fx_symbolic_tracing(),
        "patcher": torch.fx._symbolic_trace.CURRENT_PATCHER is None,
        "inductor": str(sorted(torch._inductor.config.get_config_copy().items(), key=str)),
        "dynamo": str(sorted(torch._dynamo.config.get_config_copy().items(), key=str)),
        "grad": torch.is_grad_enabled(),
    }


class Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage())


def traces_are_seen_by_other_threads() -> bool:
    seen: list[bool] = []

    def traced(x):
        is_tracing = torch.fx._symbolic_trace.is_fx_symbolic_tracing
        other = threading.Thread(target=lambda: seen.append(is_tracing()))
        other.start()
        other.join()
        return x

    torch.fx.symbolic_trace(traced)
    return seen[0]


def main(threads: int, calls: int, device: str, backend: str = "gdpa") -> dict[str, object]:
    torch.set_num_threads(1)
    torch._dynamo.config.recompile_limit = 64  # the models are one piece of code
    options = {"gdpa.profit": False} if backend == "gdpa" else {}
    models = [model(number) for number in range(8)]
    wanted = [
        [results(function, operands(seed, device)) for seed in range(len(SIZES))]
        for function in models
    ]
    torch.compile(torch.sin, backend="inductor")(torch.ones(3))
    seen = traces_are_seen_by_other_threads()
    torch._dynamo.config.error_on_nested_fx_trace = not seen
    before, warnings = state(), Warnings()
    logging.getLogger("gdpa_inductor").addHandler(warnings)
    compiled: list[Callable | None] = [None] * len(models)
    errors: list[str] = []
    start = threading.Barrier(threads)

    if seen:
        for which, function in enumerate(models):
            compiled[which] = torch.compile(function, backend=backend, options=options)
            for seed in range(len(SIZES)):
                results(compiled[which], operands(seed, device))

    def work(number: int) -> None:
        order = random.Random(number)
        start.wait()
        for _ in range(calls):
            which, seed = order.randrange(len(models)), order.randrange(len(SIZES))
            try:
                # Two threads may make one each: both have to be right.
                run = compiled[which] or torch.compile(
                    models[which], backend=backend, options=options
                )
                compiled[which] = run
                for mine, theirs in zip(
                    results(run, operands(seed, device)), wanted[which][seed], strict=True
                ):
                    torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)
            except Exception as error:
                text = " ".join(str(error).split())[:300]
                errors.append(f"model {which}, {type(error).__name__}: {text}")

    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    after = state()
    return {
        "errors": errors,
        "warnings": warnings.seen,
        "left": [name for name in before if before[name] != after[name]],
        "gdpa": dict(torch._dynamo.utils.counters["gdpa"]),
    }


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])))
