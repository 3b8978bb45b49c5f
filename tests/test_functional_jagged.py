"""functional: the public door on jagged values and nested tensors."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.utils import counters
from torch._subclasses import FakeTensorMode

import gdpa_inductor
from gdpa_inductor import GDPAError, functional
from tests._recorder import Recorder
from tests.jagged_cases import CASES, JaggedCase

pytestmark = pytest.mark.usefixtures("no_cpu_cost_model")

SCORES: dict[str, tuple[Callable | None, Callable | None]] = {
    "silu": (lambda s, b, h, n, m: F.silu(s), None),
    "causal": (lambda s, b, h, n, m: F.silu(s), lambda b, h, n, m: n >= m),
    "indices": (lambda s, b, h, n, m: F.silu(s) * (b + h + n * m), None),
}
DOOR = [
    ("self", "silu"), ("own offsets", "silu"), ("PFFN", "silu"), ("PFFN, one for all", "silu"),
    ("PMA", "silu"), ("delta queries", "silu"), ("int32", "silu"), ("truncated", "silu"),
    ("bounds beyond the longest", "silu"), ("rows of nobody", "silu"), ("empty batch", "silu"),
    ("empty batch, PMA", "silu"), ("one sequence", "silu"), ("MHA", "silu"), ("causal", "causal"),
    ("indices", "indices"),
]  # fmt: skip


def grouped(case: JaggedCase) -> JaggedCase:
    """The door takes key and value with the same number of heads."""
    return replace(case, heads=(case.heads[0], case.heads[1], case.heads[1]))


def call(case: JaggedCase, tensors: list[Tensor], score: str, bounds: bool = True) -> Tensor:
    cu_q, cu_k = case.offsets()
    score_mod, mask_mod = SCORES[score]
    return gdpa_inductor.attention(
        *tensors,
        score_mod=score_mod,
        mask_mod=mask_mod,
        cu_seqlens_q=cu_q,
        cu_seqlens_k=cu_k,
        max_seqlen_q=case.max_q if bounds and cu_q is not None else None,
        max_seqlen_k=case.max_k if bounds and cu_k is not None else None,
        enable_gqa=True,
    )


@pytest.mark.parametrize(("name", "score"), DOOR)
def test_it_is_the_formula_of_each_sequence(name: str, score: str) -> None:
    case = grouped(CASES[name])
    tensors = case.tensors()
    actual, expected = call(case, tensors, score), case.by_hand(tensors)
    torch.testing.assert_close(actual, expected)
    if expected.requires_grad:
        cotangent = torch.randn_like(expected)
        ours = torch.autograd.grad(actual, tensors, cotangent)
        theirs = torch.autograd.grad(expected, tensors, cotangent, allow_unused=True)
        for mine, other, leaf in zip(ours, theirs, tensors, strict=True):
            torch.testing.assert_close(mine, torch.zeros_like(leaf) if other is None else other)


@pytest.mark.parametrize("name", ["self", "own offsets", "PFFN", "PMA", "empty batch"])
def test_without_bounds_nothing_is_cut_off(name: str) -> None:
    case = grouped(CASES[name])
    tensors = case.tensors()
    torch.testing.assert_close(call(case, tensors, "silu", bounds=False), case.by_hand(tensors))


def test_a_weight_that_is_singular_at_padding() -> None:
    """log|s| and its slope are infinite where padded keys have their zeros."""
    case = JaggedCase("s", lambda s, *_: s.abs().log(), cols=(2, 4, 0, 7), heads=(2, 2, 2))
    tensors = case.tensors()
    cu_q, cu_k = case.offsets()
    log = lambda s, b, h, n, m: s.abs().log()
    actual = gdpa_inductor.attention(*tensors, score_mod=log, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
    expected = case.by_hand(tensors)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(*(torch.autograd.grad(x.sum(), tensors) for x in (actual, expected)))


# Compiled

LENGTHS = (90, 0, 1, 64)
CU = F.pad(torch.tensor(LENGTHS).cumsum(0), (1, 0))
L, LONGEST = int(CU[-1]), max(LENGTHS)


def values(heads: int = 2, total: int = L) -> list[Tensor]:
    return [torch.randn(total, heads, 16, requires_grad=True) for _ in range(3)]


def by_offsets(cu: Tensor, longest: int | None) -> dict[str, Any]:
    """The same for queries and keys."""
    offsets = {"cu_seqlens_q": cu, "cu_seqlens_k": cu}
    return {**offsets, "max_seqlen_q": longest, "max_seqlen_k": longest}


def door(q: Tensor, k: Tensor, v: Tensor, cu: Tensor, longest: int | None) -> Tensor:
    mods = dict(zip(("score_mod", "mask_mod"), SCORES["causal"]))
    return gdpa_inductor.attention(q, k, v, **mods, scale=0.25, **by_offsets(cu, longest))


def assert_same(function: Callable, other: Callable, tensors: list[Tensor], *rest: object) -> None:
    actual, expected = function(*tensors, *rest), other(*tensors, *rest)
    cotangent = torch.randn_like(expected)
    trained = [(x, *torch.autograd.grad(x, tensors, cotangent)) for x in (actual, expected)]
    torch.testing.assert_close(*trained, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("longest", [LONGEST, None])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor", "gdpa"])
def test_under_every_backend(backend: str, longest: int | None) -> None:
    compiled = torch.compile(door, backend=backend, fullgraph=True)
    assert_same(compiled, door, values(), CU, longest)
    if backend == "gdpa":
        assert counters["gdpa"]["lowered_varlen"] == 2 and not counters["gdpa"]["fallback"]


@pytest.mark.parametrize("scalars", [False, True])
def test_a_bound_in_a_tensor_is_read(scalars: bool) -> None:
    longest, given = torch.diff(CU).max(), values()
    assert_same(lambda *a: door(*a, longest), lambda *a: door(*a, LONGEST), given, CU)

    def model(q: Tensor, k: Tensor, v: Tensor, cu: Tensor) -> Tensor:
        return door(q, k, v, cu, torch.diff(cu).max())

    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=scalars):
        compiled = torch.compile(model, backend="gdpa", fullgraph=scalars)
        assert_same(compiled, lambda *a: door(*a, LONGEST), given, CU)
    assert counters["gdpa"]["matched"]


def test_it_becomes_one_op_without_padding() -> None:
    recorder = Recorder()
    torch.compile(door, backend=recorder, fullgraph=True)(*values(), CU, LONGEST)
    (match,) = recorder.matches
    assert match.score_mod.formula == "where(kv_idx <= q_idx, silu(s*0.25), 0.0)"
    assert match.problem.jagged_query and match.problem.jagged_key
    assert match.problem.total_rows == L


def with_tokens(q: Tensor, k: Tensor, v: Tensor, cu: Tensor, times: Tensor, bias: Tensor) -> Tensor:
    padded = torch.ops.gdpa.jagged_to_padded_dense(times, cu, LONGEST)

    def score_mod(s, b, h, n, m):
        return F.silu(s * padded[:, None, :, None] + bias[h, n, m])

    return gdpa_inductor.attention(q, k, v, score_mod=score_mod, **by_offsets(cu, LONGEST))


def test_captured_operands_and_their_gradients() -> None:
    times, bias = torch.randn(L), torch.randn(2, LONGEST, LONGEST)
    tensors = [*values(), times.requires_grad_(), bias.requires_grad_()]

    def run(q, k, v, times, bias):
        return with_tokens(q, k, v, CU, times, bias)

    assert_same(torch.compile(run, backend="gdpa", fullgraph=True), run, tensors)
    assert counters["gdpa"]["lowered_varlen"] == 2
    recorder = Recorder()
    torch._dynamo.reset()
    torch.compile(run, backend=recorder, fullgraph=True)(*tensors)
    assert sorted(str(a) for a in recorder.matches[0].score_mod.aux) == [
        "f[-,h,q_idx,kv_idx]",
        "f[q]",
    ]


def batches(count: int) -> list[tuple[list[Tensor], Tensor]]:
    """Values and offsets of batches of different sizes and lengths; some sequences are empty."""
    drawn = []
    for _ in range(count):
        lengths = torch.randint(0, 60, (int(torch.randint(2, 8, ())),))
        lengths[0] += 2
        cu = F.pad(lengths.cumsum(0), (1, 0))
        drawn.append((values(total=int(cu[-1])), cu))
    return drawn


@pytest.mark.parametrize("bound", ["left out", "a number", "read in the graph"])
def test_one_compile_for_fifty_batches(bound: str) -> None:
    """Sizes, lengths and bounds differ from batch to batch."""

    def run(q, k, v, cu):
        longest = {"left out": None, "a number": 64}.get(bound)
        if bound == "read in the graph":
            longest = torch.diff(cu).max().item()
        return door(q, k, v, cu, longest)

    compiled = torch.compile(run, backend="gdpa", fullgraph=True, dynamic=True)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for tensors, cu in batches(50):
            assert_same(compiled, run, tensors, cu)
    assert counters["stats"]["unique_graphs"] == 1
    lowered = {"lowered_cpu": 2, "lowered_varlen": 2}
    assert counters["gdpa"] == {"matched": 1, "matched_varlen": 1, "rejected": 0, **lowered}


# Nested tensors


def nested(*tensors: Tensor, cu: Tensor = CU) -> list[Tensor]:
    return [torch.nested.nested_tensor_from_jagged(t, cu) for t in tensors]


def test_nested_tensors() -> None:
    tensors = values()

    def run(q, k, v):
        return gdpa_inductor.attention(*nested(q, k, v), score_mod=SCORES["silu"][0])

    actual = run(*tensors)
    assert actual.is_nested and actual.shape[0] == 4 and actual.layout == torch.jagged
    expected = gdpa_inductor.attention(
        *tensors, score_mod=SCORES["silu"][0], cu_seqlens_q=CU, cu_seqlens_k=CU
    )
    assert torch.equal(actual.values(), expected)
    actual.values().sum().backward()
    assert all(t.grad is not None for t in tensors)


def test_a_nested_result_goes_with_its_query() -> None:
    q, k, v = nested(*(t.detach() for t in values()))
    out = gdpa_inductor.attention(q, k, v, score_mod=SCORES["silu"][0])
    assert torch.equal((out + q).values(), out.values() + q.values())


def test_nested_keys_under_dense_queries() -> None:
    _, k, v = values()
    seeds = torch.randn(1, 2, 3, 16)
    actual = gdpa_inductor.attention(seeds, *nested(k, v), score_mod=SCORES["silu"][0])
    expected = gdpa_inductor.attention(seeds, k, v, score_mod=SCORES["silu"][0], cu_seqlens_k=CU)
    assert actual.shape == (4, 2, 3, 16) and torch.equal(actual, expected)


def test_a_nested_tensor_says_its_longest_sequence() -> None:
    """So that no score is asked for beyond it: a bias by distance has no more elements."""
    q, k, v = (t.detach() for t in values())
    bias = torch.randn(LONGEST)

    def run(q, k, v, cu):
        operands = [
            torch.nested.nested_tensor_from_jagged(t, cu, max_seqlen=LONGEST) for t in (q, k, v)
        ]
        by_distance = lambda s, b, h, i, j: F.silu(s + bias[(i - j).abs()])
        return gdpa_inductor.attention(*operands, score_mod=by_distance).values()

    actual = torch.compile(run, backend="gdpa", fullgraph=True)(q, k, v, CU)
    torch.testing.assert_close(actual, run(q, k, v, CU), rtol=1e-4, atol=1e-4)


# Faults

Q, K, V = (torch.randn(9, 2, 6) for _ in range(3))
OFFSETS = torch.tensor([0, 3, 3, 9])
SELF = {"cu_seqlens_q": OFFSETS, "cu_seqlens_k": OFFSETS}
DENSE_ROWS = {"query": torch.randn(2, 2, 5, 6), "cu_seqlens_q": None}
TWO = nested(torch.randn(4, 2, 6), cu=torch.tensor([0, 1, 2, 4]))[0]
OTHER = nested(torch.randn(5, 2, 6), cu=torch.tensor([0, 1, 2, 5]))[0]
STRIDED = torch.nested.nested_tensor([torch.randn(2, 3, 4), torch.randn(4, 3, 4)])
NESTED = {"query": TWO, "key": TWO, "value": TWO, "cu_seqlens_q": None, "cu_seqlens_k": None}
NOT_JAGGED = "a nested query must be of layout torch.jagged"
UNLIKE = "batch, heads or lengths differ"
FAULTS = {
    "dense query": ({"query": Q[None]}, "query must be .total length, heads, head dim. next to"),
    "dense key": ({"cu_seqlens_k": None}, "key must be a floating-point tensor"),
    "bound": ({"cu_seqlens_q": None, "max_seqlen_q": 4}, "query is dense"),
    "dtype": ({"cu_seqlens_k": OFFSETS.float()}, "cu_seqlens_k must be .batch"),
    "list of offsets": ({"cu_seqlens_q": [0, 3, 3, 9]}, "cu_seqlens_q must be a tensor .* list"),
    "empty": ({"cu_seqlens_k": OFFSETS[:0]}, "cu_seqlens_k is empty"),
    "device": ({"cu_seqlens_k": OFFSETS.to("meta")}, "cu_seqlens_k is on meta"),
    "decreasing": ({"cu_seqlens_q": torch.tensor([0, 5, 3, 9])}, "cu_seqlens_q must not decrease"),
    "beyond": ({"cu_seqlens_q": OFFSETS + 1}, "must lie in 0..9"),
    "batches": ({"cu_seqlens_k": OFFSETS[:3]}, UNLIKE),
    "dense batch": (DENSE_ROWS, UNLIKE),
    "lengths": ({"value": V[:8]}, "must lie in 0..8"),
    "heads": ({"key": K[:, :1], "value": V[:, :1]}, "2 query heads over 1 key heads need"),
    "nested and offsets": ({"query": TWO}, "query is nested: its offsets are its own"),
    "nested key alone": ({**NESTED, "value": V}, "key and value must both be nested"),
    "nested, transposed": ({**NESTED, "query": TWO.transpose(1, 2)}, NOT_JAGGED),
    "nested, strided": (
        {**NESTED, **dict.fromkeys(("query", "key", "value"), STRIDED)},
        NOT_JAGGED,
    ),
    "nested otherwise": (
        {**NESTED, "value": OTHER},
        "key and value are nested by different offsets",
    ),
}


@pytest.mark.parametrize("side", ["q", "k"])
def test_a_negative_bound(side: str) -> None:
    with pytest.raises(ValueError, match=f"max_seqlen_{side} must not be negative, got -1"):
        gdpa_inductor.attention(Q, K, V, **SELF, **{f"max_seqlen_{side}": -1})


@pytest.mark.parametrize("name", FAULTS)
def test_operands_that_do_not_fit(name: str) -> None:
    wrong, message = FAULTS[name]
    with pytest.raises(GDPAError, match=message):
        gdpa_inductor.attention(**{"query": Q, "key": K, "value": V, **SELF, **wrong})


@pytest.mark.parametrize(("rows", "head_dim"), [(1, 64), (1, 8), (3, 8)])
def test_without_a_bound_nothing_is_too_small(rows, head_dim):
    """Unfused, it would be padded to the number of all rows."""

    def pool(seeds, key, value, cu_seqlens):
        keys = {"cu_seqlens_k": cu_seqlens}
        return gdpa_inductor.attention(seeds, key, value, score_mod=SCORES["silu"][0], **keys)

    offsets = torch.tensor([0, 5, 5, 19, 30])
    seeds = torch.randn(1, 2, rows, head_dim, dtype=torch.float64, requires_grad=True)
    key, value = (torch.randn(30, 2, head_dim, dtype=torch.float64) for _ in range(2))
    torch._dynamo.reset()
    compiled = torch.compile(pool, backend="gdpa", options={"gdpa.expect": 1})
    out, wanted = (f(seeds, key, value, offsets) for f in (compiled, pool))
    torch.testing.assert_close(out, wanted)
    actual, exact = (torch.autograd.grad(x.square().sum(), seeds) for x in (out, wanted))
    torch.testing.assert_close(actual, exact)


def test_with_a_bound_no_jagged_region_is_too_small():
    """On an H200 small jagged regions gained most (2026-11-22)."""

    def pool(seeds, key, value, cu_seqlens):
        keys = {"cu_seqlens_k": cu_seqlens, "max_seqlen_k": 14}
        return gdpa_inductor.attention(seeds, key, value, score_mod=SCORES["silu"][0], **keys)

    offsets, seeds = torch.tensor([0, 5, 5, 19, 30]), torch.randn(1, 2, 1, 16)
    key, value = torch.randn(30, 2, 16), torch.randn(30, 2, 16)
    torch._dynamo.reset()
    compiled = torch.compile(pool, backend="gdpa", options={"gdpa.expect": 1})
    actual, wanted = (f(seeds, key, value, offsets) for f in (compiled, pool))
    torch.testing.assert_close(actual, wanted)


def test_a_trace_does_not_ask_whether_a_cuda_graph_is_captured(monkeypatch) -> None:
    """Dynamo cannot trace the question."""
    calls = []
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: calls.append(1))
    with FakeTensorMode(allow_non_fake_inputs=True):
        offsets = torch.empty(4, dtype=torch.int64, device="cuda")
    assert functional._bound(offsets, 10) == 10 and not calls
