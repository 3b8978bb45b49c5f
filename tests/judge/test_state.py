"""The judge leaves nothing behind, also where it is cut short."""

import functools
import random

import pytest
import torch
import torch.nn.functional as F

from gdpa_inductor import gdpa_backend, judge
from gdpa_inductor.graphs import copy_graph
from gdpa_inductor.judge import interpret, proof
from gdpa_inductor.options import Options
from gdpa_inductor.patterns import rewrite_graph
from gdpa_inductor.rejection import Code
from tests._recorder import Recorder

ALONE = Options(profit=False, judge=False)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.norm = torch.nn.BatchNorm1d(6)
        self.register_buffer("count", torch.zeros(3))

    def forward(self, q, k, v):
        self.count.add_(1)
        q = self.norm(self.linear(q))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            s = q @ k.mT
        with torch.no_grad():
            mask = torch.rand(6, 6) < 0.5
        return torch.where(mask, F.silu(s.float()), 0.0) @ v


def state() -> tuple:
    context = torch._guards.TracingContext.try_get()
    shapes = context.fake_mode.shape_env if context is not None else None
    symbols = (len(shapes.guards), len(getattr(shapes, "backed_var_to_val", ())))
    return (
        symbols,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
        torch.get_rng_state().tolist(),
        random.getstate(),
        torch._C._functorch.get_interpreter_stack(),
        torch._C._len_torch_dispatch_stack(),
        torch._C._get_mkldnn_enabled(),
        torch.is_anomaly_enabled(),
        torch.is_anomaly_check_nan_enabled(),
    )


def contents(model: torch.nn.Module) -> list[torch.Tensor]:
    tensors = [*model.parameters(), *model.buffers()]
    return [x.detach().clone() for x in tensors] + [torch.tensor(x.grad is None) for x in tensors]


@pytest.mark.parametrize("cut", ["never", "at a node", "in a proof"])
def test_nothing_is_left_behind(cut: str, monkeypatch: pytest.MonkeyPatch):
    model = Model()
    seen = []

    def fail(*_: object) -> None:
        raise ValueError("cut short")

    if cut == "in a proof":
        monkeypatch.setattr(proof.Proof, "decide", fail)
    if cut == "at a node":
        inner = interpret.Bodies._run

        def run(self, node, side, other=None):
            return fail() if "silu" in node.name else inner(self, node, side, other)

        monkeypatch.setattr(interpret.Bodies, "_run", run)

    def backend(gm, _):
        before = copy_graph(gm)
        assert rewrite_graph(gm, options=ALONE).matches
        before_state, parameters = state(), contents(model)
        seen.append(judge.judged(before, gm))
        assert state() == before_state
        assert all(map(torch.equal, contents(model), parameters))
        return before.forward

    inputs = [torch.randn(2, 6, 4, requires_grad=True) for _ in range(3)]
    torch.compile(model, backend=backend, dynamic=True)(*inputs)
    (verdict,) = seen
    assert (verdict is None) == (cut == "never"), verdict
    assert cut == "never" or (not verdict.invalid and "cut short" in verdict.reason)


def test_a_rejected_rewrite_leaves_the_graph_and_says_so(monkeypatch: pytest.MonkeyPatch):
    """The graph that came is the graph that stays, node for node, and Dynamo can go on with it."""
    wrong = judge.Verdict("it computes something else")
    monkeypatch.setattr("gdpa_inductor.judge.validate", lambda before, after, claims: wrong)
    inputs = [torch.randn(2, 3, 6, 4) for _ in range(3)]
    recorder = Recorder(options=Options(profit=False))
    function = lambda q, k, v: F.silu(q @ k.mT) @ v
    out = torch.compile(function, backend=recorder)(*inputs)
    assert torch.equal(out, function(*inputs))
    (refusal,) = recorder.rejections
    assert refusal.code is Code.INVALID_REWRITE and refusal.reason == wrong.reason
    assert not recorder.matches and recorder.untouched
    torch._dynamo.reset()
    backend = functools.partial(gdpa_backend, options={"gdpa.profit": False})
    compiled = torch.compile(function, backend=backend)
    torch.testing.assert_close(compiled(*inputs), function(*inputs))


def test_anomaly_detection_does_not_see_what_is_tried():
    """It is on in RecBole. The judge tries NaN and infinities, whose gradients are NaN."""
    recorder = Recorder(options=Options(profit=False))
    function = lambda q, k, v: torch.tanh(q @ k.mT) @ v
    inputs = [torch.randn(2, 3, 6, 4, requires_grad=True) for _ in range(3)]
    with torch.autograd.detect_anomaly(check_nan=True):
        torch.compile(function, backend=recorder)(*inputs).sum().backward()
        assert torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
    assert recorder.matches, recorder.why()


def test_only_the_rewrite_at_fault_is_dropped(monkeypatch: pytest.MonkeyPatch):
    real = judge.validate
    blamed = []

    def once(before, after, claims):
        nodes = [n for n in after.graph.nodes if n.target is torch.ops.gdpa.attention.default]
        if len(nodes) == 2:
            blamed.append(nodes[0].name)
            return judge.Verdict("the first is wrong", nodes[0].name)
        return real(before, after, claims)

    monkeypatch.setattr("gdpa_inductor.judge.validate", once)

    def two(q, k, v):
        return F.silu(q @ k.mT) @ v + F.relu(k @ q.mT) @ v

    inputs = [torch.randn(2, 3, 6, 4) for _ in range(3)]
    recorder = Recorder(options=Options(profit=False))
    out = torch.compile(two, backend=recorder)(*inputs)
    torch.testing.assert_close(out, two(*inputs))
    assert len(blamed) == 1 and len(recorder.matches) == 1
    assert [r.code for r in recorder.rejections] == [Code.INVALID_REWRITE]


def test_a_warm_process_does_not_pay(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gdpa_inductor._compat.inductor.cache_folder", lambda: str(tmp_path))
    runs = []
    real = judge.judged

    def counted(before, after, claims=None):
        runs.append(1)
        return real(before, after, claims)

    monkeypatch.setattr("gdpa_inductor.judge.judged", counted)
    for scale, expected in ((0.5, 1), (0.5, 1), (0.25, 2)):
        torch._dynamo.reset()
        function = lambda q, k, v, c=scale: F.silu(q @ k.mT * c) @ v
        recorder = Recorder(options=Options(profit=False))
        inputs = [torch.randn(2, 3, 6, 4) for _ in range(3)]
        torch.compile(function, backend=recorder)(*inputs)
        assert recorder.matches and len(runs) == expected
