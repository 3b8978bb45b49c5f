"""The host side: recorded tensor maps, launches, memory, the comparison of schedules."""

import numpy as np
import pytest
import torch

cutlass = pytest.importorskip("cutlass")

from cutlass import cute  # noqa: E402
from cutlass.cute.runtime import from_dlpack  # noqa: E402

from tests.emulator import EmulatorError, device, recording, run, runner  # noqa: E402
from tests.emulator.recording import LEDGER, leaves, paths  # noqa: E402

from . import copy_kernel  # noqa: E402


def argument(tensor: torch.Tensor):
    return from_dlpack(device(tensor), assumed_align=16).mark_layout_dynamic(leading_dim=1)


def matrices(rows: int, columns: int, stride: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.arange(float(rows * stride)).view(rows, stride)[:, :columns]
    return x, torch.full((rows, columns), torch.nan)


@pytest.fixture(scope="module")
def doubled():
    x, y = matrices(8, 32, 32)
    with recording():
        return cute.compile(copy_kernel.double, argument(x), argument(y))


@pytest.mark.parametrize("rows, columns, stride", [(8, 32, 32), (20, 44, 48), (1, 4, 8)])
def test_dynamic_shapes_reach_the_tensor_map(doubled, rows, columns, stride):
    x, y = matrices(rows, columns, stride)
    report = run(lambda: doubled(argument(x), argument(y)), (x, y))
    assert torch.equal(y, 2 * x)
    assert report.warnings == []
    assert report.counts["copies"] == 3 * -(-rows // 8) * -(-columns // 32)
    result = [m for m in LEDGER.maps.values() if m.address == x.data_ptr()][-1]
    assert result.dtype == np.dtype("f4")
    assert (result.box, result.swizzle) == ((32, 8), 0)
    assert result.extents == (columns, rows)
    assert rows == 1 or result.strides == (4, 4 * stride)


def test_memory_that_is_not_given_is_a_fault(doubled):
    x, y = matrices(8, 32, 32)
    with pytest.raises(EmulatorError, match="outside every tensor"):
        run(lambda: doubled(argument(x), argument(y)), (x,))


def test_memory_is_restored_before_each_schedule(doubled):
    """In place: each schedule must start from the values of the call."""
    x, _ = matrices(8, 32, 32)
    before = x.clone()
    run(lambda: doubled(argument(x), argument(x)), (x,))
    assert torch.equal(x, 2 * before)


def test_results_that_depend_on_the_schedule_are_an_error(doubled):
    x, y = matrices(8, 32, 32)
    calls = []

    def launch() -> None:
        calls.append(len(calls))
        doubled(argument(x), argument(y))
        y[0, 0] = calls[-1]

    with pytest.raises(EmulatorError, match="schedule 'random' gives other results than 'lazy'"):
        run(launch, (x, y))
    assert calls == [0, 1]


def test_a_tensor_that_tma_cannot_take_is_an_error(doubled):
    x, y = matrices(8, 30, 30)
    with pytest.raises(EmulatorError, match="a stride is no multiple of 16 bytes"):
        run(lambda: doubled(argument(x), argument(y)), (x, y))


def test_a_fault_of_the_host_code_is_raised(doubled):
    def launch() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(launch, ())


def test_kernels_are_translated_once(doubled):
    x, y = matrices(8, 32, 32)
    kernels = runner.Kernels()
    for _ in range(2):
        run(lambda: doubled(argument(x), argument(y)), (x, y), kernels=kernels)
    assert len(kernels.known) == 1


def test_recording_leaves_nothing_behind():
    from cutlass.cute.nvgpu import cpasync

    before = cute.compile, cpasync.make_tiled_tma_atom
    with recording():
        inside = cute.compile, cpasync.make_tiled_tma_atom
        with recording():
            assert cute.compile is inside[0]
        assert cute.compile is inside[0]
    assert (cute.compile, cpasync.make_tiled_tma_atom) == before
    assert all(a is not b for a, b in zip(before, inside))


def test_paths_of_leaves():
    assert leaves((1, (2, (3,)))) == [1, 2, 3]
    assert paths((1, (2, (3,)))) == [(0,), (1, 0), (1, 1, 0)]
