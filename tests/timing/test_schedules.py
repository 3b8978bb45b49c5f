"""The emulator's traces of our kernels, and their machine code, against the schedules."""

from collections.abc import Iterator

import pytest

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute.sm100.config import BOTH, Sm100Config
from tests.kernels import (
    test_cute_backward,
    test_cute_forward,
    test_cute_hopper_backward,
    test_cute_hopper_forward,
)
from tests.kernels.cute_backward_cases import Case as BackwardCase
from tests.kernels.cute_backward_cases import make_call
from tests.kernels.cute_cases import Case
from tests.kernels.test_cute_golden import compiler_version

from . import subjects
from .engine import Operation
from .trace import Trace, listening, said

TILES, STEPS = 2, 3
Roles = dict[str, Iterator[Operation]]


def check(trace: Trace, roles: Roles, warps: dict[str, int]) -> None:
    for role, warp in warps.items():
        expected = said(roles[role])
        assert len(expected) >= TILES * STEPS
        assert trace.of(warp) == expected, role


def backward(dim: int, rows: int, keys: int) -> BackwardCase:
    sizes = {"rows": rows, "keys": keys, "heads": 1, "key_heads": 1, "dims": (dim, dim)}
    return BackwardCase("silu(s)", ctas=1, **sizes)


@pytest.mark.parametrize("dim", subjects.DIMS)
def test_hopper_forward(dim: int):
    schedule = subjects.hopper_forward("silu", dim)
    rows = 64 * schedule.tiles * TILES
    case = Case("timing", "silu(s)", m=rows, n=128 * STEPS, d=dim, ctas=1)
    with listening() as trace:
        test_cute_hopper_forward.forward(case, case.operands())
    warps = {f"products{t}": 4 * t for t in range(schedule.tiles)}
    check(trace, schedule.roles(TILES, STEPS), warps | {"loads": 4 * schedule.tiles})


@pytest.mark.parametrize("dim", subjects.DIMS)
def test_hopper_backward(dim: int):
    schedule = subjects.hopper_backward("silu", dim)
    case = backward(dim, schedule.rows * STEPS, 128 * TILES)
    with listening() as trace:
        test_cute_hopper_backward.emulated(case, make_call(case))
    warps = {"products0": 0, "products1": 4, "loads": 8, "sums0": 9}
    check(trace, schedule.roles(TILES, STEPS), warps)


@pytest.mark.parametrize("dim", [*subjects.DIMS, *subjects.WIDE])
def test_blackwell_forward(dim: int):
    schedule = subjects.blackwell_forward("silu", dim)
    rows = 128 * schedule.query_tiles * TILES
    case = Case("timing", "silu(s)", m=rows, n=128 * STEPS, d=dim, ctas=1)
    with listening() as trace:
        test_cute_forward.forward(case, case.operands())
    check(trace, schedule.roles(TILES, STEPS), {"products": 12, "loads": 13})


@pytest.mark.parametrize("dim", subjects.WIDE)
def test_wide_heads_have_these_buffers(dim: int):
    config = Sm100Config("bfloat16", dim, dim, "silu(s)")
    assert (config.key_stages, config.query_stages) == subjects.WIDE[dim]


@pytest.mark.parametrize("dim", subjects.DIMS)
@pytest.mark.parametrize("side", ["keys", "rows"])
def test_blackwell_backward(dim: int, side: str):
    sizes = (128 * STEPS, 128 * TILES) if side == "keys" else (128 * TILES, 128 * STEPS)
    case = backward(dim, *sizes)
    with listening() as trace:
        test_cute_backward.emulated(case, make_call(case), sides=[side])
    schedule = subjects.blackwell_backward("silu", dim)[side == "rows"]
    check(trace, schedule.roles(TILES, STEPS), {"products": 8, "loads": 9})


def test_blackwell_backward_by_a_pair():
    """Of its leading CTA."""
    case = backward(128, 128 * STEPS, 256 * TILES)
    with listening() as trace:
        test_cute_backward.emulated(case, make_call(case), sides=[BOTH])
    schedule = subjects.blackwell_pair("silu", 128)
    check(trace, schedule.roles(TILES, STEPS), {"products": 8, "loads": 9})


@pytest.mark.parametrize("kind", subjects.KINDS)
def test_counts_are_those_of_the_machine_code(kind: str):
    if compiler_version() != subjects.COMPILER:
        pytest.skip(f"counted with nvidia-cutlass-dsl {subjects.COMPILER}")
    assert subjects.counted("silu", 128, kind) == subjects.counts(f"silu 128 {kind}")
