"""The jagged family of the fuzzer: the first seeds, and that a label can be seen to be wrong."""

from dataclasses import replace

import pytest

from tests.fuzz import runner
from tests.fuzz.__main__ import reproducer
from tests.fuzz.draft import FUSABLE, REFUSABLE
from tests.fuzz.jagged import generate_jagged

SEEDS, CHUNK = 60, 10


@pytest.mark.usefixtures("verdicts", "uncached_fakes")
@pytest.mark.parametrize("start", range(0, SEEDS, CHUNK))
def test_programs(start):
    outcomes = [runner.run_jagged(seed) for seed in range(start, start + CHUNK)]
    failed = [reproducer(outcome) for outcome in outcomes if outcome.failed]
    assert not failed, "\n\n".join(failed)
    assert sum(outcome.kind == runner.MISSED for outcome in outcomes) <= 1


def test_every_part_of_the_grammar_is_drawn():
    programs = [generate_jagged(seed) for seed in range(600)]
    assert {program.label for program in programs} == {FUSABLE, REFUSABLE}
    assert {program.sides for program in programs} == {"qk", "q", "k", ""}
    assert any(0 in batch for program in programs for batch in program.lengths)
    seen = {feature.split(":")[0] for program in programs for feature in program.features}
    assert seen >= {"kind", "heads", "bias", "mask", "two offsets", "changed", "padded output"}


def test_a_side_too_many_is_seen():
    """The same program under a label that forbids what is done."""
    program = next(p for p in map(generate_jagged, range(99)) if p.sides == "qk" and p.training)
    outcome = runner.run(replace(program, sides="q"))
    assert outcome.kind == runner.FALSE_MATCH and outcome.failed
