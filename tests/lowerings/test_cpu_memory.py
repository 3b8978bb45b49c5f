"""The memory of the CPU and of the chunked lowering does not grow with the square of the length.

That of a jagged batch does not grow with its longest sequence.
"""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
LENGTHS = [4096, *[40] * 300]
MEMORY = f"""
import json, os, torch, torch._inductor.compile_fx
from gdpa_inductor import lowerings

def status(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

def extra(op, rows, *bounds, program=([], [], "silu(mul(s,0.125))"), needs=[True] * 3):
    "MiB that a training step takes beyond its operands."
    q, k, v, g = (torch.ones(*rows, 64) for _ in range(4))
    rss = status("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak counts from here
    operands = (q, k, v, *program)
    getattr(torch.ops.gdpa, op)(*operands, *bounds)
    getattr(torch.ops.gdpa, op + "_backward")(g, *operands, needs, *bounds)
    return status("VmHWM") - rss

def dense(op, length):
    return extra(op, (1, 1, length))

def tables(op, length):
    at = torch.zeros(1, length, length, dtype=torch.uint8)
    at += 1  # in memory
    text = "a0:f[h,t]; a1:i[b,q_idx,kv_idx]; a2:f[t]; silu(add(add(s," \
        "lookup(a0,add(sub(q_idx,kv_idx),i0))),lookup(a2,a1)))"
    aux = [torch.ones(1, 2 * length - 1), at, torch.ones(65)]
    needs = [True] * 4 + [False, True]
    return extra(op, (1, 1, length), program=(aux, [length - 1], text), needs=needs)

def jagged(op, lengths):
    cu = torch.tensor([0, *lengths]).cumsum(0)
    return extra(op, (int(cu[-1]), 1), cu, cu, max(lengths), max(lengths))

CPU, CHUNKED = "attention_cpu", "attention_chunked"
found = {{}}
for name, threads, step, op, small, large in (
    ("cpu 4096", 2, dense, CPU, 600, 4096), ("cpu 8192", 2, dense, CPU, 600, 8192),
    ("chunked 8192", 2, dense, CHUNKED, 600, 8192),
    ("tables 4096", 2, tables, CPU, 600, 4096), ("tables 8192", 2, tables, CPU, 600, 8192),
    ("chunked tables 8192", 2, tables, CHUNKED, 600, 8192),
    ("jagged", 1, jagged, CPU, [600, 40, 40], {LENGTHS}),
):
    read, write = os.pipe()
    if os.fork() == 0:  # with a heap of its own
        torch.set_num_threads(threads)
        step(op, small)
        os.write(write, str(step(op, large)).encode())
        os._exit(0)
    assert os.wait()[1] == 0
    found[name] = float(os.read(read, 99))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def extra() -> dict[str, float]:
    command = [sys.executable, "-c", MEMORY]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def test_memory_is_linear_in_the_length(extra):
    """Forward and backward: the results (4 × N × 64 floats) and buffers that do not grow."""
    scores = 8192 * 8192 * 4 / 2**20  # 256 MiB
    assert extra["cpu 8192"] < scores / 8
    assert extra["cpu 8192"] < 2 * extra["cpu 4096"] + 8


def test_tables_take_no_memory_for_scores(extra):
    """The bias and its gradient have no element for each score; here a block's are in memory."""
    assert extra["tables 8192"] < 2 * extra["tables 4096"] + 8
    assert extra["tables 8192"] < extra["cpu 8192"] + 64


def test_chunks_take_64_mib_whatever_the_length(extra):
    results = 4 * 8192 * 64 * 4 / 2**20
    assert extra["chunked 8192"] < results + 64
    assert extra["chunked tables 8192"] < results + 64


def test_memory_of_a_jagged_batch_is_that_of_the_rows(extra):
    """Padded, one long sequence among 300 short ones would be 300 times 4096 rows: 300 MiB for each
    operand, and 20 GiB of scores. Here it is 16 000 rows: 4 MiB each, and buffers.
    """
    assert extra["jagged"] < 100
