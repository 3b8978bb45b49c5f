"""A pooling step, and what lives at its peak: `python docs/lab/pooling_memory.py`, on a GPU.

Set Transformer's pooling by 48 queries of 256 sequences of 1024 places, 4 heads of 128, in bf16 by
autocast. Milliseconds, the peak in MiB beyond parameters and input, and the largest blocks then.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from triton.testing import do_bench

from benchmarks.measure import peak_extra_bytes
from benchmarks.models.plain import Pool
from gdpa_inductor import gdpa_backend

BATCH, PLACES, HEADS, WIDTH, SEEDS = 256, 1024, 4, 512, 48
SHOWN = 6


def step_of(backend: str | Callable) -> Callable[[], Sequence[Tensor]]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Pool(WIDTH, HEADS, SEEDS).cuda()
    places = torch.randn(BATCH, PLACES, WIDTH, device="cuda")
    compiled = torch.compile(model, dynamic=False, backend=backend)

    def step() -> Sequence[Tensor]:
        with torch.autocast("cuda", torch.bfloat16):
            out = compiled(places)
        return torch.autograd.grad(out.sum(), list(model.parameters()))

    return step


def at_the_peak(step: Callable[[], object]) -> list[int]:
    """Bytes of the blocks that live then."""
    torch.cuda.memory._record_memory_history(max_entries=100_000)
    step()
    torch.cuda.synchronize()
    (events, *_) = torch.cuda.memory._snapshot()["device_traces"]
    torch.cuda.memory._record_memory_history(enabled=None)
    alive: dict[int, int] = {}
    found: list[int] = []
    for event in events:
        if event["action"] == "alloc":
            alive[event["addr"]] = event["size"]
            found = max(found, list(alive.values()), key=sum)
        elif event["action"] == "free_completed":
            alive.pop(event["addr"], None)
    return sorted(found, reverse=True)


def main() -> None:
    for name, backend in (("gdpa", gdpa_backend), ("inductor", "inductor")):
        step = step_of(backend)
        step()
        peak = (peak_extra_bytes(step, "cuda") or 0) / 2**20
        ms = do_bench(step, return_mode="median")
        blocks = [round(size / 2**20, 1) for size in at_the_peak(step)[:SHOWN]]
        print(f"| {name} | {ms:.3f} | {peak:.0f} | {blocks}", flush=True)


if __name__ == "__main__":
    main()
