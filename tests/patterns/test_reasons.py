"""A refusal names what really stands in the way, where several things do."""

import re

import pytest
import torch
import torch.nn.functional as F

from tests.patterns.rows import refused

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
    normalised_linear_attention: "LAYOUT: `einsum` (line ) does more than the second product",
}


@pytest.mark.parametrize("function", REASONS, ids=lambda function: function.__name__)
def test_the_reason_is_the_true_one(function):
    wanted = REASONS[function]
    (refusal,) = refused({wanted.partition(":")[0]}, function, SELF).rejections
    told = re.sub(r"line \d+", "line ", f"{refusal.code.name}: {refusal.reason}")
    assert told.startswith(wanted)
