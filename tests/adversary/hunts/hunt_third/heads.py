"""Groups of heads, heads folded into the batch; what is done to query, key and value."""

import torch
import torch.nn.functional as F

from ..rows import D64, INF, Programs, normal, nothing, of_scores, plus, qkv, square

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


GROUPS = normal((2, 6, 5, 4), (2, 2, 7, 4), (2, 2, 7, 3))


@case(GROUPS)
def gqa_by_rows(q, k, v):
    q = q.view(2, 2, 3, 5, 4).reshape(2, 2, 15, 4)
    s = torch.sigmoid(q @ k.mT)
    return (s @ v).view(2, 2, 3, 5, 3).flatten(1, 2)


@case(GROUPS)
def gqa_by_interleaved_rows_causal(q, k, v):
    q = q.view(2, 2, 3, 5, 4).transpose(2, 3).reshape(2, 2, 15, 4)
    s = torch.sigmoid(q @ k.mT)
    i = torch.arange(15) // 3
    s = s * (torch.arange(7) <= i[:, None])
    return (s @ v).view(2, 2, 5, 3, 3).transpose(2, 3).flatten(1, 2)


table(
    nothing,
    of=of_scores,
    bias_adds_a_dim=(
        lambda s, c: F.silu(s + c),
        normal((2, 5, 4), (2, 7, 4), (2, 7, 3), (3, 1, 1, 1)),
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
)


@case(plus(square(h=4, n=3), normal((2, 12))))
def mask_on_folded_heads(q, k, v, w):
    s = (q @ k.mT).permute(0, 2, 1, 3)  # b n h m
    s = s.reshape(2, 3, 12) * w[:, None]
    s = s.view(2, 3, 4, 3).permute(0, 2, 1, 3)
    return s.relu() @ v


table(
    nothing,
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


def of_operands(f):
    """The program whose query, key and value are what `f` makes of its arguments."""

    def program(q, k, v):
        q, k, v = f(q, k, v)
        return F.silu(q @ k.mT) @ v

    return program


table(
    square(n=8),
    of=of_operands,
    prefix="operand_",
    slices_from_before=lambda q, k, v: (q[:, :, -12:4], k[..., -12:4, :], v[:, :, -12:4]),
    slices_steps=lambda q, k, v: (q[:, :, ::2], k[:, :, 1::2], v[:, :, ::2]),
    slices_empty_steps=lambda q, k, v: (q[:, :, 2:][:, :, :3], k[:, :, -3:], v[:, :, 5:]),
    flipped=lambda q, k, v: (q.flip(2), k.flip(2), v),
    rolled=lambda q, k, v: (q.roll(1, 2), k, v.roll(-1, 2)),
    rotary=lambda q, k, v: (
        *(
            torch.cat([-x[..., 2:], x[..., :2]], -1)
            * torch.sin(torch.arange(8.0, dtype=D64))[:, None]
            + x * torch.cos(torch.arange(8.0, dtype=D64))[:, None]
            for x in (q, k)
        ),
        v,
    ),
    rotary_complex=lambda q, k, v: (
        *(
            torch.view_as_real(
                torch.view_as_complex(x.reshape(2, 2, 8, 2, 2))
                * torch.polar(torch.ones(8, 2, dtype=D64), torch.rand(8, 2, dtype=D64) * 0 + 1.3)
            ).flatten(-2)
            for x in (q, k)
        ),
        v,
    ),
    half_of_channels=lambda q, k, v: (q[..., :2], k[..., 2:], v[..., ::2]),
    same_storage=lambda q, k, v: (q, q, q),
    key_is_value=lambda q, k, v: (q, k, k),
    query_is_value=lambda q, k, v: (q, k, q),
    value_is_scaled_key=lambda q, k, v: (q, k, k * 2),
    normalised=lambda q, k, v: (F.normalize(q, dim=-1), F.normalize(k, dim=-1), v),
    layer_norm=lambda q, k, v: (F.layer_norm(q, (4,)), F.layer_norm(k, (4,)), v),
    value_with_ones=lambda q, k, v: (q, k, torch.cat([v, torch.ones_like(v[..., :1])], -1)),
    query_expanded=lambda q, k, v: (q[:, :, :1].expand(2, 2, 8, 4), k, v),
    key_expanded_heads=lambda q, k, v: (q, k[:, :1].expand(2, 2, 8, 4), v[:1].expand(2, 2, 8, 4)),
    key_expanded_over_keys=lambda q, k, v: (q, k[:, :, :1].expand(2, 2, 8, 4), v),
    as_strided=lambda q, k, v: (q.as_strided((2, 2, 4, 4), (64, 32, 4, 1), 8), k, v),
    permuted_view=lambda q, k, v: (q.permute(2, 1, 0, 3).reshape(2, 2, 8, 4), k, v),
    viewed_across=lambda q, k, v: (q.reshape(2, 4, 4, 4).transpose(1, 2).reshape(2, 2, 8, 4), k, v),
    transposed_channels=lambda q, k, v: (q.reshape(2, 2, 4, 8).mT, k.reshape(2, 2, 4, 8).mT, v),
    complex_imag=lambda q, k, v: (
        torch.view_as_complex(q.reshape(2, 2, 8, 2, 2).contiguous()).real,
        torch.view_as_complex(k.reshape(2, 2, 8, 2, 2).contiguous()).imag,
        v,
    ),
    repeat_rows=lambda q, k, v: (
        q.repeat_interleave(2, 2),
        k.repeat(1, 1, 2, 1),
        v.repeat(1, 1, 2, 1),
    ),
    gathered=lambda q, k, v: (q[:, :, torch.tensor([1, 1, 7])], k, v),
    masked_fill_padding=lambda q, k, v: (
        q,
        k.masked_fill((torch.arange(8) > 5)[:, None], 0),
        v * (torch.arange(8) <= 5)[:, None],
    ),
    written_in_place=lambda q, k, v: (
        q.clone().mul_(2),
        k.clone().neg_(),
        v.clone().zero_().add_(v),
    ),
    tied_projection=lambda q, k, v: (q @ k[0, 0, :4].T, k @ k[0, 0, :4].T, v @ k[0, 0, :4].T),
    through_numpy_like=lambda q, k, v: (
        torch.stack(q.unbind(2), 2),
        torch.cat(k.split(1, 1), 1),
        v,
    ),
    float32_value=lambda q, k, v: (q, k, v.float().double()),
    bf16_query_upcast=lambda q, k, v: (q.bfloat16().float(), k.bfloat16().float(), v.float()),
    bf16_all=lambda q, k, v: (q.bfloat16(), k.bfloat16(), v.bfloat16()),
    half_value_upcast=lambda q, k, v: (q, k, v.half().double()),
    integers=lambda q, k, v: (q.long().double(), k.long().double(), v),
    dropout_p0=lambda q, k, v: (F.dropout(q, 0.0), F.dropout(k, 0.5, training=False), v),
    nan_query=lambda q, k, v: (q.masked_fill(q > 2, float("nan")), k, v),
    inf_value=lambda q, k, v: (q, k, v.masked_fill(v > 2, INF)),
)
