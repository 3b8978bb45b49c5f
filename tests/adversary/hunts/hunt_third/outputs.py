"""Several outputs, factories, numbers, closures, known forms of attention."""

import torch
import torch.nn.functional as F

from ..rows import (
    Programs,
    ikv,
    nothing,
    of_scores,
    scored,
    square,
    weighted,
)

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


@case(ikv(), of=scored)
def factory_used_inside_and_returned(s, v):
    m = s.new_ones(5, 7).tril()
    one = s.new_ones(())
    return (F.silu(s) * m + one) @ v, m, one


@case(ikv(), of=scored)
def factory_written_inside(s, v):
    m = s.new_zeros(5, 7)
    m += torch.arange(7)
    return (F.silu(s) * m) @ v, m


@case(ikv(), of=scored)
def buffer_from_scores_shape(s, v):
    mask = torch.zeros(s.shape[-2:], dtype=torch.bool)
    mask[1:3, 2:] = True
    return F.silu(s).masked_fill(mask, 0) @ v, mask


@case(ikv())
def closure_and_partial(q, k, v):
    import functools

    def act(slope, s):
        return torch.where(s > 0, s, slope * s)

    return functools.partial(act, 0.1)(q @ k.mT) @ v


table(
    nothing,
    python_numbers=(
        lambda q, k, v, scale, n: F.silu(q @ k.mT * scale + n) @ v / n,
        ikv(),
        lambda: (0.5,),
        lambda: (3,),
    ),
    difference_of_weights=(
        lambda q, k, v: (F.silu(q @ k.mT) - 0.5 * F.relu(k @ q.mT).mT) @ v,
        ikv(),
    ),
    scores_as_values=(scored(lambda s, v: F.relu(s) @ s), square(n=4)),
)


@case(square())
def retention(q, k, v):
    n = q.shape[2]
    i, j = torch.arange(n)[:, None], torch.arange(n)
    decay = torch.where(i >= j, 0.9 ** (i - j).double(), 0.0)
    return (q @ k.mT * decay) @ v


@case(square())
def retention_log_cumsum(q, k, v):
    g = F.logsigmoid(v.mean(-1)).cumsum(-1)
    d = (g[..., :, None] - g[..., None, :]).tril().exp().tril()
    return (q @ k.mT * d) @ v


table(
    square(),
    output_feeds_mask_of_the_next=lambda q, k, v: (
        (F.relu(q @ k.mT) * ((torch.sigmoid(q @ k.mT) @ v).sum(-1, keepdim=True) > 0)) @ v
    ),
    rectified_linear_recurrence=lambda q, k, v: torch.linalg.solve_triangular(
        torch.eye(6, dtype=q.dtype) + (q @ k.mT).tril(-1), v, upper=False
    ),
    delta_rule=lambda q, k, v: (q @ k.mT).tril() @ (v - (k @ k.mT).tril(-1) @ v),
    linear_attention_two_ways=lambda q, k, v: (q @ k.mT).tril() @ v + q @ (k.mT @ v),
    second_product_by_linear=lambda q, k, v: F.linear(F.relu(q @ k.mT)[0, 0], v[0, 0].T),
    head_of_scores_expanded=lambda q, k, v: F.relu(q[:, :1] @ k[:, :1].mT).expand(2, 2, 6, 6) @ v,
    weights_repeated_heads=lambda q, k, v: F.relu(q[:, :1] @ k[:, :1].mT).repeat(1, 2, 1, 1) @ v,
    weights_interleaved_heads=lambda q, k, v: (
        F.relu(q[:, :1] @ k[:, :1].mT).repeat_interleave(2, 1) @ v
    ),
    gau=lambda q, k, v: v * ((F.relu(q @ k.mT / 6) ** 2) @ v),
    normalised_by_row_sum_after=weighted(F.relu)(
        lambda w, v: (w @ v) / (w.sum(-1, keepdim=True) + 1)
    ),
)


table(
    nothing,
    of=of_scores,
    factory_wants_gradient=(lambda s: F.silu(s + s.new_zeros(7, requires_grad=True)), ikv()),
    ternary_quantisation=(
        lambda s: (
            torch.where(s > 1, 1.0, torch.where(s < -1, -1.0, 0.0)).to(s.dtype) + s - s.detach()
        ),
        ikv(),
    ),
    is_grad_of_scores_scaled=(
        lambda s: s * s.detach().sigmoid() / s.detach().abs().clamp_min(1),
        ikv(),
    ),
    gradient_scaled=(lambda s: F.silu(s.detach() * 0.9 + s * 0.1), ikv()),
    sparsemax_like=(
        lambda s: F.relu(s - ((s.detach().sort(-1).values.cumsum(-1)[..., -1:] - 1) / 6)),
        square(),
    ),
)


@case(square())
def window_by_roll(q, k, v):
    out = 0
    for shift in (0, 1, 2):
        out = out + F.relu((q * k.roll(shift, 2)).sum(-1, keepdim=True)) * v.roll(shift, 2)
    return out


@case(square(grad=False))
def out_is_the_value(q, k, v):
    torch.matmul(F.sigmoid(q @ k.mT), v.clone(), out=v)
    return v + 0


table(
    ikv(),
    zeros_like_scores_returned=scored(
        lambda s, v: (F.silu(s) @ v, torch.zeros_like(s), s.new_ones(3), torch.empty_like(s).shape)
    ),
    entropy_of_weights=weighted(torch.sigmoid)(lambda w, v: (w @ v, -(w * w.log()).sum())),
    factory_of_scores=scored(
        lambda s, v: (F.silu(s) @ v, s.new_zeros(3), s.new_full((2, 2), 4), s.new_ones(s.shape))
    ),
    gumbel_like_hard=weighted(torch.sigmoid)(
        lambda s, v: ((s > 0.5).to(s.dtype) - s.detach() + s) @ v
    ),
    one_scores_two_attentions=scored(lambda s, v: F.silu(s) @ v - F.relu(-s) @ v),
)
