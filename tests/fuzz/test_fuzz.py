"""The fuzzer as a test: the first seeds, and that the fuzzer itself can see a fault."""

from collections import Counter

import pytest
import torch

from tests._recorder import Recorded
from tests.fuzz import runner
from tests.fuzz.__main__ import SHARE, reproducer, share, table
from tests.fuzz.draft import DECOY, FUSABLE, REFUSABLE
from tests.fuzz.grammar import generate

SEEDS, CHUNK = 320, 20


@pytest.mark.usefixtures("verdicts", "uncached_fakes")
@pytest.mark.parametrize("start", range(0, SEEDS, CHUNK))
def test_programs(start):
    """Right, or missed with a reason; the share of misses over so few is left to long runs."""
    outcomes = [runner.run(generate(seed)) for seed in range(start, start + CHUNK)]
    failed = [reproducer(outcome) for outcome in outcomes if outcome.failed]
    assert not failed, "\n\n".join(failed)
    missed = [o for o in outcomes if o.kind == runner.MISSED]
    assert all(outcome.code for outcome in missed)
    assert len(missed) <= 1, table(outcomes)


def test_a_seed_is_one_program():
    assert generate(7) == generate(7)
    assert generate(7).source != generate(8).source


def test_every_part_of_the_grammar_is_drawn():
    programs = [generate(seed) for seed in range(1500)]
    assert {program.label for program in programs} == {FUSABLE, REFUSABLE, DECOY}
    seen = {feature.split(":")[0] for program in programs for feature in program.features}
    wanted = [
        "product",
        "operand",
        "aux",
        "act",
        "mask",
        "scale",
        "bias",
        "reshape",
        "nothing",
        "mixes",
        "shared",
        "gqa",
        "tail",
        "wrap",
    ]
    assert seen >= {*wanted, "escapes", "operand changed", "aux changed", "gradient cut", "dynamic"}
    for family in ("matmul", "mirrored", "einsum", "folded", "grouped", "baddbmm"):
        assert any(f"product:{family}" in program.features for program in programs)


@pytest.mark.parametrize("seed", range(1000, 1060))
def test_labels_do_not_depend_on_the_matcher(seed):
    """A program runs in eager, forward and backward, whatever its label."""
    program = generate(seed)
    with runner.loaded(program) as function:
        operands = runner.operands_of(program, 0)
        assert runner.results(function, operands, training=program.training).outputs


def test_a_wrong_rewrite_is_seen(monkeypatch):
    """A matcher that drops a scale is caught, whichever program it meets."""
    programs = (p for p in map(generate, range(1000)) if p.dtype == "float64")
    program = next(p for p in programs if p.label == FUSABLE and p.training)

    def scaled(recorder, gm, example_inputs):
        recorder.graphs.append(Recorded("", "", Counter(), Counter()))
        return lambda *args: tuple(x * 1.001 for x in gm.forward(*args))

    monkeypatch.setattr(runner.Recorder, "__call__", scaled)
    outcome = runner.run(program)
    assert outcome.kind == runner.WRONG and outcome.failed


def test_a_rewritten_decoy_is_seen(monkeypatch):
    program = next(p for p in map(generate, range(1000)) if p.label == DECOY)

    def claims(recorder, gm, example_inputs):
        recorder.graphs.append(Recorded("", "", Counter(), matches=("a claim",)))
        return gm.forward

    monkeypatch.setattr(runner.Recorder, "__call__", claims)
    outcome = runner.run(program)
    assert outcome.kind == runner.FALSE_MATCH and outcome.failed


def test_a_missed_region_lowers_the_share():
    program = next(p for p in map(generate, range(1000)) if p.label == FUSABLE)
    outcomes = [runner.Outcome(program, runner.RIGHT, matched=1)] * 97
    outcomes += [runner.Outcome(program, runner.MISSED, code="LAYOUT")] * 3
    assert share(outcomes) == 0.97 < SHARE
    assert "LAYOUT" in table(outcomes)
    assert torch.is_tensor(runner.operands_of(program, 0)[next(iter(program.specs))])
