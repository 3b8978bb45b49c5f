"""Serving with a cache: a few queries of each sequence over its keys, dense or jagged.

In: cases of the variant "cache". Their `length` is the number of queries, and `keys` the most keys
of a sequence. Out: their subjects, which have no gradients. The formula pads a jagged cache
[L, H, D], as users write it.
"""

import torch
from torch import Tensor

from .cases import ACTIVATIONS, Case, Function, Subject
from .jagged import offsets, pad


def formula(case: Case) -> Function:
    """A function of query [B, H, M, D], and key and value [B, H, N, D].

    For a jagged cache, key and value are [L, H, D], and the int64 offsets come last.
    """
    activation, scale = ACTIVATIONS[case.activation], case.head_dim**-0.5

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return activation(query @ key.transpose(-2, -1) * scale) @ value

    def padded(query: Tensor, key: Tensor, value: Tensor, ends: Tensor) -> Tensor:
        return attend(query, pad(key, ends, case.keys), pad(value, ends, case.keys))

    return padded if case.fill else attend


def subject(case: Case) -> Subject:
    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, device=case.device, dtype=getattr(torch, case.dtype))

    query = drawn(case.batch, case.heads, case.length, case.head_dim)
    if case.fill:
        counts = case.lengths()
        total = int(counts.sum())
        key, value = (drawn(total, case.heads, case.head_dim) for _ in range(2))
        inputs = [query, key, value, offsets(counts).to(case.device, torch.int64)]
    else:
        shape = (case.batch, case.heads, case.keys, case.head_dim)
        inputs = [query, drawn(*shape), drawn(*shape)]
    return Subject(formula(case), tuple(inputs), (), torch.empty_like(query))
