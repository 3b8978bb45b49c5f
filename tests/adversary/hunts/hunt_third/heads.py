"""Groups of heads, heads folded into the batch, and biases for either."""

import torch
import torch.nn.functional as F

from ..rows import Programs, normal, nothing, of_scores, plus, qkv, randn, square

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


@case(normal((2, 6, 5, 4), (2, 2, 7, 4), (2, 2, 7, 3)))
def gqa_repeat_interleave(q, k, v):
    k, v = (x.repeat_interleave(3, dim=1) for x in (k, v))
    return F.relu(q @ k.mT) @ v


@case(normal((2, 6, 5, 4), (2, 2, 7, 4), (2, 2, 7, 3)))
def gqa_repeat(q, k, v):
    k, v = (x.repeat(1, 3, 1, 1) for x in (k, v))
    return F.relu(q @ k.mT) @ v


@case(normal((2, 6, 5, 4), (2, 2, 7, 4), (2, 2, 7, 3)))
def gqa_expand_mixed(q, k, v):
    k = k[:, :, None].expand(2, 2, 3, 7, 4).reshape(2, 6, 7, 4)
    v = v[:, None].expand(2, 3, 2, 7, 3).reshape(2, 6, 7, 3)
    return F.relu(q @ k.mT) @ v


@case(normal((2, 6, 5, 4), (2, 2, 7, 4), (2, 3, 7, 3)))
def gqa_different_groups(q, k, v):
    k = k.repeat_interleave(3, 1)
    v = v.repeat_interleave(2, 1)
    return F.relu(q @ k.mT) @ v


@case(normal((2, 6, 5, 4), (2, 2, 7, 4), (2, 2, 7, 3)))
def gqa_by_rows(q, k, v):
    q = q.view(2, 2, 3, 5, 4).reshape(2, 2, 15, 4)
    s = torch.sigmoid(q @ k.mT)
    return (s @ v).view(2, 2, 3, 5, 3).flatten(1, 2)


@case(normal((2, 6, 5, 4), (2, 2, 7, 4), (2, 2, 7, 3), (5, 7)))
def gqa_by_rows_with_bias(q, k, v, bias):
    q = q.view(2, 2, 3, 5, 4).reshape(2, 2, 15, 4)
    s = torch.sigmoid((q @ k.mT).view(2, 2, 3, 5, 7) + bias).view(2, 2, 15, 7)
    return (s @ v).view(2, 2, 3, 5, 3).flatten(1, 2)


@case(normal((2, 6, 5, 4), (2, 2, 7, 4), (2, 2, 7, 3)))
def gqa_by_interleaved_rows_causal(q, k, v):
    q = q.view(2, 2, 3, 5, 4).transpose(2, 3).reshape(2, 2, 15, 4)
    s = torch.sigmoid(q @ k.mT)
    i = torch.arange(15) // 3
    s = s * (torch.arange(7) <= i[:, None])
    return (s @ v).view(2, 2, 5, 3, 3).transpose(2, 3).flatten(1, 2)


table(
    nothing,
    of=of_scores,
    heads_of_one=(F.relu, normal((2, 1, 5, 4), (1, 3, 7, 4), (2, 3, 7, 3))),
    bias_adds_a_dim=(
        lambda s, c: F.silu(s + c),
        normal((2, 5, 4), (2, 7, 4), (2, 7, 3), (3, 1, 1, 1)),
    ),
    bias_symmetrised=(
        lambda s, bias: F.silu(s + bias.T * bias),
        normal((2, 2, 6, 4), (2, 2, 6, 4), (2, 2, 6, 3), (6, 6)),
    ),
    bias_stride_zero=(
        lambda s, bias: F.silu(s + bias),
        qkv(),
        lambda: (randn(1, 1).detach().expand(5, 7).requires_grad_(),),
    ),
    heads_swapped_for_rows=(lambda s: F.relu(s).transpose(1, 2), square(h=6)),
)


