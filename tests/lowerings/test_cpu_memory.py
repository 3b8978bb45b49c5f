"""The memory of the CPU lowering is linear in the length."""

import subprocess
import sys

import pytest

MEMORY = """
import os, sys, torch
from gdpa_inductor import lowerings
torch.set_num_threads(2)
text, N = "silu(mul(s,0.125))", int(sys.argv[1])

def status(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

def step(n):
    q, k, v, g = (torch.ones(1, 1, n, 64) for _ in range(4))
    rss = status("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak counts from here
    operands = (q, k, v, [], [], text)
    torch.ops.gdpa.attention_cpu(*operands)
    torch.ops.gdpa.attention_cpu_backward(g, *operands, [True] * 3)
    return status("VmHWM") - rss

step(600)
print(step(N))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_linear_in_the_length():
    """Forward and backward: the results (4 × N × 64 floats) and buffers that do not grow."""
    extra = {}
    for length in (4096, 8192):
        command = [sys.executable, "-c", MEMORY, str(length)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        extra[length] = float(done.stdout)
    scores = 8192 * 8192 * 4 / 2**20  # 256 MiB
    assert extra[8192] < scores / 8
    assert extra[8192] < 2 * extra[4096] + 8
