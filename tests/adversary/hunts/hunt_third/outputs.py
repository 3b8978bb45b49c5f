"""Several outputs, factories, numbers, closures, known forms of attention."""

import torch
import torch.nn.functional as F

from ..rows import (
    D64,
    INF,
    Programs,
    ikv,
    nothing,
    of_scores,
    plus,
    scored,
    square,
    values,
    weighted,
)

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


@case(ikv(), of=of_scores)
def is_grad_of_scores_scaled(s):
    s = s * s.detach().sigmoid() / s.detach().abs().clamp_min(1)
    return s


@case(square())
def output_feeds_everything(q, k, v):
    for _ in range(3):
        q = torch.sigmoid(q @ k.mT) @ v
        v = torch.tanh(k @ q.mT) @ v
    return q


@case(square())
def scores_from_last_layer(q, k, v):
    s = q @ k.mT
    o = F.relu(s) @ v
    s2 = o @ k.mT + s
    return F.relu(s2) @ v


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


@case(plus(ikv(), values(2.0, dtype=D64)))
def number_by_item_then_written(q, k, v, scale):
    x = scale.item()
    s = q @ k.mT
    scale.mul_(3)
    return F.silu(s * x) @ v


@case(ikv())
def closure_and_partial(q, k, v):
    import functools

    def act(slope, s):
        return torch.where(s > 0, s, slope * s)

    return functools.partial(act, 0.1)(q @ k.mT) @ v


@case(ikv(), of=of_scores)
def gradient_scaled(s):
    s = s.detach() * 0.9 + s * 0.1
    return F.silu(s)


table(
    nothing,
    product_of_scores=(lambda q, k, v: F.relu(q @ k.mT) @ F.relu(k @ v.mT), square(n=4)),
    associativity=(lambda q, k, v: q @ F.relu(k.mT @ v), square(n=4)),
    python_numbers=(
        lambda q, k, v, scale, n: F.silu(q @ k.mT * scale + n) @ v / n,
        ikv(),
        lambda: (0.5,),
        lambda: (3,),
    ),
    sum_of_two_attentions=(lambda q, k, v: F.silu(q @ k.mT) @ v + F.relu(q @ k.mT) @ v, ikv()),
    difference_of_weights=(
        lambda q, k, v: (F.silu(q @ k.mT) - 0.5 * F.relu(k @ q.mT).mT) @ v,
        ikv(),
    ),
    scores_as_values=(scored(lambda s, v: F.relu(s) @ s), square(n=4)),
    power_of_weights=(weighted(F.relu)(lambda w, v: w @ (w @ v)), square(n=4)),
)


@case(square())
def retention(q, k, v):
    n = q.shape[2]
    i, j = torch.arange(n)[:, None], torch.arange(n)
    decay = torch.where(i >= j, 0.9 ** (i - j).double(), 0.0)
    return (q @ k.mT * decay) @ v


@case(square())
def retention_learned(q, k, v):
    n = q.shape[2]
    i, j = torch.arange(n)[:, None], torch.arange(n)
    gamma = torch.sigmoid(v.mean((0, 2, 3)))[:, None, None]
    return (q @ k.mT * torch.where(i >= j, gamma ** (i - j), 0.0)) @ v


@case(square())
def retention_log_cumsum(q, k, v):
    g = F.logsigmoid(v.mean(-1)).cumsum(-1)
    d = (g[..., :, None] - g[..., None, :]).tril().exp().tril()
    return (q @ k.mT * d) @ v


@case(square())
def retention_log_masked(q, k, v):
    g = F.logsigmoid(v.mean(-1)).cumsum(-1)
    m = torch.ones(6, 6, dtype=torch.bool).tril()
    d = (g[..., :, None] - g[..., None, :]).masked_fill(~m, -INF).exp()
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
    second_product_sliced=lambda q, k, v: (F.relu(q @ k.mT) @ v)[:, :, 1:3],
    batch_of_scores_sliced=lambda q, k, v: F.relu(q @ k.mT)[1:] @ v[1:],
    head_of_scores_selected=lambda q, k, v: F.relu(q @ k.mT)[:, 0] @ v[:, 1],
    head_of_scores_expanded=lambda q, k, v: F.relu(q[:, :1] @ k[:, :1].mT).expand(2, 2, 6, 6) @ v,
    weights_expanded_over_new_dim=lambda q, k, v: (
        F.relu(q @ k.mT)[:, :, None].expand(2, 2, 3, 6, 6) @ v[:, :, None]
    ),
    weights_repeated_heads=lambda q, k, v: F.relu(q[:, :1] @ k[:, :1].mT).repeat(1, 2, 1, 1) @ v,
    weights_interleaved_heads=lambda q, k, v: (
        F.relu(q[:, :1] @ k[:, :1].mT).repeat_interleave(2, 1) @ v
    ),
    gau=lambda q, k, v: v * ((F.relu(q @ k.mT / 6) ** 2) @ v),
    normalised_by_row_sum_after=weighted(F.relu)(
        lambda w, v: (w @ v) / (w.sum(-1, keepdim=True) + 1)
    ),
)


