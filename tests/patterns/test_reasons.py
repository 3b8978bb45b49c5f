"""A refusal names what really stands in the way, where several things do."""

import re

import pytest
import torch
import torch.nn.functional as F

from tests.patterns.rows import HEADS, judge, refused

SELF = {**dict.fromkeys(["q", "k", "v"], "b h n d"), "other": "b h n d"}


def relative_positions(q, k, v, other):
    """Conformer: two products are added, and softmax makes them weights."""
    return (q @ k.mT + q @ other.mT).softmax(-1) @ v


def capsules(q, k, v, other):
    """MIND: a routing logit is a sum over the products of earlier rounds."""
    return (q @ k.mT + other @ k.mT).sum(-1, keepdim=True).mT @ v


def positions_without_softmax(q, k, v, other):
    return F.silu(q @ k.mT + q @ other.mT) @ v


def gate_in_the_product(q, k, v, other):
    return torch.einsum("bhnm,bhme,bhne->bhne", F.silu(q @ k.mT), v, other)


def normalised_linear_attention(q, k, v, other):
    """Performer, TaylorSeriesLinearAttn: the third factor is the norm of a row."""
    return torch.einsum("bhnd,bhde,bhn->bhne", q, k.mT @ v, 1 / other.square().sum(-1))


REASONS = {
    relative_positions: "NORMALISED: `softmax` (line ) normalises or sums the scores",
    capsules: "NORMALISED: `sum` (line ) normalises or sums the scores",
    positions_without_softmax: "SEVERAL_SCORES: the weights are built from more than one product",
    gate_in_the_product: "LAYOUT: `einsum` (line ) does more than the second product",
    normalised_linear_attention: "CONTRACTION: three matrices are multiplied, the right-hand ones",
}


@pytest.mark.parametrize("function", REASONS, ids=lambda function: function.__name__)
def test_the_reason_is_the_true_one(function):
    wanted = REASONS[function]
    (refusal,) = refused({wanted.partition(":")[0]}, function, SELF).rejections
    told = re.sub(r"line \d+", "line ", f"{refusal.code.name}: {refusal.reason}")
    assert told.startswith(wanted)


# States and layers are no scores: a model whose attention is fused must pass `gdpa.strict`

STATES = {
    "ttt": "b h n n",
    "w": "b h d d",
    "bias": "b h 1 d",
}


def time_training(q, k, v, ttt, w, bias):
    """TTT's dual form: X W is a gradient, and a value of the attention that is fused."""
    grad = k @ w + bias - v
    attention = torch.tril(q @ k.mT)
    return q @ w - (ttt * attention) @ grad + bias - torch.tril(ttt) @ grad


def time_training_of_two_layers(q, k, v, ttt, w, bias):
    """The hidden layer of a TTT-MLP is a key and a query of the second attention."""
    hidden, asked = F.gelu(k @ w), F.gelu(q @ w)
    return (ttt * torch.tril(asked @ hidden.mT)) @ v + asked @ w


@pytest.mark.parametrize(
    "function", [time_training, time_training_of_two_layers], ids=lambda f: f.__name__
)
def test_states_beside_fused_attention_are_no_candidates(function):
    specs = {**dict.fromkeys("qkv", "b h n d"), **STATES}
    recorder = judge(function, specs)
    assert recorder.matches and not recorder.rejections, recorder.why()


def mamba(c, decay, states, out):
    """SSD: states of chunks decay, and are read by a three-operand einsum."""
    states = torch.einsum("bhzc,bchpn->bzhpn", decay, states)
    return torch.einsum("bclhn,bchpn,bhcl->bclhp", c, states, out)


def mixed_heads(q, k, v, w):
    return torch.einsum("bhij,hg->bgij", F.relu(q @ k.mT), w) @ v


NO_SCORES = [
    (mamba, {"c": "b g n h d", "decay": "b h g g", "states": "b g h e d", "out": "b h g n"}),
    (mixed_heads, {**dict.fromkeys("qkv", "b h n d"), "w": "h h"}),
    (normalised_linear_attention, SELF),
]


@pytest.mark.parametrize(("function", "specs"), NO_SCORES, ids=lambda x: getattr(x, "__name__", ""))
def test_products_without_weights_between_are_no_gdpa(function, specs):
    recorder = refused({"CONTRACTION", "CROSS_ELEMENT"}, function, specs)
    assert {r.code.category.name for r in recorder.rejections} == {"NOT_GDPA"}, recorder.why()


def test_advice_to_force_is_given_only_where_that_helps():
    """A single key is never fused, whatever `gdpa.profit` says."""

    def one_key(q, k, v):
        return F.silu(q @ k[:, :, :1].mT) @ v[:, :, :1]

    (refusal,) = refused({"TOO_SMALL"}, one_key, HEADS).rejections
    assert refusal.reason == "there is a single key" and refusal.advice == ""
