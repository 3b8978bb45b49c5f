"""What real code puts between the products."""

import math

import torch
import torch.nn.functional as F

from tests.patterns.rows import HEADS, SELF, SINGLE, either, fuse

# Scales


@fuse(**HEADS)
def scale_on_query(q, k, v):
    return F.silu((q * 4**-0.5) @ k.mT) @ v


@fuse(**HEADS)
def scale_on_both(q, k, v):
    return F.silu((q * 4**-0.25) @ (k * 4**-0.25).mT) @ v


@fuse(**HEADS)
def scale_on_scores(q, k, v):
    return F.silu(q @ k.mT / math.sqrt(q.shape[-1])) @ v


@fuse(**HEADS)
def scale_by_python_int(q, k, v):
    return (F.silu(3 * (q @ k.mT)) / 7) @ v


@fuse(**HEADS)
def scale_by_size(q, k, v):
    return F.silu(q @ k.mT) / q.shape[2] @ v


@fuse(**HEADS)
def scale_by_reciprocal_of_size(q, k, v):
    return F.silu(q @ k.mT) * (1.0 / k.shape[2]) @ v


@fuse(**HEADS, scale="")
def scale_zero_dim_parameter(q, k, v, scale):
    return F.silu(q @ k.mT * scale) @ v


@fuse(**HEADS, scale="1")
def scale_one_element_parameter(q, k, v, scale):
    return F.silu(scale * (q @ k.mT)) @ v


@fuse(**HEADS, scale="const: ")
def scale_buffer(q, k, v, scale):
    return F.silu(q @ k.mT / scale) @ v


@fuse(**HEADS, scale="h 1 1")
def scale_per_head_parameter(q, k, v, scale):
    return F.silu(q @ k.mT * scale.exp()) @ v


@fuse(**HEADS, inner="", outer="h 1 1")
def scale_before_and_after(q, k, v, inner, outer):
    return (F.silu(q @ k.mT * inner) * outer) @ v


@fuse(**HEADS, n="scalar: n")
def scale_by_int_argument(q, k, v, n):
    return F.silu(q @ k.mT) / n @ v


@fuse(**SINGLE)
def divide_before_activation(q, k, v):
    return F.relu(q @ k.mT / q.shape[1]) ** 2 @ v


@fuse(**HEADS, rab="b n m")
def bias_then_scale(q, k, v, rab):
    return F.silu(0.25 * (q @ k.mT + rab.unsqueeze(1))) @ v


@fuse(**HEADS, length="count: b 1 1 1")
def divisor_integers_per_batch(q, k, v, length):
    return F.silu(q @ k.mT) / length @ v


@fuse(**HEADS, divisor="positive: n 1")
def divisor_per_row(q, k, v, divisor):
    return F.silu(q @ k.mT) / divisor @ v


@fuse(**HEADS, divisor="positive: b 1 n 1")
def divisor_per_batch_and_row(q, k, v, divisor):
    return F.silu(q @ k.mT) / divisor @ v


@fuse(**HEADS, divisor="positive: b h 1 1")
def divisor_per_head(q, k, v, divisor):
    return F.silu(q @ k.mT / divisor) @ v


@fuse(**HEADS, attn_scale="positive: n")
def divisor_over_rows_by_view(q, k, v, attn_scale):
    return F.silu(q @ k.mT) * attn_scale.view(1, 1, -1, 1) @ v


# Biases


@fuse(**HEADS, bias="n m")
def bias_of_positions(q, k, v, bias):
    return F.silu(q @ k.mT + bias) @ v


@fuse(**HEADS, bias="1 n m")
def bias_with_leading_one(q, k, v, bias):
    return F.silu(q @ k.mT + bias) @ v


@fuse(**HEADS, bias="h n m")
def bias_per_head(q, k, v, bias):
    return F.silu(q @ k.mT + bias) @ v


@fuse(**HEADS, bias="b n m")
def bias_per_batch_unsqueezed(q, k, v, bias):
    return F.silu(q @ k.mT + bias.unsqueeze(1)) @ v


@fuse(**HEADS, bias="b h n m")
def bias_full(q, k, v, bias):
    return F.silu(q @ k.mT + bias) @ v


@fuse(**HEADS, bias="m")
def bias_per_key(q, k, v, bias):
    return F.silu(q @ k.mT + bias) @ v


@fuse(**HEADS, bias="n 1")
def bias_per_row(q, k, v, bias):
    return F.silu(q @ k.mT + bias) @ v


