"""Masks of positions and odd integers."""

import math

import torch
import torch.nn.functional as F

from ..rows import INF, Programs, ikv, of_scores

PROGRAMS = Programs()
table = PROGRAMS.table


def rows(s):
    return torch.arange(s.shape[-2])[:, None], torch.arange(s.shape[-1])[None]


def a8(s, dtype):
    return torch.arange(s.shape[-2], dtype=dtype)[:, None], torch.arange(s.shape[-1], dtype=dtype)[
        None
    ]


def m(f):
    return lambda s: s.sigmoid() * f(*rows(s))


MASKS = {
    "int16_square": lambda s: s.sigmoid() * ((a8(s, torch.int16)[0] * 100) ** 2 > 0),
    "cast_wraps": m(lambda i, j: (i * 100).to(torch.int8) > (j * 50).to(torch.uint8)),
    "int_overflow_64": m(lambda i, j: (i + 2**62) + (j + 2**62) > 0),
    "int_neg_of_min": m(lambda i, j: -(i * 0 + (-(2**63))) < j),
    "bool_add": lambda s: s.sigmoid() * ((rows(s)[0] > 2) + (rows(s)[1] > 3)),
    "bool_mul": lambda s: s.sigmoid() * ((rows(s)[0] > 2) * (rows(s)[1] > 3)),
    "bool_times_int": lambda s: s.sigmoid() * ((rows(s)[0] > 2) * 2 - 1),
    "bool_count": lambda s: s.sigmoid() * (((rows(s)[0] > 2).int() + (rows(s)[1] > 3).int()) == 1),
    "bool_lt": lambda s: s.sigmoid() * ((rows(s)[0] > 2) < (rows(s)[1] > 3)),
    "bool_max": lambda s: s.sigmoid() * torch.maximum(rows(s)[0] > 2, rows(s)[1] > 3),
    "bool_compare_with_int": lambda s: s.sigmoid() * ((rows(s)[0] > 2) == rows(s)[1]),
    "uint8_invert": lambda s: s.sigmoid() * (~((rows(s)[0] > 2).to(torch.uint8)) > 254),
    "one_minus_bool": lambda s: s.sigmoid() * (1 - (rows(s)[0] > rows(s)[1]).long()),
    "one_minus_mask_inf": lambda s: torch.sigmoid(
        s + (1.0 - (rows(s)[0] > rows(s)[1]).to(s.dtype)) * -INF
    ),
    "one_minus_mask_1e9": lambda s: torch.sigmoid(
        s + (1.0 - (rows(s)[0] > rows(s)[1]).to(s.dtype)) * -1e9
    ),
    "divide_by_mask": lambda s: s.sigmoid() / (rows(s)[0] > rows(s)[1]),
    "divide_by_count": lambda s: s.sigmoid() / (rows(s)[0] + 1),
    "divide_by_position": lambda s: s.sigmoid() / (rows(s)[0]).to(s.dtype),
    "divide_by_position_safe": lambda s: torch.where(rows(s)[0] > 0, s.sigmoid() / rows(s)[0], 0.0),
    "mask_over_mask": lambda s: (
        s.sigmoid() * ((rows(s)[0] > 2).to(s.dtype) / (rows(s)[0] > 2).to(s.dtype))
    ),
    "fmod_ints": m(lambda i, j: torch.fmod(i - j, 3) == -1),
    "remainder_negative_divisor": m(lambda i, j: (i - j) % -3 == -1),
    "floordiv_negative_divisor": m(lambda i, j: (i - j) // -3 >= 0),
    "trunc_negative": m(lambda i, j: torch.div(i - j, 3, rounding_mode="trunc") == 0),
    "rshift_negative": m(lambda i, j: (i - j) >> 1 == -1),
    "lshift_big": m(lambda i, j: ((i - j) << 30) > 2**31),
    "and_negative": m(lambda i, j: ((i - j) & 3) == 1),
    "invert_int": m(lambda i, j: ~i < -j),
    "pow_half": lambda s: s.sigmoid() * ((rows(s)[0].double()) ** 0.5),
    "sqrt_int": lambda s: s.sigmoid() * torch.sqrt(rows(s)[0]),
    "int_true_division": lambda s: torch.sigmoid(s - (rows(s)[0] - rows(s)[1]) / 3),
    "int_times_float_scalar": lambda s: torch.sigmoid(s - (rows(s)[0] - rows(s)[1]) * 0.1),
    "int_clamp_float_bound": m(lambda i, j: (i - j).clamp(max=2.5) > 2),
    "int_clamp_flipped": m(lambda i, j: (i - j).clamp(2, -1) == -1),
    "int_where_float": lambda s: s.sigmoid() * torch.where(rows(s)[0] > rows(s)[1], 2, 0.5),
    "float_to_int_of_negative": m(lambda i, j: ((i - j).double() / 2).to(torch.int64) == 0),
    "round_half_even": m(lambda i, j: ((i - j).double() / 2).round() == 2),
    "nan_to_int": lambda s: s.sigmoid() * (torch.full_like(s, float("nan")).to(torch.int64) < 0),
    "inf_to_int": lambda s: s.sigmoid() * (torch.full_like(s, INF).to(torch.int64) == 0),
    "full_int_of_float": lambda s: s * torch.full(s.shape, 2, dtype=torch.int64),
    "full_bool_of_float": lambda s: s * torch.full((1,), 0.5, dtype=torch.bool),
    "arange_down": lambda s: (
        s.sigmoid() * (torch.arange(s.shape[-1] - 1, -1, -1) > torch.arange(s.shape[-2])[:, None])
    ),
    "arange_step": lambda s: (
        s.sigmoid()
        * (torch.arange(0, 2 * s.shape[-1], 2) > torch.arange(1, s.shape[-2] + 1)[:, None])
    ),
    "arange_step_partial": lambda s: s.sigmoid() * (torch.arange(0, 2 * s.shape[-1] - 1, 2) > 5),
    "arange_float": lambda s: s.sigmoid() * torch.arange(float(s.shape[-1])),
    "arange_fp16": lambda s: s.sigmoid() * torch.arange(s.shape[-1], dtype=torch.float16),
    "linspace": lambda s: s.sigmoid() * torch.linspace(0, 1, s.shape[-1], dtype=s.dtype),
    "eye_": lambda s: s.sigmoid() * torch.eye(s.shape[-2], s.shape[-1], dtype=s.dtype),
    "eye_bool_inverted": lambda s: s.masked_fill(
        ~torch.eye(s.shape[-2], s.shape[-1], dtype=torch.bool), 0
    ),
    "eye_of_other_size": lambda s: s.sigmoid() * torch.eye(9)[: s.shape[-2], : s.shape[-1]],
    "tril_two": lambda s: s.sigmoid().tril(2),
    "tril_minus": lambda s: s.sigmoid().tril(-2) + s.relu().triu(1),
    "tril_transposed": lambda s: s.sigmoid().mT.tril().mT,
    "tril_of_heads": lambda s: s.sigmoid().permute(2, 3, 0, 1).tril().permute(2, 3, 0, 1),
    "tril_of_row_head": lambda s: s.sigmoid().transpose(1, 3).tril(1).transpose(1, 3),
    "tril_then_add": lambda s: (s.tril() + 1).sigmoid(),
    "tril_of_inf": lambda s: torch.full_like(s, -INF).triu(1).add(s).sigmoid(),
    "tril_of_ones_minus_one": lambda s: (
        (torch.ones(s.shape[-2:]).tril() - 1) * 1e30 + s
    ).sigmoid(),
    "tril_of_nan": lambda s: (torch.full_like(s, float("nan")).tril() + s).nan_to_num(0.5),
    "cumsum_of_scores": lambda s: s.cumsum(-1).sigmoid(),
    "cumsum_of_positive": lambda s: s * ((s > 0).cumsum(-1) <= 2),
    "above_row_mean": lambda s: s * (s > s.mean(-1, keepdim=True)).to(s.dtype),
    "above_first": lambda s: s * (s >= s[..., :1]),
    "above_transposed": lambda s: s * (s[..., :5] > s[..., :5].mT).any(),
    "argsort_mask": lambda s: s * (s.argsort(-1) < 3),
    "shifted": lambda s: s.relu() + F.pad(s, (1, -1)),
    "max_of_neighbours": lambda s: torch.maximum(s, s.roll(1, -1)),
    "meshgrid_xy": lambda s: (
        s.sigmoid()
        * torch.ge(
            *torch.meshgrid(torch.arange(s.shape[-1]), torch.arange(s.shape[-2]), indexing="xy")
        )
    ),
    "band": lambda s: (
        s.sigmoid()
        * (
            torch.ones(s.shape[-2:], dtype=torch.bool).tril(1)
            & torch.ones(s.shape[-2:], dtype=torch.bool).triu(-1)
        )
    ),
    "block_diagonal": m(lambda i, j: i // 2 == j // 2),
    "dilated": m(lambda i, j: ((i - j) % 2 == 0) & ((i - j).abs() <= 4)),
    "prefix": m(lambda i, j: (j < 2) | (j <= i)),
    "kron": lambda s: (
        s.sigmoid()
        * torch.kron(torch.tensor([[1, 0], [1, 1]]), torch.ones(3, 4, dtype=torch.int64))[
            : s.shape[-2], : s.shape[-1]
        ]
    ),
    "band_part": lambda s: (
        s.sigmoid()
        * torch.where(torch.tril(torch.ones(s.shape[-2:], dtype=torch.int8), 1) == 1, 1.0, 0.25)
    ),
    "alibi": lambda s: torch.sigmoid(
        s
        - 2.0 ** (-torch.arange(1, s.shape[1] + 1, dtype=s.dtype))[:, None, None]
        * torch.sub(*rows(s)).abs()
    ),
    "batch_parity": lambda s: s.relu() * (torch.arange(s.shape[0]) % 2)[:, None, None, None],
    "head_stack": lambda s: torch.stack([s[:, 0].relu(), s[:, 1].sigmoid()], 1),
    "row_cat": lambda s: torch.cat([s[:, :, :2].relu(), s[:, :, 2:].sigmoid()], 2),
    "column_cat": lambda s: torch.cat([s[..., :2].relu(), s[..., 2:].sigmoid()], -1),
    "column_cat_gap": lambda s: torch.cat(
        [s[..., :2].relu(), s[..., 2:4].sigmoid(), s[..., 4:] * 0], -1
    ),
    "batch_cat": lambda s: torch.cat([s[:1].relu(), s[1:].sigmoid()]),
    "split_and_cat": lambda s: torch.cat(
        [
            f(x)
            for f, x in zip(
                (torch.relu, torch.sigmoid, torch.tanh), s.split([1, 2, s.shape[-1] - 3], -1)
            )
        ],
        -1,
    ),
    "where_with_int_scores": lambda s: torch.where(rows(s)[0] > rows(s)[1], s, s.to(torch.int64)),
    "dtype_by_result_type": lambda s: torch.where(
        rows(s)[0] > rows(s)[1], s.relu(), torch.zeros((), dtype=torch.float16)
    ),
    "masked_fill_tensor": lambda s: s.masked_fill(
        rows(s)[0] > rows(s)[1], torch.tensor(0.1, dtype=torch.float32)
    ),
    "where_tensor_fp32": lambda s: torch.where(
        rows(s)[0] > rows(s)[1], s, torch.tensor(0.1, dtype=torch.float32)
    ),
    "mul_fp32_scalar_tensor": lambda s: s.relu() * torch.tensor(0.1, dtype=torch.float32),
    "mul_bf16_scalar_tensor": lambda s: s.relu() * torch.tensor(0.1, dtype=torch.bfloat16),
    "div_by_shape_sqrt": lambda s: s.relu() / math.sqrt(s.shape[-1]),
    "div_by_numel_int": lambda s: s.relu() / s[0, 0].numel(),
    "compare_with_big_int": lambda s: s.relu() * (s < 2**53 + 1),
    "compare_with_0dim": lambda s: s.relu() * (s < torch.tensor(2)),
    "compare_with_bool_tensor": lambda s: s.relu() * (s > torch.tensor(True)),
    "symint_in_mask": lambda s: s.relu() * (torch.arange(s.shape[-1]) < s.shape[-2] // 2 + 1),
    "symint_max": lambda s: s.relu() / max(s.shape[-1], s.shape[-2], 1) * min(s.shape),
}


table(ikv(), MASKS, of=of_scores, prefix="mask_")
