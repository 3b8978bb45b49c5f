"""A training step on two GPUs, against the same step on one, bit for bit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gdpa_inductor.kernels.cute.architectures import config_of

ROOT = Path(__file__).parent.parent.parent
WATCHDOG = 300  # seconds


def step(device: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.distributed_program", device],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=WATCHDOG,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def check(results: dict, kernel: str) -> None:
    assert results["nonzero"] and results["gdpa"][f"lowered_{kernel}"] == 2
    for wrapper in ("ddp", "fsdp"):
        assert results[wrapper] == [True] * 4, wrapper


@pytest.mark.cuda
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_give_the_gradients_of_one() -> None:
    pytest.importorskip("cutlass")
    if config_of(torch.device("cuda", 0)) is None:
        pytest.skip("there is no CuTe kernel for this GPU")
    check(step("cuda"), "cute")


@pytest.mark.slow
def test_the_step_itself_on_the_cpu() -> None:
    """So that a fault of the program is found without GPUs."""
    check(step("cpu"), "cpu")