@fuse(**HEADS, bias="")
def bias_number(q, k, v, bias):
    return torch.sigmoid(q @ k.mT + bias) @ v


@fuse(**HEADS, bias="n m h")
def bias_permuted(q, k, v, bias):
    return F.silu(q @ k.mT + bias.permute(2, 0, 1)) @ v


@fuse(**HEADS, bias="h n m")
def bias_expanded(q, k, v, bias):
    return F.silu(q @ k.mT + bias.expand(q.shape[0], -1, -1, -1)) @ v


@fuse(**HEADS, position="h n m", time="const: b n m")
def bias_sum_of_two(q, k, v, position, time):
    return F.silu(q @ k.mT + (position + time[:, None])) @ v


@fuse(**HEADS, bias="h n m")
def bias_subtracted_with_alpha(q, k, v, bias):
    return F.silu(torch.sub(q @ k.mT, bias, alpha=0.5)) @ v


@fuse(**SELF, table="2*n+1")
def bias_toeplitz_of_a_learned_table(q, k, v, table):
    n = q.shape[2]
    distance = torch.arange(n)[:, None] - torch.arange(n)[None] + n
    return F.silu(q @ k.mT + table[distance]) @ v


@fuse(**HEADS, slopes="h 1 1")
def bias_alibi(q, k, v, slopes):
    far = (torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])).abs()
    return torch.sigmoid(q @ k.mT - slopes * far) @ v


@fuse(**HEADS, bias="h n m")
def bias_in_place(q, k, v, bias):
    s = q @ k.mT
    s += bias
    return F.silu(s) @ v


@fuse(**HEADS, bias="h n m", mask="bool: b 1 n m")
def everything_in_place(q, k, v, bias, mask):
    s = q @ k.mT
    s.mul_(0.5).add_(bias).masked_fill_(mask, 0.0).clamp_(-3.0, 3.0)
    return F.silu(s) @ v


# Masks after the activation


@fuse(**SELF)
def mask_causal_multiplied(q, k, v):
    n = q.shape[2]
    return F.silu(q @ k.mT) * q.new_ones(n, n).tril() @ v


@fuse(**HEADS, mask="zero_one: n m")
def mask_of_floats(q, k, v, mask):
    return F.silu(q @ k.mT) * mask @ v


@fuse(**HEADS, mask="int: b 1 n m")
def mask_of_integers(q, k, v, mask):
    return F.silu(q @ k.mT) * mask @ v


@fuse(**HEADS, mask="bool: b n m")
def mask_of_bools_unsqueezed(q, k, v, mask):
    return F.silu(q @ k.mT) * mask.unsqueeze(1) @ v


@fuse(**HEADS, mask="float: n m")
def mask_learned(q, k, v, mask):
    return F.silu(q @ k.mT) * mask @ v


@fuse(**HEADS, rows="bool: b n", columns="bool: b m")
def mask_product_of_two(q, k, v, rows, columns):
    mask = rows[:, None, :, None] * columns[:, None, None, :]
    return F.silu(q @ k.mT) * mask @ v


@fuse(**HEADS, padding="bool: b m")
def mask_of_key_padding(q, k, v, padding):
    return F.silu(q @ k.mT).masked_fill(~padding[:, None, None, :], 0) @ v


@fuse(**HEADS, mask="bool: n m")
def mask_where(q, k, v, mask):
    return torch.where(mask, torch.sigmoid(q @ k.mT), 0) @ v


@fuse(**SELF)
def mask_tril_of_weights(q, k, v):
    return torch.tril(torch.sigmoid(q @ k.mT)) @ v


@fuse(**HEADS)
def mask_triu_with_offset(q, k, v):
    return F.silu(q @ k.mT).triu(-1) @ v


@fuse(**SELF)
def mask_window_of_positions(q, k, v):
    i = torch.arange(q.shape[2])
    near = (i[:, None] - i).abs() <= 2
    return F.silu(q @ k.mT) * (near & (i[:, None] >= i)) @ v


@fuse(**HEADS, lengths="count: b")
def mask_of_lengths(q, k, v, lengths):
    mask = torch.arange(k.shape[2]) < lengths[:, None]
    return F.silu(q @ k.mT) * mask[:, None, None] @ v


