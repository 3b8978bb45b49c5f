"""The fuzzer of the kernels, on a CPU; tests/gpu/test_fuzz.py runs it on a GPU."""

import re

from tests.fuzz.grammar import generate
from tests.fuzz.kernels import grown, jobs, run
from tests.fuzz.runner import RIGHT


def test_a_program_on_the_cpu():
    (job,) = jobs(0, 4, ["auto"], "cpu")[:1]
    _, outcome, counts = run(job)
    assert outcome.kind == RIGHT and counts["lowered_cpu"], outcome.detail


def test_a_program_has_its_sizes_and_its_device():
    for job in jobs(0, 30, ["auto"], "cuda"):
        program, before = grown(generate(job.seed), "cuda"), generate(job.seed)
        assert program.specs == before.specs and len(program.sizes) == len(before.sizes)
        head_dim = re.search(r"^ +d = (\d+)$", program.source, re.M)
        assert head_dim is None or int(head_dim[1]) == program.sizes[0]["d"]
        assert "torch.arange(" not in program.source


def test_kernels_take_turns():
    found = jobs(0, 40, ["triton", "chunked"], "cuda")
    assert [job.kernel for job in found[:3]] == ["triton", "chunked", "triton"]
