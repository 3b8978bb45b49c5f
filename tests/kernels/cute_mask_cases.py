"""Problems with mask tensors for the CuTe kernels: whole tiles are hidden, among others."""

import dataclasses
from collections.abc import Callable

import torch

from .cute_backward_cases import Case, Problem, make_call

MASK = "a0:b[q_idx,kv_idx]; where(a0,silu(mul(s,0.125)),0.0)"
SIGMOID = "a0:b[b,-,q_idx,kv_idx]; where(a0,sigmoid(mul(s,0.125)),0.0)"
PADDED = "a0:b[b,-,-,kv_idx]; where(a0,sigmoid(mul(s,0.125)),0.0)"
ROWS = "a0:b[b,q_idx]; where(a0,silu(mul(s,0.125)),0.0)"
FACTOR = "a0:f[-,-,q_idx,kv_idx]; mul(sigmoid(mul(s,0.125)),a0)"
PER_HEAD = "a0:b[h,q_idx,kv_idx]; where(a0,silu(mul(s,0.125)),0.0)"
BIASED = "a0:b[q_idx,kv_idx]; a1:f[h,q_idx,kv_idx]; where(a0,silu(add(mul(s,0.1),a1)),0.0)"
SEGMENTS = "a0:i[b,q_idx]; a1:i[b,kv_idx]; where(eq(a0,a1),sigmoid(mul(s,0.125)),0.0)"


def causal(shape: torch.Size) -> torch.Tensor:
    return torch.ones(shape).tril().bool()


def padding(shape: torch.Size) -> torch.Tensor:
    """Of two sequences one has few keys, or rows."""
    lengths = torch.tensor([shape[-1] // 3, shape[-1]])[: shape[0]]
    return torch.arange(shape[-1]).expand(shape) < lengths.reshape(-1, *[1] * (len(shape) - 1))


def blocks(shape: torch.Size) -> torch.Tensor:
    """Whole tiles of every kernel, among them such that lie between others."""
    torch.manual_seed(7)
    coarse = torch.rand(*shape[:-2], -(-shape[-2] // 192), -(-shape[-1] // 128)) < 0.5
    fine = coarse.repeat_interleave(192, -2).repeat_interleave(128, -1)
    return fine[..., : shape[-2], : shape[-1]]


def holes(shape: torch.Size) -> torch.Tensor:
    """The first and the last keys, none between."""
    column = torch.arange(shape[-1])
    return ((column < 70) | (column >= shape[-1] - 30)).expand(shape)


def short(shape: torch.Size) -> torch.Tensor:
    """The first keys."""
    return (torch.arange(shape[-1]) < 70).expand(shape)


def a_row_of_nothing(shape: torch.Size) -> torch.Tensor:
    result = torch.rand(shape) < 0.5
    result[..., 5, :] = False
    return result


def segments(shape: torch.Size) -> torch.Tensor:
    return torch.arange(shape[-1]).expand(shape) // 150


Mask = Callable[[torch.Size], torch.Tensor]
SHAPES = {"rows": 200, "keys": 300}  # the fewest with whole tiles between others
CASES: dict[str, tuple[Case, tuple[Mask, ...]]] = {
    "causal": (Case(MASK, heads=1, key_heads=1, rows=300, keys=300), (causal,)),
    "causal, head dim 128": (
        Case(MASK, heads=1, key_heads=1, rows=300, keys=300, dims=(128, 128)), (causal,)
    ),
    "causal, fewer rows": (Case(MASK, rows=70, keys=300, key_heads=1), (causal,)),
    "padding": (Case(PADDED, batch=2, heads=1, key_heads=1, **SHAPES), (padding,)),
    "padding of rows": (Case(ROWS, batch=2, heads=1, key_heads=1, **SHAPES), (padding,)),
    "blocks": (Case(SIGMOID, batch=2, key_heads=1, **SHAPES), (blocks,)),
    "holes": (Case(MASK, heads=1, key_heads=1, **SHAPES), (holes,)),
    "all hidden": (Case(SIGMOID, **SHAPES), (torch.zeros,)),
    "all shown": (Case(SIGMOID, **SHAPES), (torch.ones,)),
    "a row of nothing": (Case(MASK, heads=1, key_heads=1, **SHAPES), (a_row_of_nothing,)),
    "a mask for each head": (Case(PER_HEAD, heads=2, key_heads=2, **SHAPES), (blocks,)),
    "a mask for each head, grouped": (
        Case(PER_HEAD, heads=4, key_heads=2, rows=130, keys=300), (blocks,)
    ),
    "factors": (Case(FACTOR, heads=1, key_heads=1, **SHAPES), (blocks,)),
    "causal, with a bias": (
        Case(BIASED, rows=300, keys=300, dims=(128, 128), heads=1, key_heads=1),
        (causal, torch.randn),
    ),
    "segments": (Case(SEGMENTS, heads=1, key_heads=1, **SHAPES), (segments, segments)),
    "jagged": (
        Case(MASK, rows=(260, 0, 70), keys=(260, 0, 70), heads=1, key_heads=1), (causal,)
    ),
    "jagged keys": (Case(MASK, rows=140, keys=(200, 0, 300), key_heads=1), (blocks,)),
}  # fmt: skip


def masked(case: Case, masks: tuple[Mask, ...]) -> Problem:
    call = make_call(case)
    o = call.operands
    aux = [mask(x.shape).to(x.dtype) for mask, x in zip(masks, o.aux, strict=True)]
    return dataclasses.replace(call, operands=dataclasses.replace(o, aux=aux))