@fuse(**SELF, lengths="count: b", targets="count: b")
def mask_of_targets_and_context(q, k, v, lengths, targets):
    """As a production recommender has it: causal, targets see themselves, a prefix sees all."""
    n = q.shape[2]
    ids = torch.arange(n).expand(q.shape[0], n) - 1
    ids = torch.clamp(ids, min=0)
    last = (lengths - targets).clamp(min=1).view(-1, 1)
    ids = torch.clamp(ids, max=last)
    rows, columns = ids.view(-1, n, 1), ids.view(-1, 1, n)
    mask = torch.eye(n, dtype=torch.bool).unsqueeze(0)
    mask = torch.logical_or(mask, (rows - columns) > 0)
    mask = torch.logical_or(mask, torch.logical_and(rows == 0, columns < last.unsqueeze(-1)))
    return F.silu(q @ k.mT) * mask.unsqueeze(1) @ v


@fuse(**HEADS, mask="bool: n m")
def mask_filled_in_place(q, k, v, mask):
    p = F.silu(q @ k.mT)
    p.masked_fill_(mask, 0)
    return p @ v


@fuse(**HEADS, ids="int: m", own="int: n")
def mask_of_segments(q, k, v, ids, own):
    return F.silu(q @ k.mT) * (own[:, None] == ids) @ v


# Masks before it


@fuse(**HEADS, mask="bool: b 1 n m")
def premask_fill_zero(q, k, v, mask):
    return torch.sigmoid((q @ k.mT).masked_fill(mask, 0)) @ v


@fuse(**HEADS, mask="bool: n m")
def premask_fill_1e4(q, k, v, mask):
    return F.relu((q @ k.mT).masked_fill(mask, -1e4)) @ v


@fuse(**HEADS, mask="bool: n m")
def premask_fill_leaky(q, k, v, mask):
    return F.leaky_relu((q @ k.mT).masked_fill(mask, -1e4)) @ v


@fuse(**HEADS, mask="bool: n m")
def premask_fill_30(q, k, v, mask):
    return F.silu(torch.where(mask, q @ k.mT, -30.0)) @ v


@fuse(**HEADS, mask="bool: n m")
def premask_fill_finfo_min(q, k, v, mask):
    s = q @ k.mT
    return torch.sigmoid(s.masked_fill(~mask, -torch.finfo(s.dtype).max)) @ v


@fuse(**HEADS, mask="zero_one: b 1 1 m")
def premask_additive(q, k, v, mask):
    return torch.sigmoid(q @ k.mT + (1.0 - mask) * -1e9) @ v


@fuse(**HEADS, before="bool: n m", after="zero_one: b 1 n m")
def mask_before_and_after(q, k, v, before, after):
    return F.silu((q @ k.mT).masked_fill(before, -1e4)) * after @ v


# What does nothing, or only rounds


@fuse(**HEADS)
def dropout_of_zero(q, k, v):
    return F.dropout(F.silu(q @ k.mT), 0.0) @ v


@fuse(**HEADS)
def dropout_in_eval(q, k, v):
    return F.dropout(F.silu(q @ k.mT), 0.4, training=False) @ v


@fuse(**HEADS)
def clones_and_contiguous(q, k, v):
    return F.silu((q @ k.mT).clone()).contiguous() @ v.contiguous()


@fuse(**HEADS)
def casts_to_float_and_back(q, k, v):
    return (
        F.silu((q @ k.mT).float()).to(q.dtype) @ v
        if q.dtype != torch.float64
        else F.silu(q @ k.mT) @ v
    )


@fuse(**HEADS)
def casts_to_own_type(q, k, v):
    return F.silu((q @ k.mT).to(q.dtype)).type_as(v).type(v.dtype) @ v


@fuse(**HEADS)
def dead_uses_of_scores(q, k, v):
    s = q @ k.mT
    unused = s.clone()
    unused = s.sum()  # noqa: F841
    return F.silu(s) @ v


@fuse(**HEADS, gate="b h n e")
def gated_and_normed_output(q, k, v, gate):
    return F.layer_norm(F.silu(q @ k.mT) @ v, (6,)) * gate


@either(**HEADS)
def multiplied_by_its_own_constant(q, k, v):
    return (F.silu(q @ k.mT) * torch.tensor([0.5, 1.0, 2.0], dtype=q.dtype).view(3, 1, 1)) @ v


@fuse(**HEADS, other="b h n m")
def gated_by_a_tensor(q, k, v, other):
    return (F.silu(q @ k.mT) * torch.sigmoid(other)) @ v


@fuse(**HEADS, kinds="bool: h 1 1")
def activation_per_head(q, k, v, kinds):
    s = q @ k.mT
    return torch.where(kinds, F.silu(s), F.gelu(s, approximate="tanh")) @ v
