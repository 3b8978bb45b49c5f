"""Gradients: None, zeros and numbers are three things."""

import torch


def leaves(*shapes, dtype=torch.float32):
    return tuple(torch.randn(*s, dtype=dtype).requires_grad_() for s in shapes)


def qkv(dtype=torch.float32):
    return leaves((2, 3, 6, 8), (2, 3, 7, 8), (2, 3, 7, 8), dtype=dtype)


def qkvb():
    return leaves((2, 3, 6, 8), (2, 3, 7, 8), (2, 3, 7, 8), (6, 7))


# A bias that is cut from its history within the region.


def detached_expand_as(q, k, v, b):
    s = q @ k.mT
    return torch.relu(s + b.expand_as(s).detach()) @ v


def data_of_expand_as(q, k, v, b):
    s = q @ k.mT
    return torch.relu(s + b.expand_as(s).data) @ v


def detached_type_as(q, k, v, b):
    s = q @ k.mT
    return torch.relu(s + b.type_as(s).detach()) @ v


def detached_sum_with_zeros(q, k, v, b):
    s = q @ k.mT
    return torch.relu(s + (torch.zeros_like(s) + b).detach()) @ v


def detached_where(q, k, v, b):
    s = q @ k.mT
    return torch.relu(torch.where(s.detach() > 0, s, (b * torch.ones_like(s)).detach())) @ v


def new_tensor_bias(q, k, v, b):
    s = q @ k.mT
    return torch.relu(s * b.expand_as(s).detach().sigmoid()) @ v


def baddbmm_detached_bias(q, k, v, b):
    return torch.relu(torch.baddbmm(b.detach(), q, k.mT, beta=0.5, alpha=2)) @ v


# A learned operand that a comparison or an integer reads.


def mask_from_learned(q, k, v, b, t):
    s = q @ k.mT
    return torch.where(b[None, :] > t[:, None], torch.relu(s), 0.0) @ v


def mask_from_learned_thresh(q, k, v, b):
    s = q @ k.mT
    return torch.relu(s) * (s > b) @ v


def long_of_learned(q, k, v, b):
    s = q @ k.mT
    n = torch.arange(7)
    return torch.relu(s) * (n[None] < b.long()[:, None]).any(0) @ v


def round_of_learned(q, k, v, b):
    s = q @ k.mT
    return torch.relu(s + b.round()) @ v


def bias_times_threshold(q, k, v, b):
    s = q @ k.mT
    return (s > 0) * b @ v


def bias_rounded_to_int(q, k, v, b):
    return torch.relu(q @ k.mT * b.int()) @ v


def bias_cast_to_bool(q, k, v, b):
    return torch.relu(q @ k.mT * b.bool()) @ v


def bias_argument_of_isnan(q, k, v, b):
    return torch.relu((q @ k.mT).masked_fill(b.isnan(), 0.0)) @ v


def learned_threshold_hard(q, k, v, c):
    s = q @ k.mT
    return torch.where(s > c, s, torch.zeros_like(s)) @ v


def learned_threshold_straight_through(q, k, v, c):
    s = q @ k.mT
    hard = (s > c).float()
    soft = torch.sigmoid(s - c)
    return (hard - soft.detach() + soft) @ v


def learned_bounds(q, k, v, b):
    return torch.clamp(q @ k.mT, min=b, max=b + 1) @ v


# Scores without a gradient, or with one of zeros.


def hard_threshold(q, k, v):
    s = q @ k.mT
    return (s > 0).to(v.dtype) @ v


def detached_scores(q, k, v):
    s = (q @ k.mT).detach()
    return torch.relu(s) @ v


def sign_scores(q, k, v):
    return torch.sign(q @ k.mT) @ v


def pow_zero(q, k, v):
    return torch.pow(q @ k.mT, 0) @ v


def detached_weights_frozen_value(q, k, v):
    return torch.relu(q @ k.mT).detach() @ v


# An operand that is overwritten, or multiplied by zero, has a gradient of zeros.


def baddbmm_beta_zero(q, k, v, b):
    return torch.relu(torch.baddbmm(b.expand(6, 6, 7), q, k.mT, beta=0)) @ v


def bias_in_zeros_like(q, k, v, b):
    s = q @ k.mT
    return torch.relu(s + torch.zeros_like(b + s)) @ v


def overwritten_bias(q, k, v, b):
    s = q @ k.mT
    w = b + torch.zeros_like(s)
    w = w.clone().copy_(s)
    return torch.relu(w) @ v


