"""What a step keeps of tables that are looked up, and what may be written meanwhile."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from gdpa_inductor import look_up
from tests._recorder import ALWAYS, Recorder
from tests.operands import generator_of

B, H, N, T = 2, 2, 32, 5
NO_PROFIT = {"gdpa.profit": False}


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(look_up, "_FEWEST_COPIES", 2)


def apart(times):
    return (times[:, :, None] - times[:, None, :]).abs()


def minutes(times):
    return (apart(times) // 60).clamp(max=T - 1)


def attention(bucket):
    def function(q, k, v, table, times):
        bias = table[bucket(times)].unsqueeze(1)
        return F.silu(q @ k.mT + bias) @ v

    return function


def operands(dtype=torch.float64):
    generator = generator_of(0)
    leaves = [torch.randn(B, H, N, 8, generator=generator, dtype=dtype) for _ in range(3)]
    leaves.append(torch.randn(T, generator=generator, dtype=dtype))
    times = torch.randint(0, 60, (B, N), generator=generator).cumsum(1)
    return [x.requires_grad_() for x in leaves], times


def run(function, leaves, times):
    """The output, and what was kept for the backward, once everything is compiled."""
    function(*leaves, times)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        return function(*leaves, times), saved


def gradients(output, leaves):
    weights = torch.randn(output.shape, generator=generator_of(7), dtype=output.dtype)
    return torch.autograd.grad(output, leaves, weights)


def same(output, eager, leaves) -> None:
    """Results and gradients."""
    torch.testing.assert_close(output, eager)
    torch.testing.assert_close(gradients(output, leaves), gradients(eager, leaves))


def assert_alike(mine, function, leaves, *rest) -> None:
    same(mine(*leaves, *rest), function(*leaves, *rest), leaves)


def integers(saved) -> int:
    """The most integers that one of these tensors has."""
    return max((x.numel() for x in saved if not x.is_floating_point()), default=0)


def compiled(function, backend="gdpa"):
    torch._dynamo.reset()
    options = NO_PROFIT if backend == "gdpa" else None
    return torch.compile(function, backend=backend, options=options, fullgraph=True)


def logarithms(times):
    return (torch.log(apart(times).clamp(min=1).float()) / 0.301).long().clamp(0, T - 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_no_bias_and_no_index_of_integers_is_kept(dtype):
    leaves, times = operands(dtype)
    _, saved = run(compiled(attention(minutes)), leaves, times)
    assert all(x.numel() < B * N * N for x in saved)
    assert integers(saved) == B * N


def tenths(times):
    return (apart(times).float() * 0.1).long().clamp(0, T - 1)


@pytest.mark.parametrize("bucket", [logarithms, tenths])
def test_an_index_that_floats_decide_is_kept_in_a_byte(bucket):
    """Once for two layers, which look it up in tables of their own."""

    def function(q, k, v, table, times):
        y = attention(bucket)(q, k, v, table, times)
        return attention(bucket)(y, k, v, table * 2, times)

    leaves, times = operands()
    output, saved = run(compiled(function), leaves, times)
    large = {x.data_ptr(): x.dtype for x in saved if x.numel() >= B * N * N}
    assert list(large.values()) == [torch.uint8]
    same(output, function(*leaves, times), leaves)


@pytest.mark.parametrize("changed", ["times", "table"])
@pytest.mark.parametrize("bucket", [minutes, logarithms])
def test_the_caller_may_change_what_a_bias_is_made_from(bucket, changed):
    """Eager keeps the index itself, and its look-up does not read the table again."""
    leaves, times = operands()
    wanted = gradients(attention(bucket)(*leaves, times), leaves)
    output = compiled(attention(bucket))(*leaves, times)
    with torch.no_grad():
        (times if changed == "times" else leaves[3]).zero_()
    torch.testing.assert_close(gradients(output, leaves), wanted)


def test_the_caller_may_change_an_index():
    def function(q, k, v, table, places):
        return F.silu(q @ k.mT + table[places]) @ v

    leaves, times = operands()
    places = minutes(times)[0].contiguous()
    wanted = gradients(function(*leaves, places), leaves)
    output, saved = run(compiled(function), leaves, places)
    assert {x.dtype for x in saved if not x.is_floating_point()} == {torch.uint8}
    places.zero_()
    torch.testing.assert_close(gradients(output, leaves), wanted)


def test_in_a_checkpoint():
    def function(q, k, v, table, times):
        return checkpoint(attention(minutes), q, k, v, table, times, use_reentrant=False)

    leaves, times = operands()
    assert_alike(compiled(function), function, leaves, times)


def test_a_bias_that_is_made_outside_of_a_checkpoint():
    def layer(q, k, v, bias):
        return F.silu(q @ k.mT + bias * 2) @ v

    def layers(q, k, v, bias):
        return checkpoint(layer, q, k, v, bias, use_reentrant=False)

    def function(q, k, v, table, times):
        bias = table[minutes(times)].unsqueeze(1)
        return checkpoint(layers, q, k, v, bias, use_reentrant=False)

    leaves, times = operands()
    recorder = Recorder()
    assert_alike(compiled(function, recorder), function, leaves, times)
    assert len(recorder.matches) == 1, recorder.why()
    assert recorder.graphs[0].calls_after["look_up"] == 1


def written_before(q, k, v, table, times):
    bucket = minutes(times)
    bucket[:, 3] = 1
    return F.silu(q @ k.mT + table[bucket].unsqueeze(1)) @ v


def stamps_written_after(q, k, v, table, times):
    output = attention(minutes)(q, k, v, table, times)
    times.add_(1000)
    return output


def stamps_written_through_an_alias(q, k, v, table, times):
    rows = times.view(-1)
    bucket = minutes(times)
    rows[::2] += 100
    return F.silu(q @ k.mT + table[bucket].unsqueeze(1)) @ v


def table_written_after(q, k, v, table, times):
    stored = table * 1.0
    bias = stored[minutes(times)].unsqueeze(1)
    with torch.no_grad():
        stored.mul_(3.0)
    return F.silu(q @ k.mT + bias) @ v


def bias_written_after(q, k, v, table, times):
    bias = table[minutes(times)]
    bias[:, :, 5:].mul_(2.0)
    bias[0] = 0.25
    return F.silu(q @ k.mT + bias.unsqueeze(1)) @ v


def table_used_elsewhere(q, k, v, table, times):
    bias = table[minutes(times)].unsqueeze(1) * table.sum()
    return F.silu(q @ k.mT + bias) @ v * table[2]


def index_used_elsewhere(q, k, v, table, times):
    bucket = minutes(times)
    bias = table[bucket].unsqueeze(1)
    return F.silu(q @ k.mT + bias) @ v + bucket.sum() * table[bucket[0, 0]].sum()


def one_index_for_two_layers(q, k, v, table, times):
    bucket = minutes(times)
    y = F.silu(q @ k.mT + table[bucket].unsqueeze(1)) @ v
    return F.silu(y @ k.mT + (table * 2)[bucket].unsqueeze(1)) @ v


def cut_table(q, k, v, table, times):
    """Only one of two look-ups has a gradient."""
    bucket = minutes(times)
    bias = table.detach()[bucket] * table[bucket]
    return F.silu(q @ k.mT + bias.unsqueeze(1)) @ v


def looked_up_without_gradients(q, k, v, table, times):
    bucket = minutes(times)
    with torch.no_grad():
        first = table[bucket]
    return F.silu(q @ k.mT + (first + table[T - 1 - bucket]).unsqueeze(1)) @ v


HOSTILE = [
    written_before, stamps_written_after, stamps_written_through_an_alias,
    table_written_after, bias_written_after, table_used_elsewhere, index_used_elsewhere,
    one_index_for_two_layers, cut_table, looked_up_without_gradients,
]  # fmt: skip


@pytest.mark.parametrize("function", HOSTILE)
@pytest.mark.parametrize("backend", ["rewritten", "aot_eager_decomp_partition"])
def test_writes_and_other_uses(function, backend):
    """The rewritten graph as it is, and behind torch's partitioner."""
    recorder = Recorder()

    def partitioned(gm, inputs):
        recorder(gm, inputs)
        return torch._dynamo.lookup_backend(backend)(gm, inputs)

    leaves, times = operands()
    mine = compiled(function, recorder if backend == "rewritten" else partitioned)
    arguments = [times.clone() for _ in range(2)]
    output, wanted = mine(*leaves, arguments[0]), function(*leaves, arguments[1])
    same(output, wanted, leaves)
    assert torch.equal(*arguments)
    assert recorder.matches, recorder.why()


