"""Problem: the one description of a fused region that crosses from patterns to lowerings.

Sizes may be symbolic. It names no tensors and no graph nodes, so it can be judged, printed and
compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .ops import score_shape
from .score_mod import ScoreMod

Size = int | torch.SymInt


@dataclass(frozen=True)
class Problem:
    """query [batch, heads, rows, head_dim], key [·, key_heads, cols, head_dim], value [·,
    value_heads, cols, value_dim].
    """

    program: ScoreMod
    device: torch.device
    dtype: torch.dtype  # of query and key
    value_dtype: torch.dtype  # of value and of the output
    aux_dtypes: tuple[torch.dtype, ...]
    batch: Size
    heads: Size
    key_heads: Size
    value_heads: Size
    rows: Size
    cols: Size
    head_dim: Size
    value_dim: Size
    training: bool

    @staticmethod
    def of(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        aux: Sequence[Tensor],
        program: ScoreMod,
        training: bool,
    ) -> Problem:
        """From (fake) operands in the op's layout."""
        batch, heads, rows, cols = score_shape(query, key, value)
        return Problem(
            program=program,
            device=query.device,
            dtype=query.dtype,
            value_dtype=value.dtype,
            aux_dtypes=tuple(t.dtype for t in aux),
            batch=batch,
            heads=heads,
            key_heads=key.shape[1],
            value_heads=value.shape[1],
            rows=rows,
            cols=cols,
            head_dim=query.shape[3],
            value_dim=value.shape[3],
            training=training,
        )
