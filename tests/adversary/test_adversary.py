"""The adversary on a fixed range of seeds, and what its generator promises."""

import dataclasses
import os
import signal
from collections import Counter
from functools import cache

import pytest
import torch

from . import judging, runner
from .generator import generate
from .hostilities import HOSTILITIES
from .products import FAMILIES, OTHERS
from .program import FLOATING, Operand, Program, make_operands
from .runner import COUNTED, Outcome, read, run_program, run_range, run_seed
from .table import SHARE, passed, report, share

CORPUS = range(2000)
JUDGED, FURTHER = range(204), range(204, 480)  # the slow tests run the second
# Judged: a rewrite that the judge refuses fails a test. In chunks that fail on their own.
CHUNKS = [
    pytest.param(seeds[i : i + 12], marks=marks)
    for seeds, marks in ((JUDGED, ()), (FURTHER, pytest.mark.slow))
    for i in range(0, len(seeds), 12)
]


@cache
def corpus() -> list[Program]:
    return [generate(seed) for seed in CORPUS]


@pytest.mark.usefixtures("verdicts")
@pytest.mark.parametrize("seeds", CHUNKS, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_nothing_is_wrong(seeds):
    """Right, or missed with a reason; the share of misses over so few is left to long runs."""
    outcomes = [run_seed(seed, "on") for seed in seeds]
    faults = [f"{x.fault}\n{generate(x.seed)}" for x in outcomes if x.status in runner.WRONG]
    assert not faults, "\n".join(faults)
    assert sum(x.missed for x in outcomes) <= 1, report(outcomes)


def test_every_hostility_is_generated():
    actual = {name for program in corpus() for name in program.hostilities}
    assert actual == {h.name for h in HOSTILITIES}


def test_two_fifths_are_exact():
    exact = Counter(program.label for program in corpus())["exact"]
    assert exact >= 0.4 * len(corpus())


def test_every_hostility_is_frequent():
    """In 20,000 programs each is drawn 250 times; here in proportion, less what chance takes."""
    seeds = 3 * len(CORPUS)
    actual = Counter(name for seed in range(seeds) for name in generate(seed).hostilities)
    rare = {name: count for name, count in actual.items() if count < 0.75 * 250 * seeds / 20_000}
    assert not rare


def test_every_part_of_the_grammar_is_drawn():
    """Plain programs: all families, notes of every kind of step, and varying sizes."""
    programs = [program for program in corpus() if not program.hostilities]
    assert {program.family for program in programs} == {*FAMILIES, *OTHERS, "jagged"}
    notes = {note for program in programs for note in program.spelling.split("; ")}
    seen = {note.split(" ")[0] for note in notes}
    assert seen >= {
        "first",
        "second",
        "operand",
        "touch",
        "activation",
        "shared",
        "repeated",
        "tail",
    }
    assert notes >= {"{s} * {bool}", "{a} - {s}", "{s} / {size}", "{s}.clone()", "two regions"}
    assert any(program.varies and not program.lengths for program in programs)
    jagged = [program for program in programs if program.family == "jagged"]
    assert {program.sides for program in jagged} == {"qk", "q", "k", ""}
    assert any(0 in batch for program in jagged for batch in program.lengths)


def test_labels_do_not_depend_on_the_matcher():
    """A program of any label runs in eager, forward and backward."""
    for program in corpus()[1000:1060]:
        if not program.hostilities and "fbgemm_gpu" not in program.source:
            assert judging.reference(program)["output 0"] is not None


def test_an_exact_program_has_harmless_hostilities_only():
    harmless = {h.name: h.exact for h in HOSTILITIES}
    for program in corpus():
        if program.label == "exact":
            assert all(harmless[name] for name in program.hostilities)


def test_a_seed_is_one_program():
    """Text and values do not depend on what was generated before."""
    fresh = generate(1234)
    assert str(fresh) == str(corpus()[1234])
    one, other = (make_operands(p, FLOATING[p.dtype]) for p in (fresh, corpus()[1234]))
    assert all(
        x.equal(y) or x.isnan().equal(y.isnan()) for x, y in zip(one.values(), other.values())
    )


def test_the_text_of_a_seed_does_not_change(request):
    """Python's hashing is another one in every process; a seed must not follow it."""
    import hashlib
    import subprocess
    import sys

    code = (
        "import hashlib; from tests.adversary.generator import generate;"
        "print(hashlib.sha256(''.join(str(generate(s)) for s in range(200)).encode()).hexdigest())"
    )
    digest = hashlib.sha256("".join(map(str, corpus()[:200])).encode()).hexdigest()
    actual = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=request.config.rootpath,
        env={"PYTHONHASHSEED": "7", "PATH": ""}, check=True,
    )  # fmt: skip
    assert actual.stdout.strip() == digest


WRONG = """
import torch

def f(q, k, v):
    return torch.relu(q @ k.mT) @ v
"""


