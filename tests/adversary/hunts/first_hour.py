"""The first hunt: an hour of hostile reading. One function for each fault that it found."""

import torch
import torch.nn.functional as F

from .rows import Programs, leaves, nothing, of_scores, scored, weighted

CASES = Programs()
case, table = CASES.case, CASES.table


B, H, N, M, D = 2, 2, 8, 8, 4


def qkv(dtype=torch.float32, grad=True):
    return leaves((B, H, N, D), (B, H, M, D), (B, H, M, D), dtype=dtype, grad=grad)


def half():
    return qkv(torch.bfloat16)


def half_and_padding():
    return (*qkv(torch.bfloat16), torch.rand(B, H, M) > 0.5)


def with_causal():
    return (*qkv(), torch.ones(N, M, dtype=torch.bool).triu(1))


def with_lengths():
    return (*qkv(), torch.tensor([3, 7]))


def with_frozen_keys():
    (x,), kv = leaves((B, H, N, D)), leaves((B, H, M, D), (B, H, M, D), grad=False)
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
    return leaves((1, 1, 300, D), (1, 1, 300, D), (1, 1, 300, D))


def count_up(q, k, v, lengths):
    lengths.add_(3)


@case(half)
def write_on_a_cast(q, k, v):
    wide = q.float()
    wide.mul_(D**-0.5)
    return F.silu(wide @ k.float().mT) @ v.float()


@case(half_and_padding)
def padding_on_a_cast(q, k, v, padding):
    wide = v.float()
    wide[padding] = 0
    return F.silu(q.float() @ k.float().mT) @ wide


@case(with_causal, of=scored)
def write_to_data_of_scores(scores, v, causal):
    scores.data.masked_fill_(causal, 0.0)
    return F.silu(scores) @ v


@case(qkv, of=weighted(F.silu))
def detach_in_place(weights, v):
    weights.detach_()
    return weights @ v


@case(with_lengths)
def lengths_counted_up(q, k, v, lengths):
    mask = torch.arange(M) < lengths[:, None, None, None]
    out = torch.where(mask, F.silu(q @ k.mT), 0.0) @ v
    lengths.add_(1)
    return out


@case(with_frozen_keys)
def residual_in_place(x, k, v):
    hidden = x * 1.0
    hidden += F.relu(hidden @ k.mT) @ v
    return hidden


@case(with_number)
def number_then_write(q, k, v, c):
    x = c.item()
    c.add_(5)
    return F.silu(q @ k.mT * x) @ v


@case(long_rows)
def narrow_arange(q, k, v):
    i = torch.arange(300, dtype=torch.int64).to(torch.uint8)
    return torch.where(i[:, None] >= i, F.silu(q @ k.mT), 0.0) @ v


@case(long_rows)
def narrow_arange_directly(q, k, v):
    i = torch.arange(300, dtype=torch.uint8)
    return torch.where(i[:, None] >= i, F.silu(q @ k.mT), 0.0) @ v


table(
    nothing,
    of=of_scores,
    lerp_with_minus_large=(
        lambda s, mask: F.relu(torch.lerp(torch.full_like(s, -1e9), s, mask)),
        with_float_mask,
    ),
    number_has_no_gradient=(lambda s, c: F.silu(s * c.item()), with_learned_number),
    milliseconds_wrap=(
        lambda s, times: torch.where(
            ((times[:, :, None] - times[:, None, :]).int() >= 0)[:, None], F.silu(s), 0.0
        ),
        with_milliseconds,
    ),
    constants_that_overflow=(lambda s: F.silu(s * 1e38 * 1e-38), large_query),
    maximum_with_nan=(lambda s, bound: torch.maximum(s, bound), with_nan_bound),
)


@case(qkv, of=scored)
def dead_attention_from_scores(scores, v):
    seen = torch.tanh(scores)
    unused = F.relu(seen.mT @ seen) @ v  # noqa: F841
    return F.silu(scores) @ v


@case(with_lengths, count_up)
def masked_by_lengths(q, k, v, lengths):
    mask = torch.arange(M) < lengths[:, None, None, None]
    return torch.where(mask, F.silu(q @ k.mT), 0.0) @ v
