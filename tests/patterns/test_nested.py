"""Nested tensors of layout torch.jagged that are padded in the graph: their values are used."""

import pytest
import torch
import torch.nn.functional as F

from tests._recorder import Recorder
from tests.jagged import offsets_of

LENGTHS = ((5, 0, 7, 1), (2, 8, 3))


def rows_padded(q, k, v):
    """What is returned has padded rows."""
    q, k, v = (torch.nested.to_padded_tensor(x, 0.0).transpose(1, 2) for x in (q, k, v))
    return F.silu(q @ k.mT * 0.5) @ v


def rows_unpadded(q, k, v):
    padded = [x.to_padded_tensor(0.0) for x in (q, k, v)]
    scores = torch.einsum("bnhd,bmhd->bhnm", padded[0], padded[1])
    out = torch.einsum("bhnm,bmhd->bnhd", torch.sigmoid(scores), padded[2])
    total = q.values().shape[0]
    return torch.ops.gdpa.dense_to_jagged(out.flatten(2), q.offsets(), total)


def nested(lengths, seed, others=None):
    """(values [L, 2, 16], the nested tensor over them), of the offsets of `others`."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(sum(lengths), 2, 16, generator=generator, requires_grad=True)
    offsets = offsets_of(lengths) if others is None else others.offsets()
    result = torch.nested.nested_tensor_from_jagged(values, offsets, max_seqlen=max(lengths))
    return values, result


@pytest.mark.parametrize("backend", ["recorder", "gdpa"])
@pytest.mark.parametrize(
    ("function", "sides"), [(rows_padded, "k"), (rows_unpadded, "qk")], ids=["padded", "unpadded"]
)
def test_values_of_nested_tensors(function, sides, backend):
    recorder = Recorder()
    options = {"options": {"gdpa.profit": False}} if backend == "gdpa" else {}
    compiled = torch.compile(
        function, backend=recorder if backend == "recorder" else "gdpa", fullgraph=True, **options
    )
    for lengths in LENGTHS:
        values_q, q = nested(lengths, 0)
        values_k, k = nested(lengths, 1, q)
        values_v, v = nested(lengths, 2, q)
        leaves = (values_q, values_k, values_v)
        mine, eager = compiled(q, k, v), function(q, k, v)
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-4)
        weight = torch.randn_like(eager)
        grads = [torch.autograd.grad(x, leaves, weight) for x in (mine, eager)]
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)
    if backend == "recorder":
        for match in recorder.matches:
            problem = match.problem
            assert sides == "q" * problem.jagged_query + "k" * problem.jagged_key, match.notes
        assert recorder.matches
    else:
        assert torch._dynamo.utils.counters["gdpa"]["matched_varlen"] >= 1


def test_other_offsets_are_not_the_same():
    """Also where the graph was captured with one and the same: a guard keeps them so."""
    recorder = Recorder()
    compiled = torch.compile(rows_padded, backend=recorder, fullgraph=True)
    for other in ((5, 3, 8), (8, 5, 3)):
        _, q = nested((5, 3, 8), 0)
        _, k = nested(other, 1, q if other == (5, 3, 8) else None)
        _, v = nested((5, 3, 8), 2, q)
        torch.testing.assert_close(compiled(q, k, v), rows_padded(q, k, v), rtol=1e-4, atol=1e-4)
    first, second = recorder.matches
    assert first.problem.jagged_key and not second.problem.jagged
    assert "JAGGED_OFFSETS" in {note.code.name for note in second.notes}
