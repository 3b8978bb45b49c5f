"""Every row of the jagged table: exact, on the sides that it says, with the notes that it says."""

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F

from gdpa_inductor.report.sections import match_lines
from tests._judge import compare
from tests._recorder import Recorder
from tests.jagged import jagged_operands
from tests.patterns.jagged_output_table import ROWS  # of both tables
from tests.patterns.jagged_table import Row
from tests.patterns.rows import fused

SIZES = {"h": 2, "d": 4, "e": 6, "n": 6, "m": 5, "s": 3}
LENGTHS = [(3, 0, 6, 1), (1, 5, 2)]
# An operand between the products is padded there, as the model has it.
PADDED_BETWEEN = [
    "times_padded_by_other_offsets",
    "a_padded_operand_that_is_looked_up",
    "divided_by_tokens_above_zero",
]


class Mode(NamedTuple):
    """marked: sizes vary from the first call on. Else a second batch is compiled anew, with symbols
    for sizes, which takes three times as long as the first."""

    marked: bool = False
    training: bool = True
    offsets: torch.dtype = torch.int64
    batches: int = len(LENGTHS)


MODES = {
    "static": Mode(batches=1),
    "dynamic": Mode(marked=True),
    "no_grad": Mode(training=False, batches=1),
    "int32": Mode(offsets=torch.int32, batches=1),
}
AT_LENGTH = {
    "static, varied": Mode(),
    "no_grad, varied": Mode(training=False),
    "int32, varied": Mode(offsets=torch.int32),
}


def judge(row: Row, mode: Mode) -> Recorder:
    """Exact for every batch of lengths; what was recorded."""
    recorder = Recorder()
    compiled = torch.compile(row.function, backend=recorder)
    marked = lambda **operands: compiled(**_marked(operands) if mode.marked else operands)
    for lengths in LENGTHS[: mode.batches]:
        operands = jagged_operands(row.specs, lengths, SIZES, offsets=mode.offsets)
        fault = compare(row.function, marked, operands, training=mode.training)
        assert not fault, f"{fault}\n{recorder.graphs[-1].after}"
    assert not any(graph.guards_added for graph in recorder.graphs)
    return recorder


def _marked(operands: dict) -> dict:
    """Leading dims, of tokens and of the batch, are dynamic from the first call on."""
    for value in operands.values():
        if torch.is_tensor(value):
            torch._dynamo.maybe_mark_dynamic(value, 0)
    return operands


@pytest.mark.parametrize(
    "mode",
    [
        *(pytest.param(mode, id=name) for name, mode in MODES.items()),
        *(pytest.param(mode, id=name, marks=pytest.mark.slow) for name, mode in AT_LENGTH.items()),
    ],
)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row(row: Row, mode: Mode, request: pytest.FixtureRequest):
    if mode.marked:
        request.getfixturevalue("uncached_fakes")
    recorder = judge(row, mode)
    assert recorder.matches, recorder.why()
    for match in recorder.matches:
        problem = match.problem
        sides = "q" * problem.jagged_query + "k" * problem.jagged_key
        if not mode.training:  # where all is without gradients, padding without them is no matter
            assert set(row.sides) <= set(sides)
        else:
            assert sides == row.sides, [str(note) for note in match.notes]
            assert {note.code.name for note in match.notes} == set(row.notes)
        assert row.program in str(problem.program)
    if mode.training and mode.offsets == torch.int64 and row.sides == "qk":
        for graph in recorder.graphs:
            padding = [name for name in graph.calls_after if "jagged" in name]
            assert bool(padding) == (row.name in PADDED_BETWEEN), graph.after


def test_the_report_says_what_is_jagged_and_why_a_side_is_not():
    row = next(row for row in ROWS if row.name == "padded_output")
    (match, *_) = judge(row, MODES["static"]).matches
    lines = "\n".join(match_lines(match))
    assert "Q [4, 2, 6, 4]  K [10, 2, 4]  V [10, 2, 6]" in lines
    assert "jagged: 4 sequences, keys up to 6" in lines
    assert "stays padded: UNSUPPORTED/JAGGED_OUTPUT" in lines


def poisoned(q, k, v, offsets):
    """Keys that a mask leaves, sigmoid(0) of padding, and a scale for every token."""
    q, k, v = (torch.ops.gdpa.jagged_to_padded_dense(x, offsets, 8) for x in (q, k, v))
    at = torch.arange(8)
    weight = torch.sigmoid(torch.einsum("bnhd,bmhd->bhnm", q, k)) * (at[:, None] >= at)
    out = torch.einsum("bhnm,bmhe->bnhe", weight, v)
    return torch.ops.gdpa.dense_to_jagged(out, offsets, LENGTH)


LENGTH = 14


def in_bf16(q, k, v, offsets):
    """Products in bf16 under autocast, and what follows in fp32, as models write it."""
    q, k, v = (torch.ops.gdpa.jagged_to_padded_dense(x, offsets, 6) for x in (q, k, v))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = torch.einsum("bnhd,bmhd->bhnm", q, k)
        out = torch.einsum("bhnm,bmhe->bnhe", F.silu(scores), v)
        return torch.ops.gdpa.dense_to_jagged(out.to(q.dtype), offsets, 10)


@pytest.mark.parametrize("training", [True, False])
def test_a_cast_back_under_autocast(training):
    """Outputs and gradients are no further from fp64 than eager's."""
    operands = jagged_operands(SPECS, LENGTHS[0], SIZES, dtype=torch.float32)
    (match,) = fused(in_bf16, operands=operands, training=training).matches
    assert match.problem.jagged_query and match.problem.jagged_key and not match.notes
    assert match.problem.dtype == torch.bfloat16


