"""Programs of the fuzzer on the kernels: `python -m tests.fuzz.kernels` runs more of them."""

import pytest

from tests.fuzz.__main__ import reproducer
from tests.fuzz.kernels import FAMILIES, KERNELS, Job, jobs, run

pytestmark = pytest.mark.cuda
EACH = 6  # programs for each kernel
FOUND = {
    "a view of a kept tensor, padded on torch 2.11": Job(100184, "chunked", "cuda"),
    "a factor for each row and head, in half tiles": Job(500049, "triton", "cuda", "jagged"),
}


def failure(job: Job) -> str:
    _, outcome, counts = run(job)
    return f"{job} {counts}\n{reproducer(outcome)}" if outcome.failed else ""


SAMPLE = [
    job
    for family in FAMILIES
    for job in jobs(0, 40, list(KERNELS), "cuda", family)[: EACH * len(KERNELS)]
]


@pytest.mark.parametrize("job", SAMPLE, ids=str)
def test_programs(job: Job) -> None:
    assert not failure(job)


@pytest.mark.parametrize("name", FOUND)
def test_programs_that_failed(name: str) -> None:
    assert not failure(FOUND[name])
