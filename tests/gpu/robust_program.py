"""What the tests of robustness run in processes of their own, so that one that hangs can be ended.

    python -m tests.gpu.robust_program hold      two backwards on two streams while another kernel
                                                 holds most multiprocessors
    python -m tests.gpu.robust_program kernels   each kernel once on a small case, for a sanitizer

The last line of the output is one JSON object.
"""

import json
import sys

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda as extra

from gdpa_inductor._compat.device import current_stream
from gdpa_inductor.kernels.cute import launch
from gdpa_inductor.kernels.cute.architectures import config_of
from gdpa_inductor.kernels.cute.backward import biases
from gdpa_inductor.kernels.cute.backward.launch import backward
from tests.gpu.checks import on_card
from tests.kernels.cute_backward_cases import CAUSAL, SILU, Case, Problem, make_call

HELD = 100  # multiprocessors
WARPS = 32  # of a CTA that holds one: too many registers are taken for one of ours beside it
NANOSECONDS = 200_000_000
ROUNDS = 3
LENGTHS = {"rows": (700, 1, 300, 0, 900), "keys": (700, 1, 300, 0, 900)}
HOLD = (
    Case(SILU, 4, 4, 4, rows=1024, keys=1024, dims=(128, 128)),
    Case(CAUSAL, heads=4, key_heads=2, **LENGTHS, dims=(128, 128)),
)
SMALL = {
    "dense": Case(SILU, rows=200, keys=150),
    "causal, jagged": Case(CAUSAL, rows=(130, 0, 70), keys=(130, 0, 70), dims=(128, 128)),
}


@triton.jit
def hold(results, nanoseconds):
    """Each CTA says on which multiprocessor it is, and stays there for so long."""
    start = extra.globaltimer()
    tl.store(results + tl.program_id(0), extra.smid())
    now = start
    while now - start < nanoseconds:
        now = extra.globaltimer()


def problem(case: Case) -> Problem:
    call = make_call(case)
    return Problem(
        on_card(call.operands), call.grad_out.cuda(), None, call.batch, call.rows, call.cols
    )


def bits(results: list[torch.Tensor]) -> list[torch.Tensor]:
    return [x.view(torch.int16) for x in results]


def held() -> dict:
    """Both results are what they are alone, and come."""
    calls = [problem(case) for case in HOLD]
    alone = [bits(backward(x.grad_out, x.operands, (True,) * 3)) for x in calls]
    places = torch.full((ROUNDS, HELD), -1, dtype=torch.int32, device="cuda")
    hold[(HELD,)](places[0], 0, num_warps=WARPS)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in calls]
    results = []
    for own in places:
        hold[(HELD,)](own, NANOSECONDS, num_warps=WARPS)
        for stream, x in zip(streams, calls, strict=True):
            with torch.cuda.stream(stream):
                results.append(bits(backward(x.grad_out, x.operands, (True,) * 3)))
    torch.cuda.synchronize()
    equal = [all(map(torch.equal, each, alone[i % 2])) for i, each in enumerate(results)]
    # In the first round the card was free: each CTA found a multiprocessor of its own.
    return {"equal": equal, "held": len(set(places[0].tolist()))}


def kernels() -> dict:
    """Forward, both backwards, the order of sequences and a sum."""
    for case in SMALL.values():
        x = problem(case)
        launch.forward(x.operands, ctas=3)
        for ordered in (True, False):
            backward(x.grad_out, x.operands, (True,) * 3, ctas=3, ordered=ordered)
    scores = torch.ones(3, 2, 8, 64, device="cuda", dtype=torch.bfloat16)
    kind = config_of(scores.device)
    assert kind is not None
    own = scores.new_empty(1, 2, 8, 64)
    assert biases.total(scores, own, 0.5, kind.arch, current_stream(0))
    torch.cuda.synchronize()
    return {"done": True}


if __name__ == "__main__":
    print(json.dumps({"hold": held, "kernels": kernels}[sys.argv[1]]()))
