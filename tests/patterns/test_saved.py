"""Copies for the backward of what only the caller may change: eager saves nothing of it."""

import pytest
import torch
import torch.nn.functional as F
from torch._inductor.utils import run_and_get_code

import gdpa_inductor
from tests._recorder import Recorder
from tests.patterns.effects import H, M, N, drawn, heads

OF_THE_CALLER = {
    "a frozen bias": (lambda s, c: F.silu(s + c), torch.randn(H, N, M), True, 1),
    "in inference": (lambda s, c: F.silu(s + c), torch.randn(H, N, M), False, 0),
    "a mask that eager saves": (lambda s, c: F.silu(s) * c, torch.rand(N, M), True, 0),
    "a parameter": (
        lambda s, c: F.silu(s + c),
        torch.nn.Parameter(torch.randn(N, M), requires_grad=False),
        True,
        1,
    ),
    "a bias that trains": (lambda s, c: F.silu(s + c), drawn(N, M), True, 1),
    "a bias that is made": (lambda s, c: F.silu(s + c * 2.0), drawn(N, M), True, 0),
}


@pytest.mark.parametrize("name", OF_THE_CALLER)
def test_copies_of_what_the_caller_holds(name):
    weight, operand, training, copies = OF_THE_CALLER[name]

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.c = operand

        def forward(self, q, k, v):
            return weight(q @ k.mT, self.c) @ v

    recorder = Recorder()
    with torch.set_grad_enabled(training):
        torch.compile(Layer(), backend=recorder, fullgraph=True)(*heads())
    (graph,) = recorder.graphs
    assert len(graph.matches) == 1 and graph.calls_after["kept"] == copies, graph.after


def test_an_export_whose_query_and_key_are_cut_from_their_history():
    """Eager keeps no value for the backward; the op would, and the caller may change it."""

    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return F.silu(q.long().double() @ k.long().double().mT) @ v

    operands = tuple(heads(torch.float64))
    program, report = gdpa_inductor.rewrite(torch.export.export(Layer(), operands), profit=False)
    assert len(report.matches) == 1 and not report.rejections
    copies = [n for n in program.graph.nodes if "kept" in str(n.target)]
    assert len(copies) == 1


class Autocast(torch.nn.Module):
    """Its region lies in a body of the exported graph."""

    def forward(self, q, k, v, lens):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            weights = F.silu(q @ k.mT) * (torch.arange(M) < lens)
            return weights @ v


class Detached(torch.nn.Module):
    def forward(self, q, k, v, lens):
        bias = lens.to(q.dtype, copy=True)
        return F.silu(q.detach() @ k.detach().mT + bias) @ v


@pytest.mark.parametrize(("model", "copies"), [(Autocast(), 1), (Detached(), 3)])
def test_what_exports_keep_and_eager_does_not(model, copies):
    """The lengths of the first; query, key and value of the second, where only the value learns."""
    operands = (*heads(torch.bfloat16), torch.tensor(2))
    program, report = gdpa_inductor.rewrite(torch.export.export(model, operands), profit=False)
    assert len(report.matches) == 1 and not report.rejections
    graphs = [g.graph for g in program.graph_module.modules() if hasattr(g, "graph")]
    copied = [n for graph in graphs for n in graph.nodes if "kept" in str(n.target)]
    assert len(copied) == copies, program


def test_a_query_that_learns_only_later():
    """Its captured value has a gradient by then, so eager seemed to keep the key for it."""

    def attention(q, k, v, bias):
        first = q * 0.5
        out = F.silu(first @ k.mT + bias) @ v
        first.add_(out)
        return out, first

    q, k, v = (torch.randn(2, 2, N, 4) for _ in range(3))
    bias = torch.randn(N, N, requires_grad=True)
    recorder = Recorder()
    compiled = torch.compile(attention, backend=recorder, fullgraph=True)
    (expected,) = torch.autograd.grad(attention(q, k, v, bias)[0].sum(), bias)
    out, _ = compiled(q, k, v, bias)
    k.zero_()
    (actual,) = torch.autograd.grad(out.sum(), bias)
    assert recorder.matches
    torch.testing.assert_close(actual, expected)


def autocast_attention(q, k, v):
    with torch.autocast("cpu", torch.bfloat16):
        return torch.relu(q @ k.mT) @ v


def test_a_copy_is_taken_by_the_cast():
    """Autograd saves what autocast casts, and the op must save no less; one pass makes it."""
    recorder = Recorder()
    torch.compile(autocast_attention, backend=recorder, fullgraph=True)(*heads())
    (graph,) = recorder.graphs
    assert graph.calls_after["kept"] == 3 and not graph.calls_after["_to_copy"], graph.after


def test_a_copy_is_generated_code():
    operands = [x.requires_grad_() for x in heads()]
    wanted = torch.autograd.grad(autocast_attention(*operands).sum(), operands)
    function = torch.compile(
        autocast_attention, backend=gdpa_inductor.gdpa_backend, options={"gdpa.profit": False}
    )

    def step():
        loss = function(*operands).sum()
        for x in operands:
            x.data.neg_()
        actual = torch.autograd.grad(loss, operands)
        for x in operands:
            x.data.neg_()
        return actual

    actual, codes = run_and_get_code(step)
    assert not any("gdpa.kept.default" in line for code in codes for line in calls_in(code))
    for a, b in zip(actual, wanted):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.02 * b.abs().max().item())


def calls_in(code: str) -> list[str]:
    return [line for line in code.splitlines() if "torch.ops." in line and "#" not in line]
