"""Scores that something else uses: the reason is the true one, and its advice works."""

import pytest
import torch
import torch.nn.functional as F

import gdpa_inductor
from tests._recorder import Recorder
from tests.patterns import row_sums_table
from tests.patterns.rows import HEADS, ROWS, fused, refused

TABLE = {row.name: row for row in ROWS if row.function.__module__ == row_sums_table.__name__}


def matrices(**sizes):
    sizes = {"b": 2, "h": 2, "n": 12, "d": 16, **sizes}
    return [torch.randn(*sizes.values()) for _ in range(3)]


class Stored(torch.nn.Module):
    """As galerkin-transformer and much code for pictures has it."""

    def forward(self, q, k, v):
        weights = F.relu(q @ k.mT / q.shape[-2])
        self.attn_weight = weights
        return weights @ v


class KeptViews(torch.nn.Module):
    def forward(self, q, k, v):
        weights = F.relu(q @ k.mT)
        self.maps = {"last": [weights[:, 0].detach()]}
        return weights @ v


class Logged(torch.nn.Module):
    def forward(self, q, k, v):
        weights = F.relu(q @ k.mT)
        with torch.no_grad():
            self.dead = (weights == 0).float().mean()
        return weights @ v


class Holder:
    pass


class KeptElsewhere(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.log = Holder()

    def forward(self, q, k, v):
        scores = q @ k.mT
        self.log.raw_scores = scores
        return F.relu(scores) @ v


class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Stored()

    def forward(self, q, k, v):
        return self.inner(q, k, v)


STORED = {
    Stored: "the scores are stored in the attribute `attn_weight`",
    Inner: "the scores are stored in the attribute `attn_weight`",
    KeptElsewhere: "the scores are stored in the attribute `raw_scores`",
    KeptViews: "uses the scores besides the second product, for the attribute `maps`",
    Logged: "uses the scores besides the second product, for the attribute `dead`",
}


@pytest.mark.parametrize("model", STORED, ids=lambda model: model.__name__)
def test_stored_scores_name_the_attribute(model):
    (refusal,) = gdpa_inductor.explain(model(), profit=False)(*matrices()).rejections
    assert refusal.code.name == "SCORES_ESCAPE" and refusal.reason.endswith(STORED[model])
    assert "product of its own" in refusal.advice


def test_returned_scores_are_said_to_be_an_output():
    def returned(q, k, v):
        weights = F.relu(q @ k.mT)
        return weights @ v, weights

    (refusal,) = gdpa_inductor.explain(returned, profit=False)(*matrices()).rejections
    assert refusal.reason.startswith("the scores are an output of the graph")
    assert refusal.advice == refusal.code.advice


class Advised(torch.nn.Module):
    """What the advice asks for: what is stored is made from a product of its own."""

    def forward(self, q, k, v):
        self.attn_weight = F.relu(q @ k.mT / q.shape[-2])
        with torch.no_grad():
            self.dead = (F.relu(q @ k.mT) == 0).float().mean()
        return F.relu(q @ k.mT / q.shape[-2]) @ v


def test_scores_stored_from_a_product_of_their_own_are_fused_beside():
    recorder, inputs, model = Recorder(), matrices(), Advised()
    compiled = torch.compile(model, backend=recorder, fullgraph=True)
    torch.testing.assert_close(compiled(*inputs), Stored()(*inputs))
    assert len(recorder.matches) == 1
    q, k, _ = inputs
    torch.testing.assert_close(model.attn_weight, F.relu(q @ k.mT / q.shape[-2]))


# Row sums


def after(q, k, v):
    w = torch.sigmoid(q @ k.mT)
    return (w @ v) / w.sum(-1, keepdim=True)


def product_with_ones(q, k, v):
    """DIFFormer: the sum is a product, too."""
    w = torch.sigmoid(q @ k.mT)
    total = torch.einsum("bhnm,bhm->bhn", w, torch.ones(k.shape[:3], dtype=k.dtype))
    return (w / total.unsqueeze(-1).repeat(1, 1, 1, k.shape[2])) @ v


def product_with_ones_after(q, k, v):
    w = torch.sigmoid(q @ k.mT)
    return (w @ v) / (w @ torch.ones_like(v[..., :1]))


def product_with_a_full_tensor(q, k, v):
    w = torch.sigmoid(q @ k.mT)
    return (w @ v) / (w @ v.new_full((*v.shape[:-1], 1), 1.0))


BY_ONES = [product_with_ones, product_with_ones_after, product_with_a_full_tensor]


@pytest.mark.parametrize("function", BY_ONES, ids=lambda function: function.__name__)
def test_division_by_products_with_ones_is_normalised(function):
    recorder = refused({"NORMALISED"}, function)
    assert {refusal.code.name for refusal in recorder.rejections} == {"NORMALISED"}
    assert all("column of ones" in refusal.advice for refusal in recorder.rejections)


SUMMED = [row for row in TABLE.values() if (row.verdict, row.regions) == ("fuse", 1)]


@pytest.mark.parametrize("row", SUMMED, ids=lambda row: row.name)
def test_row_sums_are_a_second_result(row):
    recorder = fused(row.function, row.specs)
    assert recorder.graphs[0].calls_after["attention_sums"] == 1


def sums_without_gradients(q, k, v):
    w = torch.sigmoid(q @ k.mT)
    with torch.no_grad():
        total = w.sum(-1, keepdim=True)
    return (w / total) @ v


def test_row_sums_in_another_gradient_mode():
    refused({"GRAD_MODE"}, sums_without_gradients)
    fused(sums_without_gradients, training=False)


def sums_in_fp32(q, k, v):
    w = torch.sigmoid(q @ k.mT)
    return (w / w.float().sum(-1, keepdim=True)).to(v.dtype) @ v


def test_row_sums_of_weights_in_16_bits():
    fused(sums_in_fp32, dtype=torch.bfloat16)
    refused({"NORMALISED"}, sums_in_fp32, dtype=torch.float16)  # the product may overflow
    fused(after, dtype=torch.float16)


def softmax(q, k, v):
    return (q @ k.mT).softmax(-1) @ v


OTHERS = [softmax, *(TABLE[name].function for name in ("sums_of_columns", "sums_subtracted"))]


@pytest.mark.parametrize("function", OTHERS, ids=lambda function: function.__name__)
def test_other_normalised_weights_have_no_such_advice(function):
    (refusal,) = refused({"NORMALISED"}, function).rejections
    assert refusal.advice == ""


def advised(q, k, v):
    o = torch.sigmoid(q @ k.mT) @ torch.cat([v, torch.ones_like(v[..., :1])], -1)
    return o[..., :-1] / o[..., -1:]


def test_a_column_of_ones_beside_the_values_is_fused_and_the_same():
    fused(advised, HEADS)
    inputs = matrices()
    torch.testing.assert_close(advised(*inputs), after(*inputs))
    torch.testing.assert_close(advised(*inputs), product_with_ones_after(*inputs))
