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
long_rows = normal(*[(1, 1, 300, 4)] * 3, dtype=torch.float32)


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
    milliseconds_wrap=(
        lambda s, times: torch.where(
            ((times[:, :, None] - times[:, None, :]).int() >= 0)[:, None], F.silu(s), 0.0
        ),
        qkv,
        lambda: (torch.arange(8).repeat(2, 1) * 864_000_000,),
    ),
    maximum_with_nan=(lambda s, bound: torch.maximum(s, bound), with_nan_bound),
)
