"""The Hopper forward over keys and values in pages, on the emulator."""

import dataclasses
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute.plan import plan_of
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config
from gdpa_inductor.operands import gathered
from gdpa_inductor.rejection import GDPAError

from . import test_cute_forward
from .cute_cases import Case, check_output
from .cute_paged_cases import CASES, LENGTH, Paged, check_missing_page
from .marks import slow_but
from .test_cute_row_sums import SIGMOID, check_sums
from .test_cute_row_sums import forward as with_sums

NONE = 1 << 20  # beyond all pages
OFTEN = ("16 rows", "64 rows", "256 rows", "jagged queries, 64-bit table")


def forward(case: Case, o: Any, schedules: Any = ("lazy",)) -> torch.Tensor:
    return test_cute_forward.forward(case, o, schedules, Sm90Config)


@pytest.mark.parametrize("case", slow_but(OFTEN, CASES))
def test_pages(case: Paged):
    o = case.operands()
    check_output(forward(case, o, ("lazy", "random")), gathered(o))


@pytest.mark.parametrize("page", [16, 128])
@pytest.mark.parametrize("missing", [-1, NONE])
def test_a_page_that_is_not_there_is_nan(page: int, missing: int):
    check_missing_page(forward, page, missing)


def test_a_page_that_no_query_meets_may_be_missing():
    case = Paged("unmet", LENGTH, d=64, page=64, m=70, n=384, b=2)
    o = case.operands()
    o.aux[0].fill_(100)
    whole = forward(case, o)
    o.page_table[:, -1] = -1
    assert torch.equal(forward(case, o), whole)
    assert whole.isfinite().all()


@pytest.mark.parametrize("page", [16, 128])
def test_row_sums(page: int, monkeypatch: pytest.MonkeyPatch):
    case = Paged("sums", SIGMOID, d=64, page=page, m=70, n=384, b=2)
    o = case.operands()
    out, sums = with_sums(case, o, monkeypatch)
    check_output(out, gathered(o))
    check_sums(sums, o)
    o.page_table[1, 2] = NONE
    out, missing = with_sums(case, o, monkeypatch)
    assert out[1].isnan().all() and missing[1].isnan().all()
    assert torch.equal(missing[0], sums[0])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_the_kernel_reads_tables_of_32_and_64_bits(dtype: torch.dtype):
    o = Paged("tables", m=70, n=304, table=dtype).operands()
    plan = plan_of(o, True, True, Sm90Config)
    wide = dtype == torch.int64
    assert plan.plain == (dtype in (torch.int32, torch.int64))
    assert plan.readable(o).page_table.dtype == (torch.int64 if wide else torch.int32)
    assert torch.equal(plan.readable(o).page_table.long(), o.page_table.long())


def test_a_table_with_gaps_is_copied():
    o = Paged("gaps", m=70, n=304, b=2).operands()
    gaps = dataclasses.replace(o, page_table=o.page_table.T.contiguous().T)
    plan = plan_of(gaps, True, True, Sm90Config)
    assert not plan.plain
    assert plan.readable(gaps).page_table.is_contiguous()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"page": 24, "n": 240}, "pages of 24 rows"),
        ({"page": 4, "n": 240}, "pages of 4 rows"),
        ({"page": 192, "n": 384}, "pages of 192 rows"),
    ],
)
def test_pages_that_are_refused(change: dict[str, Any], reason: str):
    o = dataclasses.replace(Paged("refused", m=70, n=304), **change).operands()
    with pytest.raises(GDPAError, match=reason):
        plan_of(o, True, True, Sm90Config)
