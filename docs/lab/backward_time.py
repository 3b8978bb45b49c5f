"""Rate of the dense backward on Hopper: `python docs/lab/backward_time.py`, with CuTe DSL.

bf16, D = 128, batch · N = 32768, 4 heads; TFLOP/s of five products, by a median of three medians.
Of softmax where `cudnn`, or one of FlashAttention-4 (`pip install flash-attn-4`), is named:

    python docs/lab/backward_time.py silu gelu_tanh cudnn fa4 fa4-deterministic
"""

import functools
import statistics
import sys
from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from triton.testing import do_bench

from gdpa_inductor.kernels.cute.backward.launch import backward
from gdpa_inductor.operands import Operands
from gdpa_inductor.program.score_mod import ScoreMod

LENGTHS, TOKENS, HEADS, DIM = (512, 1024, 2048, 8192), 32768, 4, 128
Make = Callable[[int], Callable[[], object]]


def tensors(length: int, rows_first: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    places = (length, HEADS) if rows_first else (HEADS, length)
    shape = (TOKENS // length, *places, DIM)
    return [torch.randn(shape, device="cuda").bfloat16() for _ in range(4)]


def gdpa(activation: str, length: int) -> Callable[[], object]:
    query, key, value, direction = tensors(length, False)
    program = ScoreMod.parse(f"{activation}(mul(s,0.088))")
    operands = Operands(query, key, value, [], (), program, None, None, 0, 0)
    return lambda: backward(direction, operands, (True,) * 3)


def softmax(function: Callable, rows_first: bool, length: int) -> Callable[[], object]:
    *given, direction = tensors(length, rows_first)
    leaves = [x.requires_grad_() for x in given]
    out = function(*leaves)
    out = out[0] if isinstance(out, tuple) else out
    return lambda: torch.autograd.grad(out, leaves, direction, retain_graph=True)


def cudnn(*operands: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return torch.nn.functional.scaled_dot_product_attention(*operands)


def contender(name: str) -> Make:
    if name == "cudnn":
        return functools.partial(softmax, cudnn, False)
    if name.startswith("fa4"):
        from flash_attn.cute.interface import flash_attn_func

        function = functools.partial(flash_attn_func, deterministic=name != "fa4")
        return functools.partial(softmax, function, True)
    return functools.partial(gdpa, name)


def main() -> None:
    print(torch.cuda.get_device_name())
    for name in sys.argv[1:] or ("silu", "gelu_tanh"):
        make = contender(name)
        for length in LENGTHS:
            run = make(length)
            times = [do_bench(run, warmup=8, rep=40, return_mode="median") for _ in range(3)]
            rate = 10 * TOKENS * HEADS * length * DIM / statistics.median(times) / 1e9
            print(f"{name}, N = {length}: {rate:.0f}", flush=True)


if __name__ == "__main__":
    main()
