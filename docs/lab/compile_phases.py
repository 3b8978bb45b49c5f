"""Where the first call of a training step spends its time: `python docs/lab/compile_phases.py
plain`, on a Hopper with CuTe DSL. `plain`, `bias`, `jagged` or `hstu-padded`; then `inductor` for
stock.

Samples the stacks of all threads every 4 ms. The second run in one TORCHINDUCTOR_CACHE_DIR is warm.
"""

import sys
import threading
import time
from collections import Counter

import torch

from benchmarks.cases import Case
from benchmarks.contenders import CONTENDERS
from benchmarks.models import MODELS
from benchmarks.subjects import subject
from benchmarks.worker import compiler_loaded, step_call

SHAPE = (32, 4, 1024, 128, "bfloat16", "cuda")
CASES = {
    "plain": lambda: Case("silu", "none", *SHAPE),
    "bias": lambda: Case("silu", "bias", *SHAPE),
    "jagged": lambda: Case("silu", "causal", 256, *SHAPE[1:], fill=0.5),
    "hstu-padded": lambda: MODELS["hstu-padded"].case("hstu-padded", "cuda", "bfloat16"),
}
# A stack belongs to the first phase that it has a frame of: a file and a function, or parts.
PHASES = {
    "waits for CuTe kernels": "kernels/cute/precompile.py:finish",
    "import of cutlass": "cutlass/__init__.py:<module>",
    "comparison of configurations": "select_algorithm.py:do_autotuning",
    "the judge": "gdpa_inductor/judge/",
    "our passes": "patterns/validation.py:rewrite_graph",
    "Triton": "triton/compiler/compiler.py:compile",
    "waits for Triton": "async_compile.py:wait",
    "our lowerings": "gdpa_inductor/lowerings/",
}


class Sampler(threading.Thread):
    """Seconds by phase. Where the main thread waits for autograd's, that one counts."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.ended, self.seconds = threading.Event(), Counter()

    def run(self) -> None:
        last = time.perf_counter()
        while not self.ended.wait(0.004):
            now, main = time.perf_counter(), threading.main_thread().ident
            stacks = {i: stack(f) for i, f in sys._current_frames().items() if i != self.ident}
            counted = [stacks.pop(main)]
            if "_engine_run_backward" in counted[0]:
                counted = [x for x in stacks.values() if "_backward_impl" in x]
            for x in counted:
                phase = next((name for name, part in PHASES.items() if part in x), "all else")
                self.seconds[phase] += now - last
            last = now


def stack(frame) -> str:
    frames = []
    while frame is not None:
        frames.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")
        frame = frame.f_back
    return ";".join(frames)


def main() -> None:
    on = subject(CASES[sys.argv[1]]())
    compiler_loaded("cuda")
    sampler = Sampler()
    sampler.start()
    start = time.perf_counter()
    step_call(CONTENDERS[sys.argv[2] if len(sys.argv) > 2 else "gdpa"](on.function), on)()
    torch.cuda.synchronize()
    print(f"{time.perf_counter() - start:.1f} s", end=": ")
    sampler.ended.set()
    print(", ".join(f"{name} {s:.1f}" for name, s in sampler.seconds.most_common() if s > 0.05))


if __name__ == "__main__":
    main()
