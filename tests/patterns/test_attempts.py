"""The ways in which a candidate is read, one after the other."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

import gdpa_inductor
from gdpa_inductor.options import Options
from gdpa_inductor.patterns import plan, rewrite_graph
from gdpa_inductor.rejection import Code
from tests.jagged import PadOnes, offsets_of, pad, unpad
from tests.patterns.test_region import SHAPES

ALWAYS = Options(profit=False)


def test_names_are_unique_and_jagged_ones_first():
    names = [attempt.name for attempt in plan.ATTEMPTS]
    assert len(set(names)) == len(names)
    jagged = [attempt.is_jagged for attempt in plan.ATTEMPTS]
    assert jagged == sorted(jagged, reverse=True)
    assert not plan.ATTEMPTS[-1].through


def rewritten(function, monkeypatch, **shapes):
    """What a function is rewritten to, and how often a region of it was traced."""
    traced, results = [], []
    trace = plan.shadow.trace

    def counted(*args):
        traced.append(args)
        return trace(*args)

    def compiler(gm, inputs):
        results.append(rewrite_graph(gm, options=ALWAYS))
        return gm.forward

    monkeypatch.setattr(plan.shadow, "trace", counted)
    operands = {name: torch.randn(shape) for name, shape in (shapes or SHAPES).items()}
    torch.compile(function, backend=compiler, fullgraph=True)(**operands)
    return results[0], len(traced)


def test_a_region_is_traced_once(monkeypatch):
    """Every dense attempt has the same region, and refuses it by the one trace."""
    turned = {**SHAPES, "k": (2, 3, 4, 7)}
    attention = lambda q, k, v: torch.special.zeta(q @ k, 1.0) @ v
    result, traced = rewritten(attention, monkeypatch, **turned)
    assert [refusal.code for refusal in result.rejections] == [Code.POINTWISE_OP]
    assert traced == 1


def test_a_narrower_region_is_traced_again(monkeypatch):
    """With the view of the keys a part of it, and without."""
    result, traced = rewritten(lambda q, k, v: torch.special.zeta(q @ k.mT, 1.0) @ v, monkeypatch)
    assert [refusal.code for refusal in result.rejections] == [Code.POINTWISE_OP]
    assert traced == 2


def test_what_cannot_be_read_of_a_mask_is_closed(monkeypatch):
    """A power of integers: one trace shows it, the next has it as a leaf."""

    def attention(q, k, v):
        keep = torch.arange(5)[:, None] ** 2 >= torch.arange(7)
        return F.silu(q @ k.mT) * keep @ v

    result, traced = rewritten(attention, monkeypatch)
    assert len(result.matches) == 1
    assert traced == 2


def test_jagged_attempts_share_a_trace(monkeypatch):
    """Values that are padded with ones: the keys stay padded, and the rows need no other trace."""

    def attention(q, k, v):
        ones = PadOnes.apply(v.flatten(1), offsets, 6).unflatten(2, (2, 16))
        rows, keys = pad(q, offsets, 6).transpose(1, 2), pad(k, offsets, 6).transpose(1, 2)
        out = F.silu(rows @ keys.mT) @ ones.transpose(1, 2)
        return unpad(out.transpose(1, 2), offsets, 9)

    offsets = offsets_of([4, 0, 5])
    shape = (9, 2, 16)
    result, traced = rewritten(attention, monkeypatch, q=shape, k=shape, v=shape)
    (match,) = result.matches
    assert [note.code for note in match.notes] == [Code.JAGGED_FILL]
    assert match.problem.jagged
    assert traced == 1


def layers(weights: list):
    """Layers of attention, each on the sum of all before; the scores of the last are returned."""

    def model(x, w):
        for number, weight in enumerate(weights):
            q, k, v = (x @ w[number, i] for i in range(3))
            scores = q @ k.mT
            x = x + weight(scores) @ v
        return x, scores

    return model


@pytest.mark.parametrize(
    ("weights", "codes"),
    [
        ([F.softmax, torch.cosh, torch.cosh], ["NORMALISED", "POINTWISE_OP", "SCORES_ESCAPE"]),
        ([torch.cosh, F.silu], ["POINTWISE_OP", "SCORES_ESCAPE"]),
    ],
)
def test_the_way_from_one_layer_to_the_next_is_no_attention(weights, codes):
    """A refusal for each layer, and why its own weights are refused."""
    weights = [partial(f, dim=-1) if f is F.softmax else f for f in weights]
    x, w = torch.randn(2, 5, 4), torch.randn(3, 3, 4, 4)
    report = gdpa_inductor.explain(layers(weights), profit=False)(x, w)
    assert [refusal.code.name for refusal in report.rejections] == codes, str(report)