PROGRAM = {
    "index": lambda t, i: t[i],
    "gather": lambda t, i: t.gather(0, i.view(-1)).view_as(i),
    "index_select": lambda t, i: t.index_select(0, i.view(-1)).view_as(i),
    "embedding": lambda t, i: F.embedding(i, t[:, None]).squeeze(-1),
}
OPERATOR = {
    "take": lambda t, i: t.take(i),
    "padded embedding": lambda t, i: F.embedding(i, t[:, None], padding_idx=1).squeeze(-1),
    "two indices": lambda t, i: t[None][torch.zeros_like(i), i],
}
OUTSIDE = pytest.mark.parametrize("place", [T, -T - 1, 1 << 40, -(1 << 40)])


def with_place(look, place):
    """The function compiled, eager, and the arguments, one place of which is outside."""

    def function(q, k, v, table, places):
        return F.silu(q @ k.mT + look(table, places)) @ v

    leaves, times = operands()
    places = minutes(times)[0].contiguous()
    recorder = Recorder()
    mine = compiled(function, recorder)
    mine(*leaves, places)
    places[3, 4] = place
    with pytest.raises((IndexError, RuntimeError), match=r"out of|range"):
        function(*leaves, places)
    return mine, recorder, (*leaves, places)


@OUTSIDE
@pytest.mark.parametrize("look", PROGRAM.values(), ids=PROGRAM)
def test_a_place_outside_of_the_table_is_nan(look, place):
    mine, recorder, arguments = with_place(look, place)
    assert "lookup(" in str(recorder.matches[0].problem.program)
    spoilt = mine(*arguments).isnan()
    assert spoilt[:, :, 3].all() and not spoilt[:, :, :3].any() and not spoilt[:, :, 4:].any()


