"""The recipe of context parallelism: ranks give what one device gives, and both ways are fused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

ROOT = Path(__file__).parents[2]
FUSED = {"gathered": 2, "ring": 2}  # regions of a rank


@pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_ranks_give_what_one_device_gives(ranks: int) -> None:
    command = [sys.executable, "docs/lab/context_parallel.py", "cpu", str(ranks)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    lines = [json.loads(x) for x in done.stdout.splitlines() if x.startswith("{")]
    assert len(lines) == 2 * ranks, done.stderr[-2000:]
    for line in lines:
        assert line["fused"] == FUSED[line["way"]]
        assert len(line["apart"]) == 4 and max(line["apart"]) < 1e-14, line
