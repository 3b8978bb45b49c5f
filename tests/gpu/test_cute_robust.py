"""The Hopper kernels in hard company, on the card: a busy GPU, a thousand runs, a sanitizer."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("cutlass")
pytest.importorskip("triton")
pytestmark = pytest.mark.cuda

from gdpa_inductor.kernels.cute.backward.launch import backward  # noqa: E402
from tests.gpu.checks import hopper  # noqa: E402, F401
from tests.gpu.robust_program import HELD, HOLD, ROUNDS, problem  # noqa: E402
from tests.kernels.cute_backward_cases import CAUSAL, SILU, Case  # noqa: E402

ROOT = Path(__file__).parent.parent.parent
WATCHDOG = 120  # seconds
RUNS = 1000
LENGTHS = {"rows": (900, 33, 700, 0, 1, 512), "keys": (900, 33, 700, 0, 1, 512)}
THOUSAND = {
    "dense": Case(SILU, 2, 4, 4, rows=700, keys=900, dims=(128, 128)),
    "causal": Case(CAUSAL, 2, 4, 2, rows=900, keys=900),
    "jagged, grouped heads": Case(SILU, heads=4, key_heads=2, **LENGTHS, dims=(128, 128)),
}
SANITIZER = "compute-sanitizer"
# memcheck reports calls of the driver too: bindings ask for functions that this driver has not.
# racecheck takes the forward's list of tiles for a race. All lanes read a tile, then the warp meets
# and one lane says so. The compiler leaves the meeting out where lanes are together anyway. The
# emulator sees it, and checks these kernels too.
TOOLS = {
    "memcheck": ("--report-api-errors=no",),
    "racecheck": ("--kernel-name-exclude", "kernel_substring=HopperForward"),
}


def run(*command: str, seconds: int = WATCHDOG) -> subprocess.CompletedProcess:
    """Ended after a while; that is a failure."""
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=seconds)


def test_two_backwards_while_another_kernel_holds_the_card() -> None:
    """They need all multiprocessors at once, of which another kernel has most. Nothing waits
    forever, and no bit is another."""
    done = run(sys.executable, "-m", "tests.gpu.robust_program", "hold")
    assert done.returncode == 0, done.stderr[-4000:]
    results = json.loads(done.stdout.splitlines()[-1])
    assert results["held"] == HELD
    assert results["equal"] == [True] * ROUNDS * len(HOLD)


@pytest.mark.parametrize("name", THOUSAND)
def test_a_thousand_runs_have_equal_bits(name: str) -> None:
    x = problem(THOUSAND[name])

    def once() -> list[torch.Tensor]:
        return [y.view(torch.int16) for y in backward(x.grad_out, x.operands, (True,) * 3)]

    first = once()
    others = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(RUNS):
        for mine, theirs in zip(once(), first, strict=True):
            others += (mine != theirs).sum()
    assert others.item() == 0


@pytest.mark.skipif(shutil.which(SANITIZER) is None, reason=f"there is no {SANITIZER}")
@pytest.mark.parametrize("tool", TOOLS)
def test_the_sanitizer_finds_nothing(tool: str) -> None:
    done = run(
        SANITIZER, f"--tool={tool}", *TOOLS[tool], "--error-exitcode=9", "--target-processes=all",
        sys.executable, "-m", "tests.gpu.robust_program", "kernels", seconds=5 * WATCHDOG,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert '{"done": true}' in done.stdout
