"""Loops over sequences: what Dynamo unrolls is rewritten pair by pair; what it skips is named."""

import itertools

import torch
import torch.nn.functional as F

import gdpa_inductor
from tests.jagged import jagged_operands, offsets_of
from tests.patterns.rows import fused

LENGTHS = (5, 3, 7)
SPECS = {"q": "l h d", "k": "l h d", "v": "l h e"}
SIZES = {"h": 2, "d": 4, "e": 6}


def one(q, k, v):
    """[N, H, D] each, of one sequence."""
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    return (F.silu(q @ k.mT) @ v).transpose(0, 1)


def by_lengths(q, k, v):
    parts = zip(*(x.split(LENGTHS) for x in (q, k, v)))
    return torch.cat([one(*part) for part in parts])


def by_offsets(q, k, v, offsets):
    ends = offsets.tolist()
    parts = [slice(a, b) for a, b in itertools.pairwise(ends)]
    return torch.cat([one(q[at], k[at], v[at]) for at in parts])


def by_items(q, k, v, offsets):
    out = torch.zeros(q.shape[0], q.shape[1], v.shape[2], dtype=v.dtype)
    for b in range(offsets.shape[0] - 1):
        at = slice(offsets[b].item(), offsets[b + 1].item())
        out[at] = one(q[at], k[at], v[at])
    return out


def test_split_by_a_list_is_one_region_for_each_sequence():
    fused(by_lengths, operands=jagged_operands(SPECS, LENGTHS, SIZES), regions=len(LENGTHS))


def test_a_loop_behind_tolist_is_unrolled():
    operands = jagged_operands({**SPECS, "offsets": "offsets"}, LENGTHS, SIZES)
    fused(by_offsets, operands=operands, regions=len(LENGTHS), fullgraph=False)


def test_a_loop_of_items_is_named_with_what_to_change():
    total = sum(LENGTHS)
    q, k, v = (torch.randn(total, 2, 4) for _ in range(3))
    offsets = offsets_of(LENGTHS)
    report = gdpa_inductor.explain(by_items, profit=False)(q, k, v, offsets)
    messages = [*report.skipped_frames, *report.graph_breaks]
    assert any("cu_seqlens" in entry.advice for entry in messages), str(report)