table(
    qkv(),
    stack_heads_loop=lambda q, k, v: torch.stack(
        [F.silu(q[:, i] @ k[:, i].mT) @ v[:, i] for i in range(2)], 1
    ),
    stack_heads_swapped_v=lambda q, k, v: torch.stack(
        [F.silu(q[:, i] @ k[:, i].mT) @ v[:, 1 - i] for i in range(2)], 1
    ),
    mean_over_heads_after=lambda q, k, v: (F.silu(q @ k.mT) @ v).mean(1),
    stack_scores_then_one_product=lambda q, k, v: (
        F.silu(torch.stack([q[:, i] @ k[:, i].mT * (i + 1) for i in range(2)], 1)) @ v
    ),
    stack_scores_swapped=lambda q, k, v: (
        F.silu(torch.stack([q[:, 1 - i] @ k[:, 1 - i].mT for i in range(2)], 1)) @ v
    ),
)


@case(qkv())
def stack_scores_acts(q, k, v):
    acts = [F.silu, torch.relu]
    s = torch.stack([acts[i](q[:, i] @ k[:, i].mT) for i in range(2)], 1)
    return s @ v


@case(qkv())
def unbind_weights_stack_swapped(q, k, v):
    a, b = F.silu(q @ k.mT).unbind(1)
    return torch.stack([b, a], 1) @ v


table(
    qkv(),
    of=of_scores,
    mean_over_heads_before=lambda s: F.silu(s).mean(1, keepdim=True),
    many_biases=(
        lambda s, a, b, c, d: F.silu(s * b + a) * c + d,
        normal((2, 1, 5, 7), (1, 2, 1, 7), (5, 1), 7),
    ),
    bias_transposed=(lambda s, bias: F.silu(s + bias.T), normal((7, 5))),
    bias_as_strided_overlap=(lambda s, x: F.silu(s + x.as_strided((5, 7), (1, 2), 3)), normal(70)),
)


@case(plus(square(h=4, n=3), normal((2, 12))))
def mask_on_folded_heads(q, k, v, w):
    s = (q @ k.mT).permute(0, 2, 1, 3)  # b n h m
    s = s.reshape(2, 3, 12) * w[:, None]
    s = s.view(2, 3, 4, 3).permute(0, 2, 1, 3)
    return s.relu() @ v


table(
    nothing,
    talking_heads=(
        lambda q, k, v, w: F.silu(torch.einsum("bhij,hg->bgij", q @ k.mT, w)) @ v,
        plus(qkv(), normal((2, 2))),
    ),
    talking_heads_after=(
        lambda q, k, v, w: torch.einsum("bhij,hg->bgij", F.relu(q @ k.mT), w) @ v,
        plus(qkv(), normal((2, 2))),
    ),
    mask_on_swapped_axes=(
        lambda q, k, v, w: ((q @ k.mT).permute(0, 2, 1, 3) * w).permute(0, 2, 1, 3).relu() @ v,
        plus(square(h=4, n=3), normal((4, 3))),
    ),
    same_sizes_swapped_axis_bias=(
        lambda q, k, v, w: (
            (((q @ k.mT).transpose(-1, -2) + w).transpose(1, 2) * w)
            .transpose(1, 2)
            .transpose(-1, -2)
            .relu()
            @ v
        ),
        plus(square(h=3, n=3), normal(3)),
    ),
    batch_times_heads_repeat_bias=(
        lambda q, k, v, bias: (q @ k.mT + bias.repeat(2, 1, 1)).relu() @ v,
        normal((6, 5, 4), (6, 7, 4), (6, 7, 3), (3, 5, 7)),
    ),
    batch_times_heads_interleave_bias=(
        lambda q, k, v, bias: (q @ k.mT + bias.repeat_interleave(2, 0)).relu() @ v,
        normal((6, 5, 4), (6, 7, 4), (6, 7, 3), (3, 5, 7)),
    ),
    batch_times_heads_view_bias=(
        lambda q, k, v, bias: ((q @ k.mT).view(2, 3, 5, 7) + bias).view(6, 5, 7).relu() @ v,
        normal((6, 5, 4), (6, 7, 4), (6, 7, 3), (3, 5, 7)),
    ),
)


@case(normal((2, 5, 3, 4), (2, 7, 3, 4), (2, 7, 3, 4)))
def heads_last_linear(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.silu(F.linear(q[0, 0], k[0, 0])) @ v[0, 0]
