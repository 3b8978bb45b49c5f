"""A process that runs CuTe kernels on the card, says what it compiled and how long it took to have
them, and saves what they gave. Run by `test_cute_disk`: `python -m tests.gpu.disk_program FILE`."""

import json
import sys
import time

import torch
from cutlass import cute

from gdpa_inductor._compat import inductor
from gdpa_inductor._compat.device import current_stream
from gdpa_inductor.kernels.cute import disk, launch
from gdpa_inductor.kernels.cute.architectures import config_of
from gdpa_inductor.kernels.cute.backward import totals
from gdpa_inductor.kernels.cute.backward.launch import backward
from tests.kernels.cute_backward_cases import CAUSAL, SILU, Case, make_call

LENGTHS = {"rows": (200, 0, 130, 1, 300), "keys": (200, 0, 130, 1, 300)}
CASES = (
    Case(SILU, 2, 4, 2, rows=300, keys=500, dims=(128, 128)),
    Case(CAUSAL, heads=4, key_heads=4, **LENGTHS),
)
compiled, seconds = [], []
compile_function, kept = cute.compile, disk.kept


def counted(function, *given, **options):
    compiled.append(type(function).__name__)
    return compile_function(function, *given, **options)


def timed(*given):
    start = time.perf_counter()
    found = kept(*given)
    seconds.append(time.perf_counter() - start)
    return found


def results(case: Case) -> list[torch.Tensor]:
    """O, dQ, dK, dV."""
    call = make_call(case)
    o = call.operands
    there = o.filled([x.cuda() if isinstance(x, torch.Tensor) else x for x in o.flat()])
    out = launch.forward(there)
    return [out, *backward(call.grad_out.cuda(), there, (True,) * 3)]


def total() -> torch.Tensor:
    scores = torch.arange(4 * 2 * 8 * 64, device="cuda").bfloat16().reshape(4, 2, 8, 64)
    own = scores.new_empty(1, 2, 8, 64)
    kind = config_of(scores.device)
    assert kind is not None
    assert totals.total(scores, own, 0.5, kind.arch, current_stream(0))
    return own


if __name__ == "__main__":
    cute.compile, disk.kept = counted, timed
    inductor.cache_folder()  # imports Inductor, which takes its time
    found = [x.cpu() for case in CASES for x in results(case)] + [total().cpu()]
    torch.cuda.synchronize()
    torch.save(found, sys.argv[1])
    print(json.dumps({"compiled": compiled, "seconds": sum(seconds), "kernels": len(seconds)}))
