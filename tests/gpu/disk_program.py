"""A process that runs CuTe kernels on the card, says what it compiled and how long it took to load
them, and saves what they gave. Run by `test_cute_disk`: `python -m tests.gpu.disk_program FILE`."""

import json
import sys
import time

import torch

from gdpa_inductor._compat import inductor
from gdpa_inductor._compat.device import current_stream
from gdpa_inductor.kernels.cute import disk, launch
from gdpa_inductor.kernels.cute.architectures import config_of
from gdpa_inductor.kernels.cute.backward import biases
from gdpa_inductor.kernels.cute.backward.launch import backward
from gdpa_inductor.kernels.cute.runtime import Kernel
from tests.gpu.checks import on_card
from tests.kernels.cute_backward_cases import CAUSAL, SILU, Case, make_call

LENGTHS = {"rows": (200, 0, 130, 1, 300), "keys": (200, 0, 130, 1, 300)}
BIAS = "a0:f[h,q_idx,kv_idx]; silu(add(mul(s,0.125),a0))"
CASES = (
    Case(SILU, 2, 4, 2, rows=300, keys=500, dims=(128, 128)),
    Case(CAUSAL, heads=4, key_heads=4, **LENGTHS),
    Case(BIAS, 2, 4, 4, rows=256, keys=384),
    Case(BIAS, heads=4, key_heads=4, **LENGTHS),
)
KINDS = ("HopperForward", "HopperBackward", "Ranking", "Summation", "TileSums")
compiled, seconds = [], []
export, fetch, load = disk.exported, disk.object_file, Kernel.__init__


def counted(made) -> bytes:
    compiled.append(next(kind for kind in KINDS if kind in made.function_name))
    return export(made)


def timed(function):
    def run(*tensors):
        start = time.perf_counter()
        outcome = function(*tensors)
        seconds.append(time.perf_counter() - start)
        return outcome

    return run


def results(case: Case) -> list[torch.Tensor]:
    """O, dQ, dK, dV, and the gradient of a bias."""
    call = make_call(case)
    o = call.operands
    there = on_card(o)
    out = launch.forward(there)
    return [out, *backward(call.grad_out.cuda(), there, (True,) * (3 + len(o.aux)))]


def total() -> torch.Tensor:
    scores = torch.arange(4 * 2 * 8 * 64, device="cuda").bfloat16().reshape(4, 2, 8, 64)
    own = scores.new_empty(1, 2, 8, 64)
    kind = config_of(scores.device)
    assert kind is not None
    assert biases.total(scores, own, 0.5, kind.arch, current_stream(0))
    return own


if __name__ == "__main__":
    disk.exported, disk.object_file, Kernel.__init__ = counted, timed(fetch), timed(load)
    inductor.cache_folder()  # imports Inductor, which takes its time
    start = time.perf_counter()
    outcome = [x.cpu() for case in CASES for x in results(case)] + [total().cpu()]
    torch.cuda.synchronize()
    whole = time.perf_counter() - start
    torch.save(outcome, sys.argv[1])
    facts = {"compiled": compiled, "kernels": len(seconds) // 2, "seconds": sum(seconds)}
    print(json.dumps({**facts, "whole": whole, "cutlass": "cutlass" in sys.modules}))
