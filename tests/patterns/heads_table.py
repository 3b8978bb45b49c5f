"""Other activations for other heads, in the spellings that there are: rows of the idiom table."""

import torch
import torch.nn.functional as F

from tests.patterns.rows import HEADS, either, fuse, refuse

ACTIVATIONS = (F.silu, F.gelu, torch.relu)


@fuse(varies=True, **HEADS)
def heads_by_slices(q, k, v):
    s = q @ k.mT
    return torch.cat([F.silu(s[:, :2]), F.gelu(s[:, 2:])], dim=1) @ v


@fuse(**HEADS)
def heads_by_chunks(q, k, v):
    parts = (q @ k.mT * 0.5).chunk(3, dim=1)
    return torch.cat([act(part) for act, part in zip(ACTIVATIONS, parts)], dim=1) @ v


@fuse(**HEADS)
def heads_by_sizes(q, k, v):
    first, rest = (q @ k.mT).split([1, 2], dim=1)
    return torch.cat([torch.tanh(first), rest.sigmoid() / 7], dim=1) @ v


@fuse(**HEADS)
def heads_in_a_loop(q, k, v):
    s = q @ k.mT
    return torch.stack([act(s[:, h]) for h, act in enumerate(ACTIVATIONS)], dim=1) @ v


@fuse(**HEADS)
def heads_unbound(q, k, v):
    parts = (q @ k.mT).unbind(1)
    return torch.stack([act(part) for act, part in zip(ACTIVATIONS, parts)], dim=1) @ v


@fuse(**HEADS)
def heads_by_index(q, k, v):
    s, head = q @ k.mT, torch.arange(q.shape[1]).view(1, -1, 1, 1)
    return torch.where(head < 1, F.silu(s), torch.where(head == 1, F.gelu(s), s.tanh())) @ v


@fuse(**HEADS, bias="h n m")
def heads_after_a_bias(q, k, v, bias):
    s = q @ k.mT + bias
    return torch.cat([F.silu(s[:, :1]) * 0.3, F.gelu(s[:, 1:])], dim=1) @ v


@refuse("LAYOUT", varies=True, **HEADS, bias="h n m")
def heads_with_slices_of_a_bias(q, k, v, bias):
    """It would have to be put together again."""
    s = q @ k.mT
    return torch.cat([F.silu(s[:, :1] + bias[:1]), F.gelu(s[:, 1:] + bias[1:])], dim=1) @ v


@fuse(q="b n h d", k="b m h d", v="b m h e")
def heads_last(q, k, v):
    s = torch.einsum("bnhd,bmhd->bnmh", q, k)
    w = torch.cat([F.silu(s[..., :1]), s[..., 1:].relu()], dim=-1)
    return torch.einsum("bnmh,bmhe->bnhe", w, v)


@either(varies=True, **HEADS)
def rows_by_slices(q, k, v):
    s = q @ k.mT
    return torch.cat([F.silu(s[:, :, :2]), torch.sigmoid(s[:, :, 2:])], dim=2) @ v


@refuse("CROSS_ELEMENT", **HEADS)
def heads_exchanged(q, k, v):
    s = q @ k.mT
    return torch.cat([F.silu(s[:, 1:]), F.gelu(s[:, :1])], dim=1) @ v


@refuse("CROSS_ELEMENT", varies=True, **HEADS)
def heads_dropped(q, k, v):
    s = q @ k.mT
    return torch.stack([F.silu(s[:, 0]), F.gelu(s[:, 0]), s[:, 2]], dim=1) @ v


@refuse("LAYOUT", "CROSS_ELEMENT", varies=True, **HEADS, scale="2 1 1")
def heads_with_an_operand_of_a_part(q, k, v, scale):
    s = q @ k.mT
    return torch.cat([F.silu(s[:, :1]), F.gelu(s[:, 1:]) * scale], dim=1) @ v
