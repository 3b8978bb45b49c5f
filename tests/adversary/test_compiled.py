"""Programs at sizes of kernels, on a CPU; tests/gpu/test_adversary.py runs them on a GPU."""

import pytest

from . import compiled
from .compiled import run_compiled
from .generator import generate
from .program import Program


def grown(seeds: range) -> list[Program]:
    return [generate(seed, "kernels") for seed in seeds]


def small(jagged: bool) -> int:
    """The seed of a program that is quick on a CPU."""
    programs = (p for p in grown(range(200)) if (p.family == "jagged") is jagged and not p.varies)
    return min(programs, key=_size).seed


def _size(program: Program) -> int:
    (z,) = program.sizes
    return max(z["n"], 100) * max(z["m"], 100) * z["b"]


@pytest.mark.parametrize("jagged", [False, True])
def test_a_program_on_the_cpu(jagged):
    outcome = run_compiled(small(jagged), kernels=("auto",))
    assert outcome.status == "right" and outcome.lowered["lowered_cpu"], outcome.fault


def test_programs_are_plain_and_have_precisions_of_kernels():
    programs = grown(range(60))
    assert not any(program.hostilities for program in programs)
    assert {program.dtype for program in programs} == {"bfloat16", "float32"}
    assert max(sizes["d"] for program in programs for sizes in program.sizes) > 100


def test_jagged_programs_have_lengths_of_kernels():
    programs = [p for p in grown(range(800)) if p.family == "jagged"]
    batches = [(batch, z["n"]) for p in programs for batch, z in zip(p.lengths, p.sizes)]
    assert any(0 in batch for batch, _ in batches) and any(1 in batch for batch, _ in batches)
    assert any(max(batch) < 48 for batch, _ in batches)
    assert any(max(batch) > 512 for batch, _ in batches)
    cut = [p for p in programs if any(max(b) > z["n"] for b, z in zip(p.lengths, p.sizes))]
    assert cut and all("padding gdpa" in p.spelling for p in cut)
    several = [p for p in programs if p.varies]
    assert any(len({len(batch) for batch in p.lengths}) > 1 for p in several)
    assert any(len({sum(batch) for batch in p.lengths}) > 1 for p in several)
    assert any(len({z["n"] for z in p.sizes}) > 1 for p in several)


def test_kernels_take_turns(monkeypatch):
    monkeypatch.setattr(compiled, "compiled", lambda program, judge, kernel: kernel)
    assert [compiled.run_compiled(s, kernels=("one", "other")) for s in (0, 1)] == ["one", "other"]
