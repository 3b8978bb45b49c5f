"""The first hunt: an hour of hostile reading. One function for each fault that it found."""

import torch
import torch.nn.functional as F

from .rows import Programs, leaves, normal, nothing, of_scores, plus, scored, values, weighted

CASES = Programs()
case, table = CASES.case, CASES.table


def qkv(dtype=torch.float32, grad=True):
    return leaves(*[(2, 2, 8, 4)] * 3, dtype=dtype, grad=grad)


def with_nan_bound():
    bound = torch.randn(8, 8)
    bound[0, 0] = float("nan")
    return (*qkv(), bound.requires_grad_())


half = lambda: qkv(torch.bfloat16)
frozen = lambda: qkv(grad=False)
lengths_of = plus(qkv, values([3, 7]))
long_rows = normal(*[(1, 1, 300, 4)] * 3, dtype=torch.float32)
first_learns = lambda: (qkv()[0], *frozen()[1:])
large_query = lambda: ((frozen()[0] * 100).requires_grad_(), *qkv()[1:])


@case(half)
def write_on_a_cast(q, k, v):
    wide = q.float()
    wide.mul_(4**-0.5)
    return F.silu(wide @ k.float().mT) @ v.float()


@case(plus(half, lambda: (torch.rand(2, 2, 8) > 0.5,)))
def padding_on_a_cast(q, k, v, padding):
    wide = v.float()
    wide[padding] = 0
    return F.silu(q.float() @ k.float().mT) @ wide


@case(plus(qkv, lambda: (torch.ones(8, 8, dtype=torch.bool).triu(1),)), of=scored)
def write_to_data_of_scores(scores, v, causal):
    scores.data.masked_fill_(causal, 0.0)
    return F.silu(scores) @ v


@case(qkv, of=weighted(F.silu))
def detach_in_place(weights, v):
    weights.detach_()
    return weights @ v


masked = of_scores(
    lambda s, lengths: torch.where(torch.arange(8) < lengths[:, None, None, None], F.silu(s), 0.0)
)


@case(lengths_of)
def lengths_counted_up(q, k, v, lengths):
    out = masked(q, k, v, lengths)
    lengths.add_(1)
    return out


CASES.add("masked_by_lengths", masked, lengths_of, lambda q, k, v, lengths: lengths.add_(3))


@case(first_learns)
def residual_in_place(x, k, v):
    hidden = x * 1.0
    hidden += F.relu(hidden @ k.mT) @ v
    return hidden


@case(plus(frozen, values(2.0)))
def number_then_write(q, k, v, c):
    x = c.item()
    c.add_(5)
    return F.silu(q @ k.mT * x) @ v


def before(i):
    """A mask by integers that wrap."""
    return of_scores(lambda s: torch.where(i()[:, None] >= i(), F.silu(s), 0.0))


table(
    long_rows,
    of=before,
    narrow_arange=lambda: torch.arange(300, dtype=torch.int64).to(torch.uint8),
    narrow_arange_directly=lambda: torch.arange(300, dtype=torch.uint8),
)


table(
    nothing,
    of=of_scores,
    lerp_with_minus_large=(
        lambda s, mask: F.relu(torch.lerp(torch.full_like(s, -1e9), s, mask)),
        qkv,
        lambda: ((torch.rand(8, 8) > 0.5).float(),),
    ),
    number_has_no_gradient=(lambda s, c: F.silu(s * c.item()), qkv, values(2.0, grad=True)),
    milliseconds_wrap=(
        lambda s, times: torch.where(
            ((times[:, :, None] - times[:, None, :]).int() >= 0)[:, None], F.silu(s), 0.0
        ),
        qkv,
        lambda: (torch.arange(8).repeat(2, 1) * 864_000_000,),
    ),
    constants_that_overflow=(lambda s: F.silu(s * 1e38 * 1e-38), large_query),
    maximum_with_nan=(lambda s, bound: torch.maximum(s, bound), with_nan_bound),
)


@case(qkv, of=scored)
def dead_attention_from_scores(scores, v):
    seen = torch.tanh(scores)
    unused = F.relu(seen.mT @ seen) @ v  # noqa: F841
    return F.silu(scores) @ v
