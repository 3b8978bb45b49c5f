"""The fuzzer of the kernels, on a CPU; tests/gpu/test_fuzz.py runs it on a GPU."""

import re

import pytest

from tests.fuzz.growth import dense, jagged
from tests.fuzz.kernels import FAMILIES, jobs, run
from tests.fuzz.runner import RIGHT

SMALL = {"dense": 0, "jagged": 12}  # a program that is quick on a CPU


@pytest.mark.parametrize("family", FAMILIES)
def test_a_program_on_the_cpu(family):
    (job,) = jobs(SMALL[family], 4, ["auto"], "cpu", family)[:1]
    _, outcome, counts = run(job)
    assert outcome.kind == RIGHT and counts["lowered_cpu"], outcome.detail


def test_a_dense_program_has_its_sizes_and_its_device():
    for job in jobs(0, 30, ["auto"], "cuda", "dense"):
        program = dense(job.seed, "cuda")
        head_dim = re.search(r"^ +d = (\d+)$", program.source, re.M)
        assert head_dim is None or int(head_dim[1]) == program.sizes[0]["d"]
        assert "torch.arange(" not in program.source


def test_jagged_programs_have_lengths_of_kernels():
    programs = [jagged(seed, "cuda") for seed in range(200)]
    batches = [(batch, p.sizes[i]["n"]) for p in programs for i, batch in enumerate(p.lengths)]
    assert any(0 in batch for batch, _ in batches) and any(1 in batch for batch, _ in batches)
    assert any(max(batch) < 48 for batch, _ in batches)
    assert any(max(batch) > 512 for batch, _ in batches)
    cut = [p for p in programs if any(max(b) > s["n"] for b, s in zip(p.lengths, p.sizes))]
    assert cut and all("padding:gdpa" in p.features for p in cut)
    several = [p for p in programs if len(p.lengths) > 1]
    assert any(len({len(batch) for batch in p.lengths}) > 1 for p in several)
    assert any(len({sum(batch) for batch in p.lengths}) > 1 for p in several)
    assert any(len({s["n"] for s in p.sizes}) > 1 for p in several)
    assert not any("torch.arange(" in p.source for p in programs)


def test_kernels_take_turns():
    results = jobs(0, 40, ["triton", "chunked"], "cuda", "dense")
    assert [job.kernel for job in results[:3]] == ["triton", "chunked", "triton"]
