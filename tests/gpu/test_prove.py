"""`gdpa prove` on the card: unharmed kernels get a certificate, and each planted fault is found."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cutlass")
pytest.importorskip("triton")
pytestmark = pytest.mark.cuda

from tests.gpu.checks import hopper  # noqa: E402, F401

ROOT = Path(__file__).parents[2]
WATCHDOG = 500  # seconds


@pytest.mark.parametrize("run", ["unharmed", "hang", "index", "race", "address", "slow"])
def test_what_is_found(run: str) -> None:
    """Afterwards the GPU works, and training goes on with right gradients, without what failed."""
    done = subprocess.run(
        [sys.executable, "docs/lab/prove.py", run],
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=WATCHDOG,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    result = json.loads(done.stdout.splitlines()[0])
    kernels = {"lowered_cute": 2} if run == "unharmed" else {"lowered_cute": 1, "lowered_triton": 1}
    assert result["training_afterwards"] == kernels
