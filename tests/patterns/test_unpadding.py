"""unpadding: masks by lengths that a jagged side makes true vanish, and no others."""

import pytest
import torch
import torch.nn.functional as F

from tests._recorder import recorded

LENGTHS = torch.tensor([20, 0, 1, 40])
CU = F.pad(LENGTHS.cumsum(0), (1, 0))
N = 64
VALUES = [torch.randn(int(CU[-1]), 2, 16) for _ in range(3)]
pad, unpad = torch.ops.gdpa.jagged_to_padded_dense, torch.ops.gdpa.dense_to_jagged


def attention(q, k, v, cu, mask, sides="qk"):
    """mask: (weight, positions [N]) -> weight. sides: which are padded in this graph."""
    q, k, v = (pad(t, cu, N).transpose(1, 2) for t in (q, k, v))
    weight = F.silu(q @ k.mT)
    out = (mask(weight, torch.arange(N)) @ v).transpose(1, 2)
    return unpad(out, cu, VALUES[0].shape[0]) if "q" in sides else out


def keys(lengths):
    return lengths.view(-1, 1, 1, 1)


def inside(mask):
    """Where positions are inside of the sequences, by the differences of the offsets."""
    return lambda q, k, v, cu: attention(q, k, v, cu, lambda w, i: mask(w, i, keys(torch.diff(cu))))


def by_slices(q, k, v, cu):
    lengths = keys(cu[1:] - cu[:-1])
    return attention(q, k, v, cu, lambda w, i: torch.where(i < lengths, w, 0.0))


def by_sums(q, k, v, cu):
    lengths = torch.diff(cu)
    again = F.pad(lengths.cumsum(0), (1, 0))
    return attention(q, k, v, again, lambda w, i: torch.where(i < keys(lengths), w, 0.0))


def by_differences_of_sums(q, k, v, cu):
    again = F.pad(torch.diff(cu).cumsum(0), (1, 0))
    lengths = keys(again[1:] - again[:-1])
    return attention(q, k, v, again, lambda w, i: torch.where(i < lengths, w, 0.0))


IMPLIED = {
    "keys": (inside(lambda w, i, own: torch.where(i < own, w, 0.0)), "silu(s)"),
    "rows": (inside(lambda w, i, own: torch.where(i[:, None] < own, w, 0.0)), "silu(s)"),
    "as a factor": (inside(lambda w, i, own: w * (i < own)), "silu(s)"),
    "the other way round": (inside(lambda w, i, own: w.masked_fill(own <= i, 0.0)), "silu(s)"),
    "not": (inside(lambda w, i, own: w.masked_fill(~(own > i), 0.0)), "silu(s)"),
    "with more": (
        inside(lambda w, i, own: torch.where((i < own) & (i[:, None] >= i), w, 0.0)),
        "where(le(kv_idx,q_idx),silu(s),0.0)",
    ),
    "by slices": (by_slices, "silu(s)"),
    "by what the offsets are the sums of": (by_sums, "silu(s)"),
    "by differences of sums": (by_differences_of_sums, "silu(s)"),
}


@pytest.mark.parametrize("name", IMPLIED)
def test_a_condition_that_the_side_makes_true_vanishes(name: str) -> None:
    function, program = IMPLIED[name]
    matches = recorded(function, *VALUES, CU).matches
    assert [str(match.score_mod) for match in matches] == [program]


def shorter(q, k, v, cu):
    return attention(q, k, v, cu, lambda w, i: torch.where(i < keys(torch.diff(cu) - 1), w, 0.0))


def closed(q, k, v, cu):
    return attention(q, k, v, cu, lambda w, i: torch.where(i <= keys(torch.diff(cu)) - 2, w, 0.0))


def moved(q, k, v, cu):
    lengths = torch.diff(cu).roll(1)
    return attention(q, k, v, cu, lambda w, i: torch.where(i < keys(lengths), w, 0.0))


def mutated(q, k, v, cu):
    lengths = torch.diff(cu)
    lengths.sub_(1)
    return attention(q, k, v, cu, lambda w, i: torch.where(i < keys(lengths), w, 0.0))


def padded_rows(q, k, v, cu):
    mask = lambda w, i: torch.where(i[:, None] < keys(torch.diff(cu)), w, 0.0)
    return attention(q, k, v, cu, mask, sides="k")


def of_heads(q, k, v, cu):
    """Lengths that the heads have, not the batch: 2 of them."""
    lengths = torch.diff(cu)[:2].view(1, 2, 1, 1)
    return attention(q, k, v, cu, lambda w, i: torch.where(i < lengths, w, 0.0))


NOT_IMPLIED = [shorter, closed, moved, mutated, padded_rows, of_heads]


@pytest.mark.parametrize("function", NOT_IMPLIED)
def test_any_other_condition_stays(function) -> None:
    (match,) = recorded(function, *VALUES, CU).matches
    assert match.problem.jagged and "where" in str(match.score_mod)