def score_times_zero_bias(q, k, v, b):
    s = q @ k.mT
    return torch.relu(s + b * 0) @ v


def full_like_of_bias(q, k, v, b):
    s = q @ k.mT
    return torch.relu(s + torch.full_like(b, 0.5)) @ v


def bias_fill_by_score_item(q, k, v, b):
    s = q @ k.mT
    w = s.clone()
    w.fill_(b.sum())
    return torch.relu(s * w) @ v


def fill_of_scores_then_threshold(q, k, v, b):
    s = q @ k.mT
    w = s.clone()
    w.fill_(1.0)
    return w * (s > 0) @ v


def bias_only_in_a_fill(q, k, v, b):
    s = q @ k.mT
    w = (s + b).fill_(2.0)
    return torch.relu(s) * w @ v


def bias_covered_by_a_slice(q, k, v, b):
    s = q @ k.mT
    w = s + b
    w[:] = s
    return torch.relu(w) @ v


def bias_zeroed(q, k, v, b):
    s = q @ k.mT
    w = s + b
    w.zero_()
    w += s
    return torch.relu(w) @ v


# The same product twice, once without history.


def same_tensor_thrice(q, k, v):
    return torch.relu(k @ k.mT) @ k


def detached_twin(q, k, v):
    s = q @ k.mT
    g = (q @ k.mT).detach()
    return torch.relu(s) * torch.sigmoid(g) @ v


def twin_of_detached_query(q, k, v):
    s = q @ k.mT
    g = q.detach() @ k.mT
    return torch.relu(s) * torch.sigmoid(g) @ v


def twin_under_no_grad(q, k, v):
    s = q @ k.mT
    with torch.no_grad():
        g = q @ k.mT
    return torch.relu(s) * torch.sigmoid(g) @ v


CASES = [
    # A bias that is cut from its history within the region.
    (detached_expand_as, qkvb),
    (data_of_expand_as, qkvb),
    (detached_type_as, qkvb),
    (detached_sum_with_zeros, qkvb),
    (detached_where, qkvb),
    (new_tensor_bias, qkvb),
    (baddbmm_detached_bias, lambda: leaves((6, 6, 8), (6, 7, 8), (6, 7, 8), (6, 6, 7))),
    # A learned operand that a comparison or an integer reads.
    (mask_from_learned, lambda: leaves((2, 3, 6, 8), (2, 3, 7, 8), (2, 3, 7, 8), (7,), (6,))),
    (mask_from_learned_thresh, lambda: leaves((2, 3, 6, 8), (2, 3, 7, 8), (2, 3, 7, 8), (7,))),
    (long_of_learned, lambda: leaves((2, 3, 6, 8), (2, 3, 7, 8), (2, 3, 7, 8), (7,))),
    (round_of_learned, lambda: leaves((2, 3, 6, 8), (2, 3, 7, 8), (2, 3, 7, 8), (7,))),
    (bias_times_threshold, qkvb),
    (bias_rounded_to_int, qkvb),
    (bias_cast_to_bool, qkvb),
    (bias_argument_of_isnan, qkvb),
    (learned_threshold_hard, lambda: (*qkv(), torch.tensor(1.5, requires_grad=True))),
    (learned_threshold_straight_through, lambda: (*qkv(), torch.tensor(1.5, requires_grad=True))),
    (learned_bounds, qkvb),
    # Scores without a gradient, or with one of zeros.
    (hard_threshold, qkv),
    (detached_scores, qkv),
    (sign_scores, qkv),
    (pow_zero, qkv),
    (detached_weights_frozen_value, qkv),
    # An operand that is overwritten, or multiplied by zero, has a gradient of zeros.
    (baddbmm_beta_zero, lambda: leaves((6, 6, 8), (6, 7, 8), (6, 7, 8), (6, 7))),
    (bias_in_zeros_like, qkvb),
    (overwritten_bias, qkvb),
    (score_times_zero_bias, qkvb),
    (full_like_of_bias, qkvb),
    (bias_fill_by_score_item, qkvb),
    (fill_of_scores_then_threshold, qkvb),
    (bias_only_in_a_fill, qkvb),
    (bias_covered_by_a_slice, qkvb),
    (bias_zeroed, qkvb),
    # The same product twice, once without history.
    (same_tensor_thrice, qkv),
    (detached_twin, qkv),
    (twin_of_detached_query, qkv),
    (twin_under_no_grad, qkv),
]
