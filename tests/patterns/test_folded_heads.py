"""Heads that are folded into the batch by `cat` and `split` are read where they lie."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.patterns.rows import is_exact, judge

SPECS = {"q": "b n 6", "k": "b m 6", "v": "b m 6"}


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.gelu(q.bmm(k.mT) / 2.5).bmm(v)


def fold(x: Tensor) -> Tensor:
    return torch.cat(x.split(2, 2), 0)


def with_keys(folded):
    """Attention whose keys alone are folded in this way."""
    return lambda q, k, v: attend(fold(q), folded(k), fold(v))


def whole(x: Tensor) -> Tensor:
    return torch.cat(x.chunk(3, dim=-1), dim=0)


def sized(x: Tensor) -> Tensor:
    return torch.concat(list(torch.split(x, [2, 2, 2], 2)))


def turned(x: Tensor) -> Tensor:
    a, b, c = x.split(2, 2)
    return torch.cat([b, a, c])


def repeated(x: Tensor) -> Tensor:
    a, b, _ = x.split(2, 2)
    return torch.cat([a, b, a])


def of_two(x: Tensor) -> Tensor:
    a, b, _ = x.split(2, 2)
    *_, c = (x * 2).split(2, 2)
    return torch.cat([a, b, c])


def written(x: Tensor) -> Tensor:
    result = fold(x)
    result.mul_(2)
    return result


def cats(recorder) -> int:
    (graph,) = recorder.graphs
    return graph.calls_after["cat"] + graph.calls_after["concat"]


@pytest.mark.parametrize("folded", [fold, whole, sized])
def test_no_head_is_copied(folded) -> None:
    recorder = judge(with_keys(folded), SPECS)
    assert len(recorder.graphs[0].matches) == 1
    assert cats(recorder) == 0


@pytest.mark.parametrize("folded", [turned, repeated, of_two, written])
def test_other_joins_stay(folded) -> None:
    recorder = judge(with_keys(folded), SPECS)
    assert len(recorder.graphs[0].matches) == 1
    assert cats(recorder) == 1


@is_exact(SPECS)
def test_what_is_written_afterwards_is_copied_before(q, k, v):
    k = k * 1.5
    folded = fold(k)
    k.mul_(2)
    return attend(fold(q), folded, fold(v)) + k.sum()


def test_a_residual_of_the_queries_keeps_their_copy() -> None:
    """Set Transformer's block: the folded queries are added to the result."""

    def function(q, k, v):
        q, k, v = map(fold, (q, k, v))
        return torch.cat((q + attend(q, k, v)).split(2, 0), 2)

    recorder = judge(function, SPECS)
    assert len(recorder.graphs[0].matches) == 1
    assert cats(recorder) == 2


@is_exact(SPECS | {"k": "1 m 6"})
def test_heads_of_keys_that_are_shared_by_the_batch(q, k, v):
    folded = fold(k).reshape(3, 1, *k.shape[1:-1], 2).expand(3, q.shape[0], -1, 2)
    return attend(fold(q), folded.reshape(-1, k.shape[1], 2), fold(v))