def test_nothing_leaks_from_neighbours_or_past_the_end():
    """NaN in one sequence, and in rows that belong to none, stays there, in all gradients too."""
    recorder = Recorder()
    compiled = torch.compile(poisoned, backend=recorder, fullgraph=True)
    offsets = torch.tensor([0, 3, 3, 8, 12])  # 12 and 13 belong to no sequence
    clean, dirty = [3, 4, 5, 6, 7], [0, 1, 2, 8, 9, 10, 11, 12, 13]
    leaves = [torch.randn(LENGTH, 2, 4, dtype=torch.float64) for _ in range(3)]
    wanted = None
    for bad in ((), dirty):
        inputs = [x.clone() for x in leaves]
        for x in inputs:
            x[list(bad)] = torch.nan
            x.requires_grad_()
        out = compiled(*inputs, offsets)
        grads = torch.autograd.grad(out[clean].sum(), inputs)
        actual = [out[clean].detach(), *(grad[clean] for grad in grads)]
        wanted = actual if wanted is None else wanted
        assert all(torch.equal(mine, other) for mine, other in zip(actual, wanted))
        assert not out[12:].any()
    (match,) = recorder.matches
    assert match.problem.jagged_query and match.problem.jagged_key


def trained(attend, offsets, rows: int) -> Recorder:
    """Results and gradients are those of eager."""
    recorder, cotangent = Recorder(), torch.randn(rows, 6)
    leaves = [torch.randn(rows, 2, 3, requires_grad=True) for _ in range(3)]
    results = []
    for function in (attend, torch.compile(attend, backend=recorder)):
        out = function(*leaves, torch.tensor(offsets))
        results.append([out, *torch.autograd.grad(out, leaves, cotangent)])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5, equal_nan=True)
    return recorder


@pytest.mark.parametrize("offsets", [(2, 3, 1, 6), (0, 5, 2, 7), (3, 3, 1, 1), (2, 4, 4, 6)])
def test_offsets_that_fbgemm_takes_do_not_raise(offsets):
    """They decrease, or do not begin at 0: empty sequences, rows of nobody, rows of two."""
    pytest.importorskip("fbgemm_gpu", exc_type=ImportError)
    pad, unpad = torch.ops.fbgemm.jagged_to_padded_dense, torch.ops.fbgemm.dense_to_jagged

    def attend(q, k, v, offsets):
        q, k, v = (
            pad(x.flatten(1), [offsets], [4], 0.0).view(-1, 4, 2, 3).transpose(1, 2)
            for x in (q, k, v)
        )
        out = torch.sigmoid(q @ k.mT) @ v
        return unpad(out.transpose(1, 2).flatten(2), [offsets], 8)[0]

    (match,) = trained(attend, offsets, rows=8).matches
    assert match.problem.jagged_query and match.problem.jagged_key


@pytest.mark.parametrize("name", ["query", "key"])
@pytest.mark.parametrize("fill", [float("nan"), float("inf"), -1e30])
def test_zeros_times_padding_that_is_not_finite_are_no_zeros(name, fill):
    """Gradients of rows that pads left out; a key's NaN, times zeros of the value."""
    pytest.importorskip("fbgemm_gpu", exc_type=ImportError)
    pad, unpad = torch.ops.fbgemm.jagged_to_padded_dense, torch.ops.fbgemm.dense_to_jagged

    def attend(q, k, v, offsets):
        fills = [fill if name == own else 0.0 for own in ("query", "key", "value")]
        q, k, v = (
            pad(x.flatten(1), [offsets], [4], own).view(-1, 4, 2, 3).transpose(1, 2)
            for x, own in zip((q, k, v), fills)
        )
        out = F.silu(q @ k.mT) @ v
        return unpad(out.transpose(1, 2).flatten(2), [offsets], 5)[0]

    (match,) = trained(attend, (0, 2, 5), rows=5).matches
    assert not getattr(match.problem, "jagged_" + name)
    assert "JAGGED_FILL" in "\n".join(match_lines(match))


def by_longest(q, k, v, offsets):
    """Padded to the longest sequence of the batch, which is known on the device only."""
    longest = offsets.diff().max().item()
    q, k, v = (torch.ops.gdpa.jagged_to_padded_dense(x, offsets, longest) for x in (q, k, v))
    scores = torch.einsum("bnhd,bmhd->bhnm", q, k)
    at = torch.arange(longest)
    out = torch.einsum("bhnm,bmhe->bnhe", torch.tanh(scores) * (at[:, None] >= at) / longest, v)
    return torch.ops.gdpa.dense_to_jagged(out, offsets, TOTAL)


TOTAL = 10
SPECS = {"q": "l h d", "k": "l h d", "v": "l h e", "offsets": "offsets"}


def test_a_longest_length_that_is_known_at_run_time_only():
    recorder = Recorder()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(by_longest, backend=recorder, fullgraph=True)
        for lengths in ((3, 0, 6, 1), (2, 2, 2, 4), (10, 0, 0, 0)):
            operands = jagged_operands(SPECS, lengths, SIZES)
            assert not compare(by_longest, compiled, operands)
    (graph,) = recorder.graphs
    assert len(graph.matches) == 1 and not graph.guards_added, recorder.why()
    problem = graph.matches[0].problem
    assert problem.jagged_query and problem.jagged_key
    assert not any("jagged" in name for name in graph.calls_after)