@pytest.mark.parametrize("name", ["index_select", "embedding", "gather"])
def test_a_negative_place_where_none_is_allowed_is_nan(name):
    mine, _, arguments = with_place(PROGRAM[name], -1)
    assert mine(*arguments)[:, :, 3].isnan().all()


@OUTSIDE
@pytest.mark.parametrize("look", OPERATOR.values(), ids=OPERATOR)
def test_a_place_outside_of_the_table_is_an_error_still(look, place):
    mine, recorder, arguments = with_place(look, place)
    assert recorder.graphs[-1].calls_after["look_up"] == 1
    with pytest.raises((IndexError, RuntimeError), match=r"out of|range"):
        mine(*arguments)


@pytest.mark.parametrize("judge", [True, False])
def test_places_that_wrap_in_eager_wrap_as_far(judge):
    """`take_along_dim` takes places modulo the size of its dim."""

    def function(q, k, v, table, places):
        return F.silu(q @ k.mT + torch.take_along_dim(table[None], places, 1)) @ v

    leaves, _ = operands()
    places = torch.arange(N * N).view(N, N) - N * N // 2
    places[0, :4] = torch.tensor([T, -T - 1, torch.iinfo(torch.int64).max, -(2**63)])
    recorder = Recorder(dataclasses.replace(ALWAYS, judge=judge))
    assert_alike(compiled(function, recorder), function, leaves, places)
    assert recorder.graphs[-1].calls_after["look_up"] == 1, recorder.why()


BUCKETS = {
    "boundaries": lambda x: torch.bucketize(apart(x), torch.tensor([5, 60, 600, 3600])),
    "searched": lambda x: torch.searchsorted(torch.tensor([5, 60, 600, 3600]), apart(x)),
    "since the last": lambda x: (x.max() - apart(x)) // 600 % T,
    "since the first": lambda x: (apart(x) - x.min()) // 600 % T,
}


@pytest.mark.parametrize("name", BUCKETS)
def test_buckets(name):
    leaves, times = operands()
    function, recorder = attention(BUCKETS[name]), Recorder()
    assert_alike(compiled(function, recorder), function, leaves, times)
    assert "lookup(" in str(recorder.matches[0].problem.program), recorder.why()


def test_a_table_of_a_size_that_varies():
    """A slice of a learned table, as long as twice the sequences."""

    def function(q, k, v, table):
        n = q.shape[-2]
        apart = torch.arange(n)[:, None] - torch.arange(n)
        bias = table[: 2 * n - 1][apart + n - 1] + table[n:][apart.abs()]
        return F.silu(q @ k.mT + bias) @ v

    recorder = Recorder()
    mine = compiled(function, recorder)
    table = torch.randn(80, dtype=torch.float64, requires_grad=True)
    for n in (24, 30, 17):
        q, k, v = (torch.randn(B, H, n, 8, dtype=torch.float64) for _ in range(3))
        for x in (q, k, v):
            torch._dynamo.mark_dynamic(x, 2)
        output, wanted = mine(q, k, v, table), function(q, k, v, table)
        torch.testing.assert_close(output, wanted)
        torch.testing.assert_close(gradients(output, [table]), gradients(wanted, [table]))
    assert len(recorder.graphs) == 1 and not recorder.graphs[0].guards_added
    assert str(recorder.matches[0].problem.program).count("lookup(") == 2
