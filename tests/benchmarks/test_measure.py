"""The clock and the scales of the benchmark, on calls whose time and memory are known."""

import subprocess
import sys
import time

import pytest
import torch

from benchmarks.measure import medians_ms, peak_extra_bytes, spread

MIB = 2**20


def test_median_is_that_of_the_call():
    calls = {"short": lambda: time.sleep(0.002), "long": lambda: time.sleep(0.02)}
    medians = medians_ms(calls, "cpu", seconds=0.05)
    assert 2 <= medians["short"] < 15
    assert 20 <= medians["long"] < 100


def test_one_slow_call_does_not_move_the_median():
    waits = iter([0.05, 0.05, 0.1, *[0.001] * 500])
    medians = medians_ms({"call": lambda: time.sleep(next(waits))}, "cpu", seconds=0.2)
    assert medians["call"] < 10


def test_spread_leaves_the_ends_out():
    assert spread([1.0] * 10) == 1.0
    assert spread([0.1, *[1.0] * 8, 50.0]) == 1.0
    assert spread([*[1.0] * 5, *[2.0] * 5]) == 2.0
    assert spread([3.0]) == 1.0


# In a process of its own: what earlier tests left in the heap would be reused, and not be counted.
HOLDS_TWO = """
import torch
from benchmarks.measure import peak_extra_bytes

def hold_two(count):
    first = torch.ones(count)
    second = first * 2
    del first
    third = second + 1
    return third.sum().item()

for mib in (8, 8, 64, 64):
    print(mib, peak_extra_bytes(lambda: hold_two(mib * 2**18), "cpu"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_peak_counts_what_is_held_at_once_and_given_back():
    command = [sys.executable, "-c", HOLDS_TWO]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert len(printed.splitlines()) == 4
    for mib, peak in (map(int, line.split()) for line in printed.splitlines()):
        assert 2 * mib * 0.9 <= peak / MIB <= 2 * mib * 1.1 + 1


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_peak_does_not_count_what_was_held_before():
    block = torch.ones(64 * MIB // 4)
    peak = peak_extra_bytes(lambda: block.sum().item(), "cpu")
    assert peak is not None
    assert peak < 4 * MIB


@pytest.mark.cuda
def test_cuda_peak_and_time():
    block = torch.ones(64 * MIB // 4, device="cuda")
    assert peak_extra_bytes(lambda: block * 2, "cuda") == 64 * MIB
    assert medians_ms({"call": lambda: block * 2}, "cuda", seconds=0.05)["call"] > 0
