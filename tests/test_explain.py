"""explain: what it finds, and what it says of breaks and skipped frames."""

import re

import pytest
import torch
import torch.nn.functional as F
from expecttest import assert_expected_inline
from torch import nn

import gdpa_inductor
from gdpa_inductor import Code

pytestmark = pytest.mark.usefixtures("no_cpu_cost_model")


class Block(nn.Module):
    """A region, a softmax, a BatchNorm, a counter, dropout, and whatever `between` does."""

    def __init__(self, between=lambda x: None) -> None:
        super().__init__()
        self.qkv, self.norm = nn.Linear(32, 96), nn.BatchNorm1d(32)
        self.calls, self.between = 0, between

    def forward(self, x):
        self.calls += 1
        q, k, v = (t.unflatten(-1, (2, 16)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        mine = F.silu(q @ k.transpose(-1, -2)) @ v
        self.between(x)
        other = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
        y = (mine + other).transpose(1, 2).flatten(2)
        return F.dropout(self.norm(y.transpose(1, 2)).transpose(1, 2), 0.5)


class Ragged(nn.Module):
    """A loop over lengths that only the tensor knows: Dynamo skips the frame."""

    def forward(self, x, offsets):
        out = torch.zeros_like(x)
        for i in range(offsets.numel() - 1):
            start, end = offsets[i].item(), offsets[i + 1].item()
            out[start:end] = F.silu(x[start:end] @ x[start:end].T) @ x[start:end]
        return out


X = torch.randn(2, 48, 32)


def test_what_is_found() -> None:
    report = gdpa_inductor.explain(Block())(X)
    (match,) = report.matches
    (rejection,) = report.rejections
    assert match.score_mod.formula == "silu(s)" and "test_explain.py:" in match.location
    assert match.choice.kernel == "cpu" and match.problem.training
    assert rejection.code is Code.NORMALISED and "softmax" in rejection.reason
    assert report.graph_breaks == report.skipped_frames == ()
    (graph,) = report.graphs
    marked = [line.name for line in graph.lines if line.match == 0]
    assert marked == list(match.replaced) and len(marked) >= 3
    assert [line.rejection for line in graph.lines if line.name == rejection.node] == [0]
    assert report.to_html().count('class="node match"') == len(marked)


class Layer(nn.Module):
    """Attention with a learned bias, a mask that is given, and one that is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(2, 48, 48))

    def forward(self, x, mask):
        q = x.unflatten(-1, (2, 16)).transpose(1, 2)
        decay = torch.exp(self.bias[:, :1, :1].sum() * mask["decay"])
        return (
            ((F.silu(q @ q.mT + self.bias) * mask["keep"] * decay) @ q).transpose(1, 2).flatten(2)
        )


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))

    def forward(self, x, mask):
        for layer in self.layers:
            x = x + layer(x, mask)
        return x


MASKS = {"keep": torch.ones(48, 48), "decay": torch.ones(48, 48)}


def without_places(text: str) -> str:
    """The report without paths and lines of this file."""
    return re.sub(r"\S*test_explain\.py:\d+", "FILE:LINE", text)


def test_layers_and_operands_are_named_as_the_model_names_them() -> None:
    report = gdpa_inductor.explain(Stack(), profit=False)(X, MASKS)
    assert_expected_inline(
        without_places(str(report)),
        """\
gdpa: 4 regions fused (0.14 MiB of scores), 0.11 MiB of biases and masks stored, 0 not fused, in 1 graph

Fused
  FILE:LINE in layers.0 … layers.3 (×4)
      O = (silu(s + a0)*a1*a2) V, s = Q Kᵀ
      Q [2, 2, 48, 16]  K [2, 2, 48, 16]  V [2, 2, 48, 16]  float32, training
      scores: 0.035 MiB, never stored
      a0 = bias, FILE:LINE, float32 [h, q_idx, kv_idx], stored: 0.018 MiB
      a1 = mask['keep'], FILE:LINE, float32 [q_idx, kv_idx], stored: 0.0088 MiB
      a2 = decay, FILE:LINE, float32 [q_idx, kv_idx], stored: 0.0088 MiB
      kernel: cpu (torch.float32, head dims 16 and 16)
      to change: compute a bias from positions or lengths, or store it in 16 bits (docs/masks.md)""",  # noqa: E501
    )


def test_one_key_is_refused_in_words() -> None:
    query, history = torch.randn(2, 2, 4096, 16), torch.randn(2, 2, 1, 16)
    report = gdpa_inductor.explain(lambda q, k: F.silu(q @ k.mT) @ k)(query, history)
    (rejection,) = report.rejections
    assert_expected_inline(
        str(rejection).partition(": ")[2],
        """NOT_PROFITABLE/TOO_SMALL: there is a single key""",
    )


def pad_sequence(rows, keep):
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def boolean_index(rows, keep):
    padded = rows[0].new_zeros(2, 40, 16)
    padded[keep] = torch.cat(rows)
    return padded


def masked_scatter(rows, keep):
    return torch.zeros(2, 40, 16).masked_scatter(keep[..., None], torch.cat(rows))


@pytest.mark.parametrize("pad", [pad_sequence, boolean_index, masked_scatter])
def test_padding_that_is_not_read_as_such_is_noted(pad) -> None:
    """The region stayed dense without a word; so does that of the next layer."""
    rows, keep = [torch.randn(n, 16) for n in (40, 30)], torch.ones(2, 40, dtype=torch.bool)
    keep[1, 30:] = False

    def model(rows, keep):
        x = pad(rows, keep)
        for _ in range(2):
            q = F.layer_norm(x, (16,))[:, None]
            x = x + (F.silu(q @ q.mT) @ q)[:, 0]
        return x

    report = gdpa_inductor.explain(model)(rows, keep)
    notes = [[note.code for note in match.notes] for match in report.matches]
    assert notes == [[Code.JAGGED_PADDING]] * 2
    (match, _) = report.matches
    assert re.sub(r"`\w+` \(line \d+\)", "IT", match.notes[0].reason) == (
        "IT pads what is attended to, and all of it is computed"
    )


def test_zeroing_by_a_mask_is_no_padding() -> None:
    def model(q, keep):
        q = q.clone()
        q[keep] = 0.0
        return F.silu(q @ q.mT) @ q

    (match,) = gdpa_inductor.explain(model)(X, torch.ones(2, 48, dtype=torch.bool)).matches
    assert match.notes == ()


def test_two_dimensional_inputs_are_named() -> None:
    """They are taken for weights; that was silent."""
    q = torch.randn(48, 16)
    report = gdpa_inductor.explain(lambda q, k, v: F.silu(q @ k.T) @ v)(q, q.clone(), q.clone())
    assert_expected_inline(
        without_places(str(report)),
        """\
gdpa: 0 regions fused, 1 not fused, in 1 graph

Not fused
  FILE:LINE
      NOT_GDPA/FLAT: the products multiply 2-D inputs, which are taken for weights
      to change: give activations a batch dimension: `[1, N, D]`""",
    )


WEIGHTS = [nn.Parameter(torch.randn(16, 32)), nn.Parameter(torch.randn(32, 16))]
PERCEPTRON = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))


@pytest.mark.parametrize(
    "model",
    [
        PERCEPTRON,
        lambda x: F.silu(x @ WEIGHTS[0]) @ WEIGHTS[1],
        lambda x: torch.func.functional_call(
            PERCEPTRON, {n: p.detach() for n, p in PERCEPTRON.named_parameters()}, (x,)
        ),
        lambda x: torch.softmax(x @ x.T, -1) @ x,
    ],
    ids=["module", "parameters", "functional", "softmax"],
)
def test_perceptrons_and_softmax_are_no_two_dimensional_attention(model) -> None:
    assert gdpa_inductor.explain(model)(torch.randn(48, 16)).rejections == ()


def test_no_candidate() -> None:
    report = gdpa_inductor.explain(lambda x: F.silu(x) + 1)(X)
    assert report.matches == report.rejections == ()
    assert "A candidate is a product" in str(report)


def test_options_are_the_backends() -> None:
    def small(x):
        return F.silu(x @ x.mT) @ x

    tiny = torch.randn(2, 3, 4)
    assert gdpa_inductor.explain(small)(tiny).rejections[0].code is Code.TOO_SMALL
    assert len(gdpa_inductor.explain(small, profit=False)(tiny).matches) == 1
    assert gdpa_inductor.explain(small, strict=True, expect=5)(tiny).rejections
    with pytest.raises(ValueError, match=r"did you mean gdpa\.profit"):
        gdpa_inductor.explain(small, profits=False)


def test_dynamic_sizes_are_shown_as_symbols() -> None:
    report = gdpa_inductor.explain(Block(), dynamic=True)(X)
    assert not isinstance(report.matches[0].problem.rows, int)
    assert str(report.matches[0].problem.rows) in str(report)
    assert isinstance(report.to_dict()["matches"][0]["query"][2], str)


def test_graph_breaks_name_the_line_and_the_cure() -> None:
    report = gdpa_inductor.explain(Block(between=lambda x: print("here")))(X)
    (graph_break,) = report.graph_breaks
    assert "test_explain.py:" in graph_break.location and "print" in graph_break.reason
    assert "reorderable_logging_functions" in graph_break.advice
    assert len(report.graphs) == 2 and len(report.matches) == 1
    assert "Graph breaks" in str(report) and graph_break.advice in str(report)


def test_a_break_in_torchs_code_is_told_at_the_line_of_the_model_that_called_it() -> None:
    def function(x):
        return torch.nn.utils.clip_grad_norm_([x], 1.0, error_if_nonfinite=True) * x

    x = X.clone()
    x.grad = torch.ones_like(x)
    (graph_break, *_) = gdpa_inductor.explain(function)(x).graph_breaks
    assert "test_explain.py:" in graph_break.location and "harmless" not in graph_break.advice


def test_branches_on_values_are_explained() -> None:
    def function(x):
        return x + 1 if x.sum() > 0 else x - 1

    (graph_break,) = gdpa_inductor.explain(function)(X).graph_breaks
    assert "`if`" in graph_break.reason and "torch.where" in graph_break.advice


def test_skipped_frames_are_named_every_time() -> None:
    model, inputs = Ragged(), (torch.randn(9, 16), torch.tensor([0, 4, 9]))
    for _ in range(2):
        report = gdpa_inductor.explain(model)(*inputs)
        (frame,) = report.skipped_frames
        assert frame.name == "forward" and "test_explain.py:" in frame.location
        assert "item()" in frame.reason and "capture_scalar_outputs" in frame.advice
        assert report.matches == () and "Skipped by Dynamo" in str(report)


def test_the_models_inputs_in_the_first_brackets_are_explained() -> None:
    with pytest.raises(TypeError) as raised:
        gdpa_inductor.explain(Block(), X)
    assert_expected_inline(
        str(raised.value),
        """explain wants a model or a function and returns a function of its inputs: write explain(model)(x), with options in the first brackets, explain(model, profit=False)(x)""",  # noqa: E501
    )
    with pytest.raises(TypeError, match="explain wants a model or a function"):
        gdpa_inductor.explain(X)
