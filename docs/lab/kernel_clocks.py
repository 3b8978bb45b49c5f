"""Times of the Hopper kernels with the clock and the power that they ran at, as JSON lines.

    python docs/lab/kernel_clocks.py > clocks.jsonl

Each line has the median of `do_bench` in ms and the clock of the multiprocessors in MHz meanwhile,
then the same without a pause, with the power in W. The clock is counted on the device: cycles by
nanoseconds between two stamps of each multiprocessor. It takes about three minutes.
"""

import itertools
import json
import sys
import time
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer, smid
from triton.testing import do_bench

from benchmarks.ceiling.load import Sampler
from gdpa_inductor.kernels.cute import launch
from gdpa_inductor.kernels.cute.backward.launch import backward
from gdpa_inductor.operands import Operands
from gdpa_inductor.program.score_mod import ScoreMod

ACTIVATIONS = {
    "silu": "silu(mul(s,{}))",
    "gelu_tanh": "gelu_tanh(mul(s,{}))",
    "relu": "relu(mul(s,{}))",
}
SHAPES = [  # batch, heads, N, D
    *((64, 4, 512, 128), (32, 4, 1024, 128), (16, 4, 2048, 128), (8, 4, 4096, 128)),
    *((4, 4, 8192, 128), (4, 4, 1024, 128), (1, 4, 2048, 128)),
    *((64, 8, 512, 64), (32, 4, 1024, 64), (16, 4, 2048, 64), (8, 4, 4096, 64), (4, 4, 8192, 64)),
]
BUDGET = 170  # seconds


@triton.jit
def stamp(times):
    clock = tl.inline_asm_elementwise(
        "mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    now, place = globaltimer(), smid()
    tl.store(times + 2 * place, clock)
    tl.store(times + 2 * place + 1, now)


class Stamps:
    """The mean clock of the multiprocessors between two moments, in MHz."""

    def __init__(self) -> None:
        self.count = torch.cuda.get_device_properties(0).multi_processor_count
        self.times = [torch.zeros(self.count, 2, dtype=torch.int64, device="cuda") for _ in "ab"]
        self.take(0)

    def take(self, which: int) -> None:
        stamp[(4 * self.count,)](self.times[which])

    def clock(self) -> float:
        passed = (self.times[1] - self.times[0]).double()
        return (passed[:, 0] / passed[:, 1]).median().item() * 1e3


def timed(call: Callable[[], object], stamps: Stamps, power: Sampler) -> dict[str, object]:
    do_bench(call, warmup=5, rep=10)
    stamps.take(0)
    ms = do_bench(call, warmup=10, rep=60, return_mode="median")
    stamps.take(1)
    clock = stamps.clock()
    turns = max(20, int(350 / ms))
    moment = time.perf_counter()
    for _ in range(turns // 2):
        call()
    stamps.take(0)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")
    begin.record()
    for _ in range(turns // 2):
        call()
    end.record()
    stamps.take(1)
    torch.cuda.synchronize()
    lasting = begin.elapsed_time(end) / (turns // 2)
    return {
        "ms": ms,
        "mhz": clock,
        "lasting_ms": lasting,
        "lasting_mhz": stamps.clock(),
        "watts": power.since((moment + time.perf_counter()) / 2).get("watt"),
    }


def calls(shape: tuple[int, int, int, int], program: str) -> dict[str, Callable[[], object]]:
    torch.manual_seed(0)
    q, k, v, direction = (torch.randn(shape, device="cuda").bfloat16() for _ in range(4))
    mod = ScoreMod.parse(program.format(shape[3] ** -0.5))
    forward = Operands(q, k, v, (), (), mod)
    trained = Operands(q, k, v, [], (), mod, None, None, 0, 0)
    return {
        "forward": lambda: launch.forward(forward),
        "backward": lambda: backward(direction, trained, (True,) * 3),
    }


def machine() -> dict[str, object]:
    import cutlass

    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cutlass_dsl": cutlass.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def small(stamps: Stamps, power: Sampler) -> None:
    """A kernel that does nothing, and a copy of 1 GiB."""
    source = torch.empty(1 << 28, dtype=torch.float32, device="cuda")
    target, product = torch.empty_like(source), torch.randn(8192, 8192, device="cuda").bfloat16()
    for name, call in {
        "nothing": lambda: stamp[(stamps.count,)](stamps.times[0]),
        "copy of 1 GiB": lambda: target.copy_(source),
        "product of 8192": lambda: product @ product,
    }.items():
        print(json.dumps({"kernel": name, **timed(call, stamps, power)}), flush=True)


def main() -> None:
    start = time.perf_counter()
    print(json.dumps(machine()), flush=True)
    stamps = Stamps()
    with Sampler() as power:
        small(stamps, power)
        for (name, program), shape in itertools.product(ACTIVATIONS.items(), SHAPES):
            if time.perf_counter() - start > BUDGET:
                print("out of time", file=sys.stderr)
                break
            for measure, call in calls(shape, program).items():
                line = {"kernel": measure, "activation": name, "shape": shape}
                try:
                    line |= timed(call, stamps, power)
                except Exception as error:
                    line["error"] = f"{type(error).__name__}: {error}"[:200]
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
