"""Masks and biases that are operands: lengths, segments, tables of all layouts and dtypes."""

import torch
import torch.nn.functional as F

from ..rows import D64, Programs, ikv, integral, normal, of_scores, values

PROGRAMS = Programs()
table = PROGRAMS.table


def per_batch(x):
    return x[:, None, None, None]


FLAGS = lambda: (torch.rand(5, 7) > 0.5,)


table(
    ikv(),
    of=of_scores,
    prefix="given_",
    uint8_lengths_minus_one=(
        lambda s, n: s.sigmoid() * (torch.arange(7) <= per_batch(n - 1)),
        values([0, 3], dtype=torch.uint8),
    ),
    int8_lengths_abs=(
        lambda s, n: s.sigmoid() * (torch.arange(7) < per_batch(n.abs())),
        values([-128, 3], dtype=torch.int8),
    ),
    int8_lengths_neg=(
        lambda s, n: s.sigmoid() * (-torch.arange(7) > per_batch(-n)),
        values([-128, 3], dtype=torch.int8),
    ),
    int8_lengths_doubled=(
        lambda s, n: s.sigmoid() * (torch.arange(7) < per_batch(n * 2)),
        values([100, 3], dtype=torch.int8),
    ),
    int32_lengths_scaled=(
        lambda s, n: s.sigmoid() * (torch.arange(7) < per_batch(n * 65536 * 40000)),
        values([1, 3], dtype=torch.int32),
    ),
    int64_lengths_overflow=(
        lambda s, n: s.sigmoid() * (torch.arange(7) < per_batch(n + 1)),
        values([2**63 - 1, 3]),
    ),
    lengths_floordiv=(
        lambda s, n: s.sigmoid() * (torch.arange(7) // per_batch(n) == 1),
        values([-2, 3]),
    ),
    lengths_mod=(lambda s, n: s.sigmoid() * (torch.arange(7) % per_batch(n) == 1), values([-2, 3])),
    lengths_float=(
        lambda s, n: s.sigmoid() * (torch.arange(7) < per_batch(n)),
        values([2.5, 3.0], dtype=D64),
    ),
    lengths_half=(
        lambda s, n: s.sigmoid() * (torch.arange(7) < per_batch(n)),
        values([2.5, 3.0], dtype=torch.float16),
    ),
    lengths_nan=(
        lambda s, n: s.sigmoid() * ~(torch.arange(7) < per_batch(n)),
        values([float("nan"), 3.0], dtype=D64),
    ),
    lengths_with_gradient=(
        lambda s, n: s.sigmoid() * (torch.arange(7) < per_batch(n)) / per_batch(n),
        normal(2),
    ),
    soft_length=(
        lambda s, n: s.sigmoid() * torch.sigmoid(per_batch(n) - torch.arange(7)),
        normal(2),
    ),
    cumsum_of_lengths=(
        lambda s, n: s.sigmoid() * (torch.arange(7) < per_batch(n.cumsum(0))),
        values([2, 3]),
    ),
    bool_lengths=(
        lambda s, n: s.sigmoid() * (torch.arange(7) <= per_batch(n)),
        values([True, False]),
    ),
    segments=(
        lambda s, a, b: s.sigmoid() * (a[:, None, :, None] == b[:, None, None]),
        lambda: (torch.randint(0, 3, (2, 5)),),
        lambda: (torch.randint(0, 3, (2, 7)),),
    ),
    segments_uint8_difference=(
        lambda s, a, b: s.sigmoid() * (a[:, None, :, None] - b[:, None, None] < 2),
        lambda: (torch.randint(0, 3, (2, 5), dtype=torch.uint8),),
        lambda: (torch.randint(0, 3, (2, 7), dtype=torch.uint8),),
    ),
    times_int64_to_float=(
        lambda s, a, b: torch.sigmoid(s - (a[:, None, :, None] - b[:, None, None]).float() / 60),
        lambda: (torch.randint(0, 10**9, (2, 5)),),
        lambda: (torch.randint(0, 10**9, (2, 7)),),
    ),
    times_log=(
        lambda s, a, b: torch.sigmoid(
            s - (a[:, None, :, None] - b[:, None, None]).abs().clamp(min=1).double().log()
        ),
        lambda: (torch.randint(0, 10**9, (2, 5)),),
        lambda: (torch.randint(0, 10**9, (2, 7)),),
    ),
    uint8_mask_multiplied=(
        lambda s, m: s.sigmoid() * m * m,
        lambda: (torch.randint(0, 255, (5, 7), dtype=torch.uint8),),
    ),
    uint8_mask_summed=(
        lambda s, m: s.sigmoid() * (m + m),
        lambda: (torch.randint(100, 255, (5, 7), dtype=torch.uint8),),
    ),
    int_bias=(lambda s, m: torch.sigmoid(s + m), lambda: (torch.randint(-3, 3, (5, 7)),)),
    int_bias_huge=(
        lambda s, m: torch.sigmoid((s + m) * 1e-16),
        lambda: (torch.randint(2**60, 2**62, (5, 7)),),
    ),
    bool_bias=(lambda s, m: torch.sigmoid(s + m), FLAGS),
    bias_of_size_one_dims=(lambda s, m: torch.sigmoid(s + m), normal((1, 1, 1, 7))),
    bias_per_row_expanded=(lambda s, m: torch.sigmoid(s + m[:, :1].expand(5, 7)), normal((5, 7))),
    scalar_learned=(lambda s, a, b: torch.sigmoid(s * a + b) * a, normal(()), normal(1)),
    scalar_fp32_learned=(lambda s, a: torch.sigmoid(s * a), normal((), dtype=torch.float32)),
    bias_fp32=(lambda s, a: torch.sigmoid(s + a), normal((5, 7), dtype=torch.float32)),
    bias_bf16=(lambda s, a: torch.sigmoid(s + a) * a, normal((5, 7), dtype=torch.bfloat16)),
    bias_squared_in_bf16=(
        lambda s, a: torch.sigmoid(s + a * a),
        normal((5, 1), dtype=torch.bfloat16),
    ),
    bias_in_where=(lambda s, a: torch.where(a > 0, s, a), normal((5, 7))),
    bias_ties=(lambda s, a: torch.maximum(s, a) + torch.minimum(s, a), integral((5, 7))),
    bias_clamp_bounds=(lambda s, a, b: s.clamp(a, b), integral((5, 7)), integral((5, 7))),
    bias_clamp_bounds_same=(lambda s, a: s.clamp(a, a), integral((5, 1))),
    bias_pow=(lambda s, a: s.abs().add(1).pow(a), normal(7)),
    bias_base=(lambda s, a: a.abs().pow(s), normal(7)),
    prelu_learned=(lambda s, a: F.prelu(s, a), normal(2)),
    prelu_one=(lambda s, a: F.prelu(s, a), normal(1)),
    lerp_gate=(lambda s, a: torch.lerp(s.relu(), s.sigmoid(), a), normal((2, 1, 1))),
    bias_used_thrice=(
        lambda s, a: torch.sigmoid(s + a + a[:, :, :1]) * a[:, :1],
        normal((2, 2, 5, 7)),
    ),
    bias_transposed_and_not=(
        lambda s, a: torch.sigmoid(s[..., :5] + a + a.mT) @ torch.ones(5, 7, dtype=s.dtype),
        normal((2, 2, 5, 5)),
    ),
    bias_selected=(lambda s, a: torch.sigmoid(s + a[1] + a[0, :, :1]), normal((3, 5, 7))),
    bias_sliced=(lambda s, a: torch.sigmoid(s + a[..., 2:7, 1:8]), normal((2, 9, 9))),
    bias_stepped=(lambda s, a: torch.sigmoid(s + a[::2, ::2]), normal((10, 14))),
    bias_diagonal_view=(lambda s, a: torch.sigmoid(s + a.diagonal(0, 0, 1)), normal((7, 7, 5))),
    bias_flattened_and_viewed=(
        lambda s, a: torch.sigmoid(s + a.view(7, 5).T.reshape(5, 7)),
        normal(35),
    ),
    bias_viewed_wrongly=(lambda s, a: torch.sigmoid(s + a.reshape(5, 7)), normal((7, 5))),
    bias_complex_real=(
        lambda s, a: torch.sigmoid(s + torch.view_as_complex(a).real),
        normal((5, 7, 2)),
    ),
    bias_view_dtype=(
        lambda s, a: torch.sigmoid(s + a.view(torch.float64)),
        lambda: (torch.arange(35).view(5, 7),),
    ),
    bias_unfold=(lambda s, a: torch.sigmoid(s + a.unfold(0, 7, 1)), normal(11)),
    bias_skewed=(
        lambda s, a: torch.sigmoid(s + F.pad(a, (1, 0)).reshape(8, 5)[1:].reshape(5, 7)),
        normal((5, 7)),
    ),
    bias_toeplitz=(
        lambda s, a: torch.sigmoid(s + a[torch.arange(5)[:, None] - torch.arange(7) + 6]),
        normal(12),
    ),
    bias_toeplitz_negative_index=(
        lambda s, a: torch.sigmoid(s + a[torch.arange(5)[:, None] - torch.arange(7)]),
        normal(12),
    ),
    bias_gathered=(
        lambda s, a, i: torch.sigmoid(s + a.gather(1, i)),
        normal((5, 3)),
        lambda: (torch.randint(0, 3, (5, 7)),),
    ),
    bias_take_along=(
        lambda s, a, i: torch.sigmoid(s + torch.take_along_dim(a, i, 1)),
        normal((5, 3)),
        lambda: (torch.randint(0, 3, (5, 7)),),
    ),
    bias_take=(
        lambda s, a, i: torch.sigmoid(s + a.take(i)),
        normal((5, 3)),
        lambda: (torch.randint(0, 15, (5, 7)),),
    ),
    bias_embedding_padding=(
        lambda s, a, i: torch.sigmoid(s + F.embedding(i, a, padding_idx=1)[..., 0]),
        normal((4, 1)),
        lambda: (torch.randint(0, 4, (5, 7)),),
    ),
    bias_embedding_heads=(
        lambda s, a, i: torch.sigmoid(s + F.embedding(i, a).permute(2, 0, 1)),
        normal((4, 2)),
        lambda: (torch.randint(0, 4, (5, 7)),),
    ),
    bias_embedding_scaled=(
        lambda s, a, i: torch.sigmoid(
            s + F.embedding(i, a, scale_grad_by_freq=True).permute(2, 0, 1)
        ),
        normal((4, 2)),
        lambda: (torch.randint(0, 4, (5, 7)),),
    ),
    bias_embedding_max_norm=(
        lambda s, a, i: torch.sigmoid(s + F.embedding(i, a, max_norm=0.5).permute(2, 0, 1)),
        normal((4, 2), grad=False),
        lambda: (torch.randint(0, 4, (5, 7)),),
    ),
    bias_index_select=(
        lambda s, a, i: torch.sigmoid(s + a.index_select(-1, i)),
        normal((5, 3)),
        lambda: (torch.randint(0, 3, (7,)),),
    ),
    bias_index_put=(
        lambda s, a, i: torch.sigmoid(
            s + torch.zeros(5, 7, dtype=D64).index_put((i,), a, accumulate=True)
        ),
        normal((3, 7)),
        values([1, 1, 4]),
    ),
    bias_scatter_add=(
        lambda s, a, i: torch.sigmoid(s + torch.zeros(5, 7, dtype=D64).scatter_add(1, i, a)),
        normal((5, 7)),
        lambda: (torch.randint(0, 3, (5, 7)),),
    ),
    mask_by_bool_index=(
        lambda s, m: s.sigmoid() * torch.zeros(5, 7, dtype=D64).masked_fill(m, 2.0),
        FLAGS,
    ),
    lookup_by_bool=(lambda s, a, m: s.sigmoid() * a[m.long()], normal(2), FLAGS),
)
