"""Sizes of zero and one, and broadcast batches."""

import torch

from ..rows import D64, Programs, normal, nothing, square
from .given import T, of_scores

PROGRAMS = Programs()
table = PROGRAMS.table


table(
    nothing,
    one_token_one_depth=(lambda q, k, v: torch.sigmoid(q @ k) @ v, square(n=1, d=1)),
    vector_query=(
        lambda q, k, v: (torch.sigmoid(q @ T(k)).unsqueeze(-2) @ v).squeeze(-2),
        normal(4, (2, 5, 4), (2, 5, 4)),
    ),
)


table(
    nothing,
    of=of_scores,
    empty_rows=(torch.sigmoid, square(n=0)),
    empty_keys=(torch.sigmoid, normal((2, 2, 5, 4), (2, 2, 0, 4), (2, 2, 0, 4))),
    empty_depth=(torch.sigmoid, normal((2, 2, 5, 0), (2, 2, 3, 0), (2, 2, 3, 4))),
    empty_value=(torch.sigmoid, normal((2, 2, 5, 4), (2, 2, 3, 4), (2, 2, 3, 0))),
    empty_batch=(torch.sigmoid, square(b=0, n=5)),
    one_token=(torch.sigmoid, square(n=1)),
    one_query_bias_broadcasts_rows=(
        lambda s: torch.sigmoid(s + torch.arange(3, dtype=D64)[:, None]),
        normal((2, 2, 1, 4), (2, 2, 5, 4), (2, 2, 5, 4)),
    ),
    broadcast_batches=(
        torch.sigmoid,
        normal((1, 2, 5, 4), (2, 1, 5, 4), (3, 1, 1, 5, 4)),
    ),
    vector_value=(torch.sigmoid, normal((5, 4), (2, 5, 4), 5)),
    one_key_broadcasts=(
        lambda s: torch.sigmoid(s + torch.arange(3, dtype=D64)),
        normal((2, 2, 5, 4), (2, 2, 1, 4), (2, 2, 3, 4)),
    ),
    one_key_expanded=(
        lambda s: torch.sigmoid(s).expand(2, 2, 5, 3),
        normal((2, 2, 5, 4), (2, 2, 1, 4), (2, 2, 3, 4)),
    ),
)
