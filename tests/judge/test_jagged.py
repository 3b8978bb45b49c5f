"""The judge on jagged operands: what is padded, and offsets that are sums."""

import pytest
import torch
import torch.nn.functional as F

from tests.judge.rewritten import (
    D,
    H,
    fused,
    operand,
    verdicts,
    with_argument,
)


def test_padded_integers_keep_their_kind() -> None:
    """Beside a fill that is a float, large ones would round."""
    offsets, total = torch.tensor([0, 2, 5]), 5

    def weighted(query, key, value, times, offsets):
        padded = [
            torch.ops.gdpa.jagged_to_padded_dense(x, offsets, 4) for x in (query, key, value, times)
        ]
        q, k, v = (x.transpose(1, 2) for x in padded[:3])
        out = (F.silu(q @ k.mT) * padded[3][:, None, None, :]) @ v
        return torch.ops.gdpa.dense_to_jagged(out.transpose(1, 2), offsets, total)

    values = [torch.randn(total, H, D) for _ in range(3)]
    times = torch.randint(1 << 40, 1 << 60, (total,))
    assert verdicts(weighted, [*values, times, offsets]) == [None]


def running(lengths: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(F.pad(lengths, (1, 0)), 0)


def from_lengths(q, k, v, lengths):
    """Q and the output have offsets of their own, equal to those of K and V."""
    rows, keys = running(lengths), running(lengths)
    pad = torch.ops.gdpa.jagged_to_padded_dense
    padded = (pad(x, cu, 16).transpose(1, 2) for x, cu in ((q, rows), (k, keys), (v, keys)))
    query, key, value = padded
    out = F.silu(query @ key.mT) @ value
    return torch.ops.gdpa.dense_to_jagged(out.transpose(1, 2), keys, q.shape[0])


def jagged_heads() -> tuple[list[torch.Tensor], torch.Tensor]:
    lengths = torch.tensor([5, 0, 7, 3, 9])
    return [torch.randn(24, H, D, requires_grad=True) for _ in range(3)], lengths


def test_offsets_that_are_summed_from_a_zero_and_lengths() -> None:
    """Two such sums of one thing are the same offsets, of every sequence."""
    values, lengths = jagged_heads()
    assert verdicts(from_lengths, [*values, lengths]) == [None]


OTHER_SUMS = {
    "other lengths": lambda x: running(x.flip(0)),
    "one length longer": lambda x: running(torch.cat([x[:2], x[2:3] + 1, x[3:]])),
    "an end for a beginning": lambda x: torch.cumsum(F.pad(x, (0, 1)), 0),
    "a one in front": lambda x: torch.cumsum(F.pad(x, (1, 0), value=1), 0),
    "a length in front": lambda x: torch.cumsum(torch.cat([x[:1], x]), 0),
    "no sum": lambda x: F.pad(x, (1, 0)),
}


@pytest.mark.parametrize("position", [7, 8])
@pytest.mark.parametrize("name", OTHER_SUMS)
def test_offsets_that_are_other_sums(name: str, position: int) -> None:
    values, lengths = jagged_heads()

    def other(old, graph):
        with graph.inserting_before(fused(graph)):
            return OTHER_SUMS[name](torch.fx.Proxy(operand(graph, "lengths"))).node

    (verdict,) = verdicts(from_lengths, [*values, lengths], with_argument(position, other))
    assert verdict is not None and verdict.invalid and "write" not in verdict.reason, verdict
