"""The memory of the CPU and of the chunked lowering does not grow with the square of the length."""

import subprocess
import sys

import pytest

MEMORY = """
import os, sys, torch
from gdpa_inductor import lowerings
torch.set_num_threads(2)
text, N, name = "silu(mul(s,0.125))", int(sys.argv[1]), sys.argv[2]

def status(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

def step(n):
    q, k, v, g = (torch.ones(1, 1, n, 64) for _ in range(4))
    rss = status("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak counts from here
    operands = (q, k, v, [], [], text)
    getattr(torch.ops.gdpa, name)(*operands)
    getattr(torch.ops.gdpa, name + "_backward")(g, *operands, [True] * 3)
    return status("VmHWM") - rss

step(600)
print(step(N))
"""


def extra_of(name: str, length: int) -> float:
    """MiB that a training step takes beyond its operands."""
    command = [sys.executable, "-c", MEMORY, str(length), name]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_linear_in_the_length():
    """Forward and backward: the results (4 × N × 64 floats) and buffers that do not grow."""
    extra = {length: extra_of("attention_cpu", length) for length in (4096, 8192)}
    scores = 8192 * 8192 * 4 / 2**20  # 256 MiB
    assert extra[8192] < scores / 8
    assert extra[8192] < 2 * extra[4096] + 8


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_chunks_take_64_mib_whatever_the_length():
    results = 4 * 8192 * 64 * 4 / 2**20
    assert extra_of("attention_chunked", 8192) < results + 64
