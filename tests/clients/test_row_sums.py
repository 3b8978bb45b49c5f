"""Attention that public models divide by the sum of a row, in the lines of their repositories."""

import math

import pytest
import torch
import torch.nn.functional as F

from tests.patterns.rows import SELF, fused, judge, refused


def retnet(q, k, v, mask):
    """torchscale, MultiScaleRetention.parallel_forward: a decay, and a divisor without gradient."""
    qk_mat = q @ k.transpose(-1, -2)
    qk_mat = qk_mat * mask
    qk_mat = qk_mat / qk_mat.detach().abs().sum(dim=-1, keepdim=True).clamp(min=1, max=5e4)
    output = torch.matmul(qk_mat, v)
    return output.transpose(1, 2)


def cosformer(q, k, v):
    """OpenNLPLab's cosformer, left_product: features of relu, sine and cosine."""
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    q, k = F.relu(q), F.relu(k)
    length = q.shape[1]
    index = math.pi / 2 * torch.arange(1, length + 1).reshape(1, -1, 1).to(q)
    weight_index = index / length
    q_ = torch.cat([q * torch.sin(weight_index), q * torch.cos(weight_index)], dim=-1)
    k_ = torch.cat([k * torch.sin(weight_index), k * torch.cos(weight_index)], dim=-1)
    weights = torch.bmm(q_, k_.transpose(1, 2))
    denom = torch.clamp_min(weights.sum(dim=-1, keepdim=True), 1e-6)
    attn_weights = weights / denom
    return torch.bmm(attn_weights, v)


def efficientvit(q, k, v):
    """mit-han-lab's LiteMLA, relu_quadratic_att: keys in rows, in fp32."""
    q, k, v = (x.transpose(-1, -2) for x in (q, k, v))
    q, k = F.relu(q), F.relu(k)
    att_map = torch.matmul(torch.transpose(k, -1, -2), q)
    original_dtype = att_map.dtype
    if original_dtype in [torch.float16, torch.bfloat16]:
        att_map = att_map.float()
    att_map = att_map / (torch.sum(att_map, dim=2, keepdim=True) + 1e-15)
    att_map = att_map.to(original_dtype)
    return torch.matmul(v, att_map)


def based(q, k, v):
    """fla, naive_parallel_based: a Taylor series, divided after the product."""
    return of_taylor(lambda attn: 1 + attn + 1 / 2 * (attn**2), q, k, v)


def rebased(q, k, v):
    """fla, naive_parallel_rebased: squares of scores."""
    return of_taylor(lambda attn: attn**2, q, k, v)


def of_taylor(series, q, k, v):
    """What both of them do but for the series."""
    q = q * (q.shape[-1] ** -0.5)
    attn = q @ k.transpose(-2, -1)
    attn = series(attn)
    attn.masked_fill_(~torch.tril(torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool)), 0)
    o = attn @ v
    z = attn.sum(-1)
    return o / (z[..., None] + 1e-6)


def sigmoid_over_its_sum(q, k, v):
    attn = torch.sigmoid(torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5)
    attn = attn / attn.sum(dim=-1, keepdim=True)
    return torch.einsum("bhij,bhjd->bhid", attn, v)


def difformer(q, k, v):
    """qitianwu's DIFFormer, full_attention_conv: the sum is a product with ones."""
    qs, ks, vs = (x[0].transpose(0, 1) for x in (q, k, v))  # [N, H, D]
    attention_num = torch.sigmoid(torch.einsum("nhm,lhm->nlh", qs, ks))
    all_ones = torch.ones([ks.shape[0]]).to(ks)
    attention_normalizer = torch.einsum("nlh,l->nh", attention_num, all_ones)
    attention_normalizer = attention_normalizer.unsqueeze(1).repeat(1, ks.shape[0], 1)
    attention = attention_num / attention_normalizer
    return torch.einsum("nlh,lhd->nhd", attention, vs)


MODELS = [cosformer, efficientvit, based, rebased, sigmoid_over_its_sum]
NAMES = [model.__name__ for model in MODELS]
DTYPES = [torch.float64, torch.float32]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_the_model_is_fused_and_trains_as_eager(model, dtype) -> None:
    recorder = fused(model, SELF, dtype=dtype)
    assert recorder.graphs[0].calls_after["attention_sums"] == 1


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16])
def test_retention(dtype) -> None:
    recorder = fused(retnet, {**SELF, "mask": "h n n"}, dtype=dtype)
    assert recorder.graphs[0].calls_after["attention_sums"] == 1


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_inference_in_16_bits(model) -> None:
    assert judge(model, SELF, dtype=torch.bfloat16, training=False).matches


def test_products_with_ones_stay_with_a_hint() -> None:
    recorder = refused({"NORMALISED"}, difformer, SELF)
    assert all("column of ones" in refusal.advice for refusal in recorder.rejections)