def _program(source: str) -> Program:
    operands = [Operand(name, ("1", "2", "4", "4"), grad=True) for name in "qkv"]
    return Program(0, source, operands, "float64", "exact", (), "heads")


@pytest.mark.parametrize("n", [3, 5])
def test_padding_in_fp64_is_fbgemm_s(n):
    """What stands for FBGEMM where its programs run in fp64: values, gradients, rows cut off."""
    pytest.importorskip("fbgemm_gpu")
    values, offsets = torch.randn(9, 2), [torch.tensor([0, 4, 4, 8])]
    actual = []
    for pad, unpad in (
        (torch.ops.fbgemm.jagged_to_padded_dense, torch.ops.fbgemm.dense_to_jagged),
        (judging._padded, judging._unpadded),
    ):
        leaf = values.clone().requires_grad_()
        padded = pad(leaf, offsets, [n], 2.0)
        out = unpad(padded * padded, offsets, 9)[0]
        actual.append((padded, out, *torch.autograd.grad(out.sum(), leaf)))
    for theirs, ours in zip(*actual):
        assert torch.equal(theirs, ours)


def test_a_wrong_rewrite_is_seen(monkeypatch):
    """The judge of these programs is itself judged: a rewritten graph that loses a factor."""
    from tests.adversary import capture

    honest = capture.rewrite_graph

    def lying(gm, options):
        result = honest(gm, options=options)
        (output,) = [n for n in gm.graph.nodes if n.op == "output"]
        with gm.graph.inserting_before(output):
            doubled = gm.graph.call_method("mul", (output.args[0][0], 1.001))
        output.args = ((doubled,),)
        return result

    assert run_program(_program(WRONG)).status == "right"
    monkeypatch.setattr(capture, "rewrite_graph", lying)
    assert run_program(_program(WRONG)).status == "wrong"


def test_a_lost_gradient_is_seen(monkeypatch):
    """None where eager has a gradient."""
    from tests.adversary import capture

    def lying(gm, options):
        result = honest(gm, options=options)
        (query,) = [n for n in gm.graph.nodes if n.op == "placeholder" and "q" in n.name]
        with gm.graph.inserting_after(query):
            cut = gm.graph.call_method("detach", (query,))
        query.replace_all_uses_with(cut, delete_user_cb=lambda user: user is not cut)
        return result

    honest = capture.rewrite_graph
    monkeypatch.setattr(capture, "rewrite_graph", lying)
    outcome = run_program(_program(WRONG))
    assert outcome.status == "wrong" and "gradient of q" in outcome.fault


def test_a_rewritten_decoy_is_seen():
    outcome = run_program(dataclasses.replace(_program(WRONG), label="decoy"))
    assert outcome.status == "wrong" and "decoy" in outcome.fault


def test_a_side_too_many_is_seen():
    """The same program under a label that forbids what is done."""
    programs = (p for p in corpus() if p.sides == "qk" and "fbgemm_gpu" not in p.source)
    outcome = run_program(dataclasses.replace(next(programs), sides="q"))
    assert outcome.status == "wrong" and "jagged on qk" in outcome.fault


def test_a_missed_region_lowers_the_share():
    missed = run_program(dataclasses.replace(_program(WRONG), regions=2))
    outcomes = [Outcome.of(_program(WRONG), "right")] * 97 + [missed] * 3
    assert missed.status == "right" and share(outcomes) == 0.97 < SHARE
    assert not passed(outcomes) and "exact and not rewritten: 100" in report(outcomes)


def test_a_crash_is_seen(monkeypatch):
    from tests.adversary import capture

    def raising(gm, options):
        raise IndexError("a fault of the pass")

    monkeypatch.setattr(capture, "rewrite_graph", raising)
    outcome = run_program(_program(WRONG))
    assert outcome.status == "crash" and "IndexError" in outcome.fault


def test_a_program_that_eager_refuses_is_not_counted():
    outcome = run_program(_program(WRONG.replace("k.mT", "k[..., :3]")))
    assert outcome.status == "eager" and outcome.status not in COUNTED


def _kills(seed: int, judge: str) -> Outcome:
    if seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return run_seed(seed, judge)


@pytest.mark.slow
def test_a_program_that_kills_its_process_is_named(monkeypatch):
    monkeypatch.setattr(runner, "_patience", lambda one: 30)
    outcomes = run_range([1, 2, 3], "off", 2, None, lambda outcome: None, one=_kills)
    assert {x.seed for x in outcomes} == {1, 2, 3}
    assert [x.seed for x in outcomes if x.status == "crash"] == [1]


def test_a_range_resumes(tmp_path):
    path = tmp_path / "results.jsonl"
    first = run_range([0, 1], "off", 1, path, lambda outcome: None)
    path.write_text(path.read_text() + '{"seed": 2, "label"')  # cut off in the middle of a line
    assert sorted(read(path)) == [0, 1]
    ran: list[Outcome] = []
    again = run_range([0, 1], "off", 1, path, ran.append)
    assert not ran and len(again) == len(first) == 2
    assert "2 programs" in report(again)
