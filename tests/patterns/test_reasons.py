"""A refusal names what really stands in the way, where several things do."""

import re

import pytest
import torch
import torch.nn.functional as F

import gdpa_inductor
from tests.patterns.rows import HEADS, fused, judge, refused

SELF = {**dict.fromkeys(["q", "k", "v"], "b h n d"), "other": "b h n d"}


def relative_positions(q, k, v, other):
    """Conformer: two products are added, and softmax makes them weights."""
    return (q @ k.mT + q @ other.mT).softmax(-1) @ v


def capsules(q, k, v, other):
    """MIND: a routing logit is a sum over the products of earlier rounds."""
    return (q @ k.mT + other @ k.mT).sum(-1, keepdim=True).mT @ v


def positions_reversed(q, k, v, other):
    return F.silu((q @ k.mT).flip(-1) + (q @ other.mT).flip(-1)) @ v


def gate_in_the_product(q, k, v, other):
    return torch.einsum("bhnm,bhme,bhne->bhne", F.silu(q @ k.mT), v, other)


def normalised_linear_attention(q, k, v, other):
    """Performer, TaylorSeriesLinearAttn: the third factor is the norm of a row."""
    return torch.einsum("bhnd,bhde,bhn->bhne", q, k.mT @ v, 1 / other.square().sum(-1))


def sums_outside_of_autocast(q, k, v, other):
    q, k, v = (x.float() for x in (q, k, v))
    with torch.autocast("cpu", torch.bfloat16):
        w = torch.sigmoid(q @ k.mT)
        out = w @ v
    return out.float() / w.float().sum(-1, keepdim=True)


REASONS = {
    relative_positions: "NORMALISED: `softmax` (line ) normalises or sums the scores",
    capsules: "NORMALISED: `sum` (line ) normalises or sums the scores",
    positions_reversed: "SEVERAL_SCORES: the weights are built from more than one product",
    gate_in_the_product: "LAYOUT: `einsum` (line ) does more than the second product",
    normalised_linear_attention: "CONTRACTION: three matrices are multiplied, the right-hand ones",
    sums_outside_of_autocast: "SCORES_ESCAPE: `sum` (line ) runs under another autocast than `mat",
}


@pytest.mark.parametrize("function", REASONS, ids=lambda function: function.__name__)
def test_the_reason_is_the_true_one(function):
    wanted = REASONS[function]
    (refusal,) = refused({wanted.partition(":")[0]}, function, SELF).rejections
    messages = re.sub(r"line \d+", "line ", f"{refusal.code.name}: {refusal.reason}")
    assert messages.startswith(wanted)


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
    hidden, requested = F.gelu(k @ w), F.gelu(q @ w)
    return (ttt * torch.tril(requested @ hidden.mT)) @ v + requested @ w


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


def talking_heads(q, k, v):
    mixed = torch.einsum("bhij,hg->bgij", F.silu(q @ k.mT), torch.eye(q.shape[1], dtype=q.dtype))
    return mixed @ v


def test_talking_heads_by_a_constant_are_one_attention():
    """There were two entries, with advice to bring operands to another shape."""
    recorder = refused({"CROSS_ELEMENT"}, talking_heads, dict.fromkeys("qkv", "b h n d"))
    (rejection,) = recorder.rejections
    assert "`einsum` (line " in rejection.reason


def test_advice_to_force_is_given_only_where_that_helps():
    """A single key is never fused, whatever `gdpa.profit` says."""

    def one_key(q, k, v):
        return F.silu(q @ k[:, :, :1].mT) @ v[:, :, :1]

    (refusal,) = refused({"TOO_SMALL"}, one_key, HEADS).rejections
    assert refusal.reason == "there is a single key" and refusal.advice == ""


# Biases by rows and columns of a grid, as SAM has them

SAM = {**dict.fromkeys("qkv", "2 2 12 4"), "rows": "4 4 4", "columns": "3 3 4"}


def by_axes(q, rows, columns):
    grid = q.view(*q.shape[:2], 4, 3, q.shape[-1])
    by_row = torch.einsum("bhxyd,xkd->bhxyk", grid, rows)
    return by_row, torch.einsum("bhxyd,ykd->bhxyk", grid, columns)


def rows_and_columns(q, k, v, rows, columns):
    by_row, by_column = by_axes(q, rows, columns)
    s = (q @ k.mT).view(*q.shape[:2], 4, 3, 4, 3)
    s = s + by_row[..., :, None] + by_column[..., None, :]
    return torch.sigmoid(s.view(*q.shape[:3], 12) - 2.5) @ v


def rows_and_columns_as_advised(q, k, v, rows, columns):
    by_row, by_column = by_axes(q, rows, columns)
    bias = by_row[..., :, None] + by_column[..., None, :]
    return torch.sigmoid(q @ k.mT + bias.reshape(*q.shape[:3], 12) - 2.5) @ v


def test_biases_by_rows_and_columns_are_told_to_be_added_up_and_that_is_fused():
    (refusal,) = refused({"OPERAND_EXPANDS"}, rows_and_columns, SAM).rejections
    assert "over a part of the keys" in refusal.reason and "reshape the sum" in refusal.advice
    (match,) = fused(rows_and_columns_as_advised, SAM).matches
    assert match.problem.stored_aux() == [0]
    assert match.problem.aux_bytes(0) == 2 * 2 * 12 * 12 * 8


def test_a_bias_by_a_product_is_reported_with_its_size():
    def shaw(q, k, v, e):
        return F.relu(q @ k.mT + torch.einsum("bhid,ijd->bhij", q, e)) @ v

    report = gdpa_inductor.explain(shaw, profit=False)(
        *(torch.randn(2, 2, 12, 16) for _ in range(3)), torch.randn(12, 12, 16)
    )
    assert "float32 [b, h, q_idx, kv_idx], stored: 0.0022 MiB" in str(report)
