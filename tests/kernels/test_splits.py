"""Into how many shares the keys are parted: by the sizes at capture, within a bound of memory."""

import re

import pytest
import torch

from gdpa_inductor.kernels.triton import splits

from .cases import SILU, Case
from .split_cases import CASES
from .test_cubins import compiled, local_bytes

PROCESSORS, ROW = 132, 4 * 128  # bytes of partial sums


@pytest.mark.parametrize(
    ("ctas", "keys", "count"),
    [
        (4 * 8, 4096, 8),
        (4, 4096, 16),
        (4, 1024, 4),
        (4, 512, 1),  # the second kernel would take as long
        (4 * 256, 4096, 1),  # all multiprocessors have work
        (4 * 64, 4096, 1),
        (1, 1 << 20, splits.MOST),
    ],
)
def test_idle_multiprocessors_get_shares(ctas: int, keys: int, count: int):
    assert splits.shares(ctas, keys, PROCESSORS, ROW * ctas) == count


def test_partial_sums_are_bounded():
    partial = 20 << 20
    assert splits.shares(4, 1 << 20, PROCESSORS, partial) * partial <= splits.MOST_BYTES
    assert splits.shares(4, 1 << 20, PROCESSORS, splits.MOST_BYTES) == 1


def count_of(case: Case, dynamic: bool = False) -> int:
    """How many shares the forward of a case has."""
    kernels = case.sources(dynamic=dynamic or case.dynamic).values()
    forward = next(kernel for kernel in kernels if "arg_Q" in kernel and "OUT" not in kernel)
    return int(re.search(r"SPLITS : tl.constexpr = (\d+)", forward)[1])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_cases_of_the_interpreter_have_shares(case: Case):
    assert count_of(case) > 1


def test_many_rows_have_none():
    assert count_of(Case("rows", SILU, b=1, h=1, m=129, n=4096, needs="")) == 1
    assert count_of(Case("rows", SILU, b=1, h=1, m=128, n=4096, needs=""), dynamic=True) > 1


def test_nothing_of_the_lengths_is_read_on_the_host():
    """One launch of each kernel, of sizes that shapes give: a CUDA graph can hold them."""
    case = next(case for case in CASES if case.name == "split_keys_dynamic")
    source = case.source(case.tensors())
    assert ".item(" not in source and source.count(".run(") == 2


@pytest.mark.parametrize("rows", [1, 16, 64, 128])
def test_shares_compile_without_spills(rows: int, tmp_path):
    case = Case("few", "silu(mul(s,0.088))", b=8, m=rows, n=4096, d=128, dv=128, h=4, needs="")
    ((name, text),) = case.templates(torch.bfloat16, choice=0).items()
    binary = compiled(name, text, 90, tmp_path)
    assert "SPLITS : tl.constexpr = 8" in text
    assert local_bytes(binary.asm["cubin"], tmp_path) == 0
