"""Masks of positions and odd integers."""

import torch

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
    "invert_int": m(lambda i, j: ~i < -j),
    "nan_to_int": lambda s: s.sigmoid() * (torch.full_like(s, float("nan")).to(torch.int64) < 0),
    "inf_to_int": lambda s: s.sigmoid() * (torch.full_like(s, INF).to(torch.int64) == 0),
    "arange_fp16": lambda s: s.sigmoid() * torch.arange(s.shape[-1], dtype=torch.float16),
    "above_transposed": lambda s: s * (s[..., :5] > s[..., :5].mT).any(),
    "argsort_mask": lambda s: s * (s.argsort(-1) < 3),
    "max_of_neighbours": lambda s: torch.maximum(s, s.roll(1, -1)),
    "meshgrid_xy": lambda s: (
        s.sigmoid()
        * torch.ge(
            *torch.meshgrid(torch.arange(s.shape[-1]), torch.arange(s.shape[-2]), indexing="xy")
        )
    ),
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
    "masked_fill_tensor": lambda s: s.masked_fill(
        rows(s)[0] > rows(s)[1], torch.tensor(0.1, dtype=torch.float32)
    ),
}


table(ikv(), MASKS, of=of_scores, prefix="mask_")
