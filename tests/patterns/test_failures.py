"""Errors of this package: the graph, its bodies and the user's results stay as they are."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from gdpa_inductor.patterns import plan as planning
from gdpa_inductor.patterns import rewrite as rewriting
from gdpa_inductor.patterns import selection
from tests._recorder import Recorder
from tests.patterns.effects import heads, run, same

# Errors of ours


def raising(*args, **options):
    raise IndexError("of ours")


def test_an_error_in_one_analysis_leaves_the_region(monkeypatch):
    monkeypatch.setattr(planning, "without_padding", raising)
    _left_alone()


def test_an_error_before_all_analyses_leaves_the_graph(monkeypatch):
    monkeypatch.setattr(rewriting.GraphPadding, "of", raising)
    _left_alone()


def test_a_ban_that_is_not_heeded_ends_the_passes(monkeypatch):
    names = itertools.cycle([("asked",)] * 2 + [("banned",)] * 2)  # of two plans, in each pass
    monkeypatch.setattr(selection.Replacement, "replaced", property(lambda self: next(names)))
    commits = []
    monkeypatch.setattr(rewriting, "_commit", lambda *_: commits.append(1) or raising())
    _left_alone()
    assert len(commits) == 2


@pytest.mark.parametrize("after", [0, 1])
def test_an_error_while_writing_leaves_the_graph(monkeypatch, after):
    commit, calls = rewriting._commit, []

    def second(*args):
        calls.append(args)
        return commit(*args) if len(calls) <= after else raising()

    monkeypatch.setattr(rewriting, "_commit", second)
    _left_alone()


def _left_alone():
    def attention(q, k, v):
        return checkpoint(torch.sin, F.silu(q @ k.mT) @ v, use_reentrant=False) + (
            F.gelu(k @ q.mT) @ q
        )

    recorder = Recorder(lenient=True)
    compiled = torch.compile(attention, backend=recorder, fullgraph=True)
    torch.manual_seed(0)
    operands = heads()
    same(run(compiled, operands), run(attention, operands))
    assert recorder.untouched and not recorder.matches
    assert {r.code.name for r in recorder.rejections} == {"ANALYSIS"}
    assert "of ours" in recorder.why()
