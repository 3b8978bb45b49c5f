"""The first hunt: an hour of hostile reading. One function for each fault that it found."""

import torch
import torch.nn.functional as F

B, H, N, M, D = 2, 2, 8, 8, 4


def _tensors(*shapes, dtype=torch.float32, grad=True):
    return tuple(torch.randn(*shape, dtype=dtype, requires_grad=grad) for shape in shapes)


def qkv(dtype=torch.float32, grad=True):
    return _tensors((B, H, N, D), (B, H, M, D), (B, H, M, D), dtype=dtype, grad=grad)


def half():
    return qkv(torch.bfloat16)


def half_and_padding():
    return (*qkv(torch.bfloat16), torch.rand(B, H, M) > 0.5)


def with_causal():
    return (*qkv(), torch.ones(N, M, dtype=torch.bool).triu(1))


def with_lengths():
    return (*qkv(), torch.tensor([3, 7]))


def with_frozen_keys():
    (x,), kv = _tensors((B, H, N, D)), _tensors((B, H, M, D), (B, H, M, D), grad=False)
    return (x, *kv)


def with_float_mask():
    return (*qkv(), (torch.rand(N, M) > 0.5).float())


def with_number():
    return (*qkv(grad=False), torch.tensor(2.0))


def with_learned_number():
    return (*qkv(), torch.tensor(2.0, requires_grad=True))


def with_milliseconds():
    return (*qkv(), torch.arange(N).repeat(B, 1) * 864_000_000)


def large_query():
    q, k, v = qkv()
    return ((q.detach() * 100).requires_grad_(), k, v)


def with_nan_bound():
    bound = torch.randn(N, M)
    bound[0, 0] = float("nan")
    return (*qkv(), bound.requires_grad_())


def long_rows():
    return _tensors((1, 1, 300, D), (1, 1, 300, D), (1, 1, 300, D))


def write_on_a_cast(q, k, v):
    wide = q.float()
    wide.mul_(D**-0.5)
    return F.silu(wide @ k.float().mT) @ v.float()


def padding_on_a_cast(q, k, v, padding):
    wide = v.float()
    wide[padding] = 0
    return F.silu(q.float() @ k.float().mT) @ wide


def write_to_data_of_scores(q, k, v, causal):
    scores = q @ k.mT
    scores.data.masked_fill_(causal, 0.0)
    return F.silu(scores) @ v


def detach_in_place(q, k, v):
    weights = F.silu(q @ k.mT)
    weights.detach_()
    return weights @ v


def lengths_counted_up(q, k, v, lengths):
    mask = torch.arange(M) < lengths[:, None, None, None]
    out = torch.where(mask, F.silu(q @ k.mT), 0.0) @ v
    lengths.add_(1)
    return out


def residual_in_place(x, k, v):
    hidden = x * 1.0
    hidden += F.relu(hidden @ k.mT) @ v
    return hidden


def lerp_with_minus_large(q, k, v, mask):
    scores = q @ k.mT
    return F.relu(torch.lerp(torch.full_like(scores, -1e9), scores, mask)) @ v


def number_then_write(q, k, v, c):
    x = c.item()
    c.add_(5)
    return F.silu(q @ k.mT * x) @ v


def number_has_no_gradient(q, k, v, c):
    return F.silu(q @ k.mT * c.item()) @ v


def milliseconds_wrap(q, k, v, times):
    away = (times[:, :, None] - times[:, None, :]).int()
    return torch.where((away >= 0)[:, None], F.silu(q @ k.mT), 0.0) @ v


def narrow_arange(q, k, v):
    i = torch.arange(300, dtype=torch.int64).to(torch.uint8)
    return torch.where(i[:, None] >= i, F.silu(q @ k.mT), 0.0) @ v


def narrow_arange_directly(q, k, v):
    i = torch.arange(300, dtype=torch.uint8)
    return torch.where(i[:, None] >= i, F.silu(q @ k.mT), 0.0) @ v


def constants_that_overflow(q, k, v):
    return F.silu((q @ k.mT) * 1e38 * 1e-38) @ v


def maximum_with_nan(q, k, v, bound):
    return torch.maximum(q @ k.mT, bound) @ v


def dead_attention_from_scores(q, k, v):
    scores = q @ k.mT
    seen = torch.tanh(scores)
    unused = F.relu(seen.mT @ seen) @ v  # noqa: F841
    return F.silu(scores) @ v


def masked_by_lengths(q, k, v, lengths):
    mask = torch.arange(M) < lengths[:, None, None, None]
    return torch.where(mask, F.silu(q @ k.mT), 0.0) @ v


def count_up(q, k, v, lengths):
    lengths.add_(3)


CASES = [
    (write_on_a_cast, half),
    (padding_on_a_cast, half_and_padding),
    (write_to_data_of_scores, with_causal),
    (detach_in_place, qkv),
    (lengths_counted_up, with_lengths),
    (residual_in_place, with_frozen_keys),
    (lerp_with_minus_large, with_float_mask),
    (number_then_write, with_number),
    (number_has_no_gradient, with_learned_number),
    (milliseconds_wrap, with_milliseconds),
    (narrow_arange, long_rows),
    (narrow_arange_directly, long_rows),
    (constants_that_overflow, large_query),
    (maximum_with_nan, with_nan_bound),
    (dead_attention_from_scores, qkv),
    ((masked_by_lengths, count_up), with_lengths),
]
