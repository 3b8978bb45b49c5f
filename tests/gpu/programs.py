"""What the GPU tests compile: one region each, the ordinary way, with the specs of its operands."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from tests.activations import ACTIVATIONS

SIZES = {"b": 2, "h": 4, "m": 300, "n": 200, "d": 64, "e": 64, "g": 2}
HEADS = {"q": "b h m d", "k": "b h n d", "v": "b h n e"}
SELF = {"q": "b h m d", "k": "b h m d", "v": "b h m e"}


@dataclass(frozen=True)
class Case:
    """A function of operands that `specs` describe (see `tests.operands`)."""

    function: Callable
    specs: dict[str, str]
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def all_sizes(self) -> dict[str, int]:
        return {**SIZES, **self.sizes}


def of_activation(name: str) -> Case:
    act = ACTIVATIONS[name].function
    return Case(lambda q, k, v: act(q @ k.mT * 0.125) @ v, HEADS)


def _plain(q, k, v):
    return F.silu(q @ k.mT * 0.125) @ v


def _causal(q, k, v):
    m = q.shape[2]
    mask = torch.ones(m, m, device=q.device, dtype=torch.bool).tril()
    return torch.where(mask, F.silu(q @ k.mT * 0.125), 0) @ v


def _window(q, k, v):
    i = torch.arange(q.shape[2], device=q.device)
    apart = i[:, None] - i[None, :]
    return torch.where((apart >= 0) & (apart < 70), torch.sigmoid(q @ k.mT * 0.125), 0) @ v


def _lengths(q, k, v, lengths):
    n = torch.arange(k.shape[2], device=q.device)
    keep = n < 30 * lengths[:, None, None, None]
    return torch.where(keep, F.silu(q @ k.mT * 0.125), 0) @ v


def _mask(q, k, v, mask):
    return F.silu(q @ k.mT * 0.125).masked_fill(~mask, 0) @ v


def _mask_and_bias(q, k, v, mask, bias):
    return (F.silu(q @ k.mT * 0.125 + bias) * mask) @ v


def _learned_mask(q, k, v, mask):
    return torch.sigmoid(q @ k.mT * 0.125) * mask @ v


def _bias(q, k, v, bias):
    return F.gelu(q @ k.mT * 0.125 + bias) @ v


def _table(q, k, v, table, gaps):
    times = gaps.cumsum(1)
    bucket = ((times[:, :, None] - times[:, None, :]).abs() // 60).clamp(max=7)
    return F.silu(q @ k.mT * 0.125 + table[:, bucket].transpose(0, 1)) @ v


def _scaled(q, k, v, scale, weight):
    return F.silu(q @ k.mT * scale) * weight @ v


def _grouped(q, k, v):
    k, v = (t.repeat_interleave(2, 1) for t in (k, v))
    return F.silu(q @ k.mT * 0.125) @ v


def _seeds(q, k, v):
    return F.silu(q @ k.mT * 0.125) @ v


def _split(qkv):
    q, k, v = (t.unflatten(-1, (4, 64)).transpose(1, 2) for t in qkv.chunk(3, -1))
    return F.silu(q @ k.mT * 0.125) @ v


def _from_projections(q, k, v):
    return _plain(*(t.transpose(1, 2) for t in (q, k, v)))


def _keys_apart(q, k, v):
    return _plain(q.transpose(1, 2), k, v.transpose(0, 1))


def _features_first(q, k, v):
    return _plain(*(t.mT for t in (q, k, v)))


def _wide(**sizes: int) -> Case:
    return Case(_plain, HEADS, sizes)


CASES: dict[str, Case] = {
    "causal": Case(_causal, SELF),
    "window": Case(_window, SELF, {"m": 700}),
    "lengths": Case(_lengths, {**HEADS, "lengths": "count: b"}),
    "mask": Case(_mask, {**HEADS, "mask": "bool: m n"}),
    "mask of the batch": Case(_mask, {**HEADS, "mask": "bool: b 1 m n"}),
    "mask in blocks": Case(_mask, {**HEADS, "mask": "blocks: m n"}),
    "mask in blocks and bias": Case(
        _mask_and_bias, {**HEADS, "mask": "blocks: m n", "bias": "h m n"}
    ),
    "padding": Case(_mask, {**HEADS, "mask": "blocks: b 1 1 n"}),
    "rows of no use": Case(_mask, {**HEADS, "mask": "blocks: b 1 m 1"}),
    "learned mask": Case(_learned_mask, {**HEADS, "mask": "m n"}),
    "bias": Case(_bias, {**HEADS, "bias": "h m n"}),
    "bias of the batch": Case(_bias, {**HEADS, "bias": "b 1 m n"}),
    "bias of all": Case(_bias, {**HEADS, "bias": "b h m n"}),
    "bias of columns": Case(_bias, {**HEADS, "bias": "n"}),
    "bias of rows": Case(_bias, {**HEADS, "bias": "h m 1"}),
    "bias of buckets": Case(_table, {**SELF, "table": "h 8", "gaps": "count: b m"}),
    "learned scales": Case(_scaled, {**HEADS, "scale": "h 1 1", "weight": ""}),
    "shared heads": Case(_grouped, {**HEADS, "k": "b g n d", "v": "b g n e"}),
    "shared queries": Case(_seeds, {**HEADS, "q": "h m d"}, {"m": 40, "n": 333}),
    "one projection": Case(_split, {"qkv": "b m 3*h*d"}),
    "head dim 16": _wide(d=16, e=16),
    "head dim 40": _wide(d=40, e=40),
    "head dims 96 and 72": _wide(d=96, e=72),
    "head dim 128": _wide(d=128, e=128),
    "head dims 192 and 160": _wide(d=192, e=160),
    "short": _wide(m=17, n=5),
}

# Operands that lie in memory in other orders than [B,H,N,D]; their gradients do the same.
LAYOUTS: dict[str, Case] = {
    "[B,N,H,D]": Case(_from_projections, {"q": "b m h d", "k": "b n h d", "v": "b n h e"}),
    "[B,H,D,N]": Case(_features_first, {"q": "b h d m", "k": "b h d n", "v": "b h e n"}),
    "of its own each": Case(_keys_apart, {"q": "b m h d", "k": "b h n d", "v": "h b n e"}),
}