@case(square())
def hstu(q, k, v):
    s = F.silu(torch.einsum("bhid,bhjd->bhij", q, k)) / 6
    s = s.masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), 0)
    o = torch.einsum("bhij,bhjd->bihd", s, v).reshape(2, 6, 8)
    return F.layer_norm(o, (8,)) * q.transpose(1, 2).reshape(2, 6, 8)


table(
    nothing,
    of=of_scores,
    factory_wants_gradient=(lambda s: F.silu(s + s.new_zeros(7, requires_grad=True)), ikv()),
    number_by_item=(lambda s, scale: F.silu(s * scale.item()), ikv(), values(2.0, dtype=D64)),
    ternary_quantisation=(
        lambda s: (
            torch.where(s > 1, 1.0, torch.where(s < -1, -1.0, 0.0)).to(s.dtype) + s - s.detach()
        ),
        ikv(),
    ),
    sparsemax_like=(
        lambda s: F.relu(s - ((s.detach().sort(-1).values.cumsum(-1)[..., -1:] - 1) / 6)),
        square(),
    ),
)


@case(square(), of=weighted(F.relu))
def normalised_by_ones_column(w, v):
    o = w @ torch.cat([v, torch.ones_like(v[..., :1])], -1)
    return o[..., :-1] / (o[..., -1:] + 1)


@case(square())
def window_by_roll(q, k, v):
    out = 0
    for shift in (0, 1, 2):
        out = out + F.relu((q * k.roll(shift, 2)).sum(-1, keepdim=True)) * v.roll(shift, 2)
    return out


@case(square())
def output_written_into_query(q, k, v):
    p = q.clone()
    p.copy_(F.relu(q @ k.mT) @ v)
    return p


@case(square(grad=False))
def output_overwrites_the_input(q, k, v):
    q.copy_(F.sigmoid(q @ k.mT) @ v)
    return q * 1


@case(square(grad=False))
def out_argument(q, k, v):
    out = torch.empty(2, 2, 6, 4, dtype=D64)
    torch.matmul(F.sigmoid(q @ k.mT), v, out=out)
    return out


@case(square(grad=False))
def out_argument_of_scores(q, k, v):
    out = torch.empty(2, 2, 6, 6, dtype=D64)
    torch.matmul(q, k.mT, out=out)
    torch.sigmoid(out, out=out)
    return out @ v


@case(square(grad=False))
def out_is_the_value(q, k, v):
    torch.matmul(F.sigmoid(q @ k.mT), v.clone(), out=v)
    return v + 0


@case(lambda: (torch.randn(2, 2, 6, 4, dtype=D64),) * 3)
def one_input_given_thrice(q, k, v):
    q.mul_(2)
    return F.sigmoid(q @ k.mT) @ v


def views_of_one():
    x = torch.randn(3, 2, 2, 6, 4, dtype=D64)
    return x, x[0], x[1]


@case(views_of_one)
def inputs_are_views_of_one(x, q, k):
    s = F.sigmoid(q @ k.mT)
    x[2].mul_(2)
    return s @ x[2]


@case(views_of_one)
def inputs_are_views_of_one_written(x, q, k):
    s = q @ k.mT
    x.mul_(2)
    return F.sigmoid(s) @ k


table(
    ikv(),
    scores_returned=scored(lambda s, v: (F.silu(s) @ v, s)),
    weights_returned=weighted(F.silu)(lambda w, v: (w @ v, w.detach())),
    shape_of_scores_returned=scored(
        lambda s, v: (F.silu(s) @ v, s.shape, s.dtype == torch.float64, s.numel(), s.requires_grad)
    ),
    zeros_like_scores_returned=scored(
        lambda s, v: (F.silu(s) @ v, torch.zeros_like(s), s.new_ones(3), torch.empty_like(s).shape)
    ),
    entropy_of_weights=weighted(torch.sigmoid)(lambda w, v: (w @ v, -(w * w.log()).sum())),
    two_values_one_weight=weighted(torch.sigmoid)(lambda w, v: w @ v + (w @ v.flip(-1)) * 2),
    factory_of_scores=scored(
        lambda s, v: (F.silu(s) @ v, s.new_zeros(3), s.new_full((2, 2), 4), s.new_ones(s.shape))
    ),
    factory_of_integer_dtype=scored(
        lambda s, v: (F.silu(s) @ v, s.new_zeros(3, dtype=torch.int32), s.new_tensor([1.0, 2.0]))
    ),
    gumbel_like_hard=weighted(torch.sigmoid)(
        lambda s, v: ((s > 0.5).to(s.dtype) - s.detach() + s) @ v
    ),
    one_scores_two_attentions=scored(lambda s, v: F.silu(s) @ v - F.relu(-s) @ v),
)
