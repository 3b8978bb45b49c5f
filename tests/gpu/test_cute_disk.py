"""Kernels that a process loads from disk, on the card: those that another compiled, bit for bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("cutlass")
pytestmark = pytest.mark.cuda

from tests.gpu.checks import hopper  # noqa: E402, F401

ROOT = Path(__file__).parent.parent.parent
SOON = 0.3  # seconds for all kernels
KERNELS = {"HopperForward", "HopperBackward", "Ranking", "Summation", "TileSums"}


def run(caches: Path, name: str, **environment: str) -> tuple[dict, list[torch.Tensor]]:
    """What a process says, and what its kernels gave."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TORCHINDUCTOR_", "CUTE_"))}
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.disk_program", str(caches / name)],
        env={**clean, "TORCHINDUCTOR_CACHE_DIR": str(caches), **environment},
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1]), torch.load(caches / name)


def equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    """Bit for bit: NaN lies past the last sequence."""
    return len(left) == len(right) and all(
        torch.equal(x.view(torch.int16), y.view(torch.int16))
        for x, y in zip(left, right, strict=True)
    )


def test_a_second_process_loads_and_gives_the_same_bits(tmp_path: Path):
    first, outputs = run(tmp_path, "first")
    assert len(first["compiled"]) == first["kernels"] and set(first["compiled"]) == KERNELS
    second, loaded = run(tmp_path, "second")
    assert second["compiled"] == [] and second["kernels"] == first["kernels"]
    assert first["cutlass"] and not second["cutlass"]
    assert equal(outputs, loaded)
    assert second["seconds"] < SOON
    path = next(tmp_path.glob("gdpa_cute/*/*.o"))
    path.write_bytes(path.read_bytes()[:-100])
    third, again = run(tmp_path, "third")
    assert len(third["compiled"]) == 1
    assert equal(outputs, again)
