"""The public door for those who know that they have GDPA: `attention(query, key, value,
score_mod=..., mask_mod=...)`.

It is spelled in plain torch, in exactly the form that the matcher reads: eager and under any
backend it computes the formula, and under `backend="gdpa"` it becomes the same fused op and the
same score program as a region found in a model.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .rejection import GDPAError

ScoreFn = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
MaskFn = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score_mod: ScoreFn | None = None,
    mask_mod: MaskFn | None = None,
    scale: float | Tensor = 1.0,
    enable_gqa: bool = False,
) -> Tensor:
    """Softmax-free attention: `O = where(mask_mod, score_mod(scale · q·k), 0) V`.

    Args:
        query: [B, H, N, D], floating point.
        key, value: [B, H, M, D] and [B, H, M, Dv]; with `enable_gqa` they may have fewer heads that
            divide H.
        score_mod: `(score, b, h, q_idx, kv_idx) -> weight`, what multiplies V. `score` is the fp32
            q·k (fp64 for fp64)
            times `scale`; the indices are integer tensors that broadcast against it. None is the
            identity.
        mask_mod: `(b, h, q_idx, kv_idx) -> bool`; where False the weight is 0. Applied after
            `score_mod`.
        scale: multiplies q·k. The default is 1, not 1/sqrt(D).

    Returns:
        [B, H, N, Dv] in value's dtype.

    Raises:
        GDPAError: operands that do not fit each other.
    """
    groups = _check(query, key, value, enable_gqa)
    batch, heads, rows, _ = query.shape
    kv_heads, cols = key.shape[1:3]
    compute = torch.float64 if query.dtype == torch.float64 else torch.float32
    if groups > 1:
        query = query.unflatten(1, (kv_heads, groups))
        key, value = key.unsqueeze(2), value.unsqueeze(2)
    score = torch.matmul(query.to(compute), key.to(compute).transpose(-2, -1)) * scale

    def index(size: int, *shape: int) -> Tensor:
        flat = torch.arange(size, device=query.device)
        return flat.view(
            shape if groups == 1 else (shape[0], *_head_axes(shape[1], groups), *shape[2:])
        )

    b, h = index(batch, batch, 1, 1, 1), index(heads, 1, heads, 1, 1)
    n, m = index(rows, 1, 1, rows, 1), index(cols, 1, 1, 1, cols)
    weight = score if score_mod is None else score_mod(score, b, h, n, m)
    if mask_mod is not None:
        weight = torch.where(mask_mod(b, h, n, m), weight, 0.0)
    out = torch.matmul(weight.to(value.dtype), value)
    return out.flatten(1, 2) if groups > 1 else out


def _head_axes(size: int, groups: int) -> tuple[int, int]:
    return (1, 1) if size == 1 else (size // groups, groups)


def _check(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> int:
    """The number of query heads per key head, or GDPAError."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 4 or not tensor.dtype.is_floating_point:
            raise GDPAError(
                f"{name} must be a floating-point tensor [batch, heads, length, head dim], "
                f"got {tensor.dtype} of shape {tuple(tensor.shape)}"
            )
        if tensor.device != query.device or tensor.dtype != query.dtype:
            raise GDPAError(
                f"{name} is {tensor.dtype} on {tensor.device}, "
                f"query {query.dtype} on {query.device}"
            )
    if query.shape[0] != key.shape[0] or key.shape[:3] != value.shape[:3]:
        raise GDPAError(
            f"batch, heads or lengths differ: {[tuple(t.shape) for t in (query, key, value)]}"
        )
    if query.shape[3] != key.shape[3]:
        raise GDPAError(f"head dims of query and key differ: {query.shape[3]} and {key.shape[3]}")
    if query.shape[1] == key.shape[1]:
        return 1
    if not enable_gqa or key.shape[1] == 0 or query.shape[1] % key.shape[1]:
        raise GDPAError(
            f"{query.shape[1]} query heads over {key.shape[1]} key heads need enable_gqa=True "
            "and a whole ratio"
        )
    return query.shape[1] // key.shape[1]
