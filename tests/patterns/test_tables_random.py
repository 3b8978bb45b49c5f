"""Random spellings of a learned bias that is looked up: results and gradients by the error rule.

bias   = form(table, index), then what models do with a bias
index  = near distances, buckets of times (of each sample), or places drawn at random
"""

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gdpa_inductor import look_up
from tests._judge import difference, mark_dynamic, noise_of, results
from tests._recorder import Recorder
from tests.operands import make_operands, recast

T, SIZES = 5, {"b": 2, "h": 3, "n": 9, "m": 7, "d": 4}
SPECS = {
    "q": "b h n d", "k": "b h m d", "v": "b h m d", "drawn": "count: n m", "gaps": "count: b n+1",
}  # fmt: skip


def near(drawn: Tensor, gaps: Tensor) -> Tensor:
    n, m = drawn.shape
    return (torch.arange(n)[:, None] - torch.arange(m)).clamp(-2, 2) + 2


def times(drawn: Tensor, gaps: Tensor) -> Tensor:
    at = gaps.cumsum(1)
    apart = (at[:, 1:, None] - at[:, None, : drawn.shape[1]]).abs()
    return (apart // 3).clamp(max=T - 1)


def anywhere(drawn: Tensor, gaps: Tensor) -> Tensor:
    return drawn % T


INDICES = [near, times, anywhere]


def of_all(spelling: Callable) -> Callable:
    """One row of a table for all heads: [N, M] or [B, 1, N, M]."""

    def bias(table: Tensor, index: Tensor) -> Tensor:
        actual = spelling(table, index)
        return actual.unsqueeze(1) if actual.dim() == 3 else actual

    return bias


def heads_first(spelling: Callable) -> Callable:
    """[H, ...] to [H, N, M] or [B, H, N, M]."""

    def bias(table: Tensor, index: Tensor) -> Tensor:
        actual = spelling(table, index)
        return actual.movedim(0, -3) if actual.dim() == 4 else actual

    return bias


def heads_last(spelling: Callable) -> Callable:
    return lambda table, index: spelling(table, index).movedim(-1, -3)


def _selected(t: Tensor, i: Tensor) -> Tensor:
    return torch.index_select(t, dim=0, index=i.view(-1)).unflatten(0, i.shape)


def _gathered(t: Tensor, i: Tensor) -> Tensor:
    return t.gather(1, i.view(1, -1).expand(t.shape[0], -1)).unflatten(1, i.shape)


# (spec of the table, the lookup, whether negative places count from the end)
FORMS: list[tuple[str, Callable, bool]] = [
    ("5", of_all(lambda t, i: t[i]), True),
    ("5", of_all(lambda t, i: t.index_select(0, i.flatten()).view(i.shape)), False),
    ("5", of_all(lambda t, i: t.gather(0, i.reshape(-1)).view_as(i)), False),
    ("5", of_all(lambda t, i: torch.take(t, i)), True),
    ("5 1", of_all(lambda t, i: F.embedding(i, t).squeeze(-1)), False),
    ("h 5", heads_first(lambda t, i: t[:, i]), True),
    ("h 5", heads_first(lambda t, i: t.index_select(-1, i.view(-1)).unflatten(1, i.shape)), False),
    ("h 5", heads_first(_gathered), False),
    ("h 5", heads_first(lambda t, i: torch.ops.aten.index.Tensor(t, [None, i])), True),
    ("5 h", heads_last(lambda t, i: F.embedding(i, t)), False),
    ("5 h", heads_last(lambda t, i: torch.embedding(t, i)), False),
    ("5 h", heads_last(lambda t, i: t[i.reshape(-1)].view(*i.shape, -1)), True),
    ("5 h", heads_last(lambda t, i: t[i.int()]), True),
    ("5 h", heads_last(_selected), False),
    ("5 1 h", heads_last(lambda t, i: t[i, :].squeeze(-2)), True),
]
THEN: list[Callable[[Tensor], Tensor]] = [
    lambda x: x,
    lambda x: x * 0.5,
    lambda x: x.contiguous(),
    lambda x: 1.0 - x,
    lambda x: x.sigmoid(),
    lambda x: x.clone().mul_(2.0),
    lambda x: x.unsqueeze(0) if x.dim() == 3 else x,
]


def drawn(seed: int) -> tuple[Callable, dict[str, str], str]:
    """A function, the specs of its operands and their dtype."""
    rng = random.Random(seed)
    spec, form, wraps = rng.choice(FORMS)
    index, then, act = (
        rng.choice(INDICES),
        rng.choice(THEN),
        rng.choice([F.silu, torch.sigmoid, F.gelu]),
    )
    shift = T if wraps and rng.random() < 0.5 else 0
    twice = rng.random() < 0.25

    def attention(q, k, v, drawn, gaps, table):
        bias = then(form(table, index(drawn, gaps) - shift))
        bias = bias + form(table, near(drawn, gaps)) if twice else bias
        return act(q @ k.mT + bias) @ v

    dtype = rng.choice(["float64", "float64", "float32", "bfloat16"])
    return attention, {**SPECS, "table": spec}, dtype


@pytest.mark.usefixtures("uncached_fakes")
@pytest.mark.parametrize("seed", range(90))
def test_a_random_lookup(seed, monkeypatch):
    monkeypatch.setattr(look_up, "_FEWEST_COPIES", 2)
    monkeypatch.setattr(look_up, "_LEAST_SHARE", 1)
    function, specs, name = drawn(seed)
    dtype = getattr(torch, name)
    operands = make_operands(specs, SIZES, dtype=dtype, seed=seed)
    recorder = Recorder()
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=recorder, fullgraph=True)
    eager, exact = (results(function, recast(operands, d)) for d in (dtype, torch.float64))
    fresh = recast(operands, dtype)
    if seed % 5 == 0:
        mark_dynamic(specs, fresh)
    fault = difference(results(compiled, fresh), eager, exact)
    if fault and dtype != torch.float64:
        noise = noise_of(function, operands, exact, torch.finfo(dtype).eps)
        fault = difference(results(compiled, fresh), eager, exact, noise=noise)
    after = recorder.graphs[-1].after
    assert not fault, f"{fault}\n{after}"
    assert recorder.matches and not any(graph.guards_added for graph in recorder.graphs)
    assert "look_up" in after or "lookup(" in after, after
