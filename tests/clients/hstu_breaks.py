"""Where public code of HSTU breaks Dynamo's graph, and the mends of `docs/recipes/hstu.md`.

Each function is as its repository spells it, or has the mend where `mended` is true. Their
operands: rows [L, H·D], offsets [B + 1].
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from docs.tools.blocks import blocks

PAGE = Path(__file__).parents[2] / "docs" / "recipes" / "hstu.md"
N, H, D = 12, 2, 16
WEIGHT = torch.nn.Parameter(torch.linspace(-1, 1, 3 * (H * D) ** 2).sin().view(H * D, -1) * 0.3)


def on_page(name: str) -> Any:
    """A function of the page."""
    names: dict[str, Any] = {"torch": torch, "F": F}
    (block,) = (b for b in blocks(PAGE.read_text()) if f"def {name}(" in b.code)
    exec(compile(block.code, str(PAGE), "exec"), names)
    return names[name]


concatenated, right_rows, last_rows = map(on_page, ("concatenated", "right_rows", "last_rows"))


def padded(x: Tensor, offsets: Tensor, longest: int = N) -> Tensor:
    """[L, H·D] to [B, N, H, D]."""
    return torch.ops.fbgemm.jagged_to_padded_dense(x, [offsets], [longest], 0.0).unflatten(
        -1, (H, D)
    )


def layer(x: Tensor, offsets: Tensor, total: int | None, longest: int = N) -> Tensor:
    """Of [L, H·D], in the spelling of the research code."""
    q, k, v = (
        padded(part, offsets, longest) for part in F.silu(x @ WEIGHT.to(x.dtype)).chunk(3, dim=1)
    )
    weights = F.silu(torch.einsum("bnhd,bmhd->bhnm", q, k)) / N
    weights = weights * x.new_ones(longest, longest).tril()
    out = torch.einsum("bhnm,bmhd->bnhd", weights, v).flatten(2)
    return torch.ops.fbgemm.dense_to_jagged(out, [offsets], total)[0] + x


def unpadding(mended: bool, x: Tensor, offsets: Tensor, *_: Tensor) -> Tensor:
    for _ in range(2):
        x = layer(x, offsets, x.shape[0] if mended else None)
    return x


def padded_input(mended: bool, x: Tensor, offsets: Tensor, *_: Tensor) -> Tensor:
    dense = torch.ops.fbgemm.jagged_to_padded_dense(x, [offsets], [N], 0.0)
    rows = torch.ops.fbgemm.dense_to_jagged(dense, [offsets], x.shape[0] if mended else None)[0]
    return layer(rows, offsets, rows.shape[0])


def concatenation(mended: bool, x: Tensor, offsets: Tensor, y: Tensor, others: Tensor) -> Tensor:
    lengths, more = offsets.diff().view(-1, 1), others.diff().view(-1, 1)
    ends, places = offsets + others, torch.arange(N).view(1, -1)
    if mended:
        rows = concatenated(x, y, offsets, others)
    else:
        dense = torch.cat([padded(x, offsets, N // 2), padded(y, others, N // 2)], 1).flatten(2)
        chosen = (places < lengths) | ((places >= N // 2) & (places < N // 2 + more))
        rows = dense.flatten(0, 1)[chosen.view(-1), :]
    out = layer(rows, ends, rows.shape[0])
    if mended:
        return right_rows(out, offsets, others, y.shape[0])
    right = (places >= lengths) & (places < lengths + more)
    return padded(out, ends).flatten(2).flatten(0, 1)[right.view(-1), :]


def longest_length(mended: bool, x: Tensor, offsets: Tensor, *_: Tensor) -> Tensor:
    longest = N if mended else int(offsets.diff().max().item())
    return layer(x, offsets, x.shape[0], longest)


def number_of_targets(mended: bool, x: Tensor, offsets: Tensor, y: Tensor, _: Tensor) -> Tensor:
    count = y.shape[0] if mended else int(torch.tensor([2, y.shape[0] - 2]).sum().item())
    return layer(x, offsets, x.shape[0])[-count:]


def cached(mended: bool, x: Tensor, offsets: Tensor, *_: Tensor) -> Tensor:
    """Two new queries of each sequence over all of its keys."""
    batch, lengths, places = len(offsets) - 1, offsets.diff(), torch.arange(N).view(1, -1)
    q, k, v = x[: 2 * batch].view(batch, 2, H, D), padded(x, offsets), padded(x, offsets)
    seen = (places.view(N, 1) >= places).expand(batch, N, N)
    if mended:
        seen = last_rows(seen, lengths, 2)
    else:
        new = (places >= (lengths - 2).view(-1, 1)) & (places < lengths.view(-1, 1))
        seen = seen.flatten(0, 1)[new.view(-1), :].view(batch, 2, N)
    weights = F.silu(torch.einsum("bnhd,bmhd->bhnm", q, k)) / N * seen.unsqueeze(1)
    return torch.einsum("bhnm,bmhd->bnhd", weights, v)


# By name: the function, and how many regions are fused with the mend.
BREAKS: dict[str, tuple[Callable[..., Tensor], int]] = {
    "an unpadding without its total length": (unpadding, 2),
    "rows of a padded input": (padded_input, 1),
    "two jagged tensors side by side": (concatenation, 1),
    "the longest length": (longest_length, 1),
    "the number of targets": (number_of_targets, 1),
    "rows of a mask chosen by a mask": (cached, 1),
}
