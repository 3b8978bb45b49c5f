"""Biases that are looked up in learned tables: the same bits, and gradients that add up well."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

import gdpa_inductor
from gdpa_inductor.patterns import profit
from gdpa_inductor.problem import Problem
from gdpa_inductor.report.sections import match_lines
from tests._recorder import Recorder

N, H = 24, 2
PLACE = torch.arange(N)
INDEX = PLACE[:, None] - PLACE + N - 1
NEAR = (PLACE[:, None] - PLACE).clamp(-3, 3) + 3  # seven buckets: each is looked at 82 times


LOOKUPS = {
    "heads first": lambda t, i: t[:, i],
    "heads last": lambda t, i: F.embedding(i, t.mT).permute(2, 0, 1).unsqueeze(0),
    "selected": lambda t, i: t.index_select(1, i.view(-1)).view(H, N, N),
    "windowed": lambda t, i: t.t()[i.view(-1)].view(N, N, -1).permute(2, 0, 1).contiguous(),
    "gathered": lambda t, i: t.gather(1, i.view(1, -1).expand(H, -1)).unflatten(-1, (N, N)) * 0.5,
}


def compiled(function):
    """The rewritten graph, run eagerly, and its recorder."""
    recorder = Recorder()
    return torch.compile(function, backend=recorder, fullgraph=True), recorder


@pytest.mark.parametrize("index, crowded", [(NEAR, N * N * H), (INDEX, 0)])
def test_what_a_crowded_table_gets_is_known_to_the_cost_models(index, crowded):
    """Seven buckets are crowded, a table with a place for each diagonal is not."""

    def model(q, k, v, table):
        return F.silu(q @ k.mT + table[:, index]) @ v

    q, k, v = (torch.randn(1, H, N, 8) for _ in range(3))
    function, recorder = compiled(model)
    function(q, k, v, torch.randn(H, int(index.max()) + 1, requires_grad=True))
    function(q, k, v, torch.randn(H, int(index.max()) + 1))
    assert [match.problem.crowded for match in recorder.matches] == [crowded, 0]


def test_a_look_up_behind_a_call_of_einops():
    """Dynamo of torch 2.11 keeps such a call, as for what is allowed in its graphs."""
    einops = pytest.importorskip("einops")

    @torch.compiler.allow_in_graph
    def rearrange(tensor):
        return einops.rearrange(tensor, "i j h -> h i j")

    rearrange.__module__ = "einops.einops"

    def model(q, k, v, table):
        return F.silu(q @ k.mT + rearrange(F.embedding(NEAR, table))) @ v

    function, recorder = compiled(model)
    inputs = [torch.randn(1, H, N, 8, requires_grad=True) for _ in range(3)]
    inputs.append(torch.randn(7, H, requires_grad=True))
    actual = [x for f in (function, model) for x in torch.autograd.grad(f(*inputs).sum(), inputs)]
    assert look_ups(recorder) == 1
    torch.testing.assert_close(actual[:4], actual[4:], rtol=1e-4, atol=1e-4)


def look_ups(recorder: Recorder, regions: int = 1) -> int:
    (graph,) = recorder.graphs
    assert len(graph.matches) == regions, recorder.why()
    return graph.calls_after["look_up"]


def looked_up_in_programs(recorder: Recorder) -> int:
    """How many tables the score programs look up."""
    return sum(len(match.problem.program.places) for match in recorder.matches)


def attention(q, k, v, table, index):
    return F.silu(q @ k.mT + table[:, index]) @ v


def operands(dtype, learns=True, size=2 * N - 1):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, H, N, 16, generator=generator).to(dtype) for _ in range(3))
    table = torch.randn(H, size, generator=generator).to(dtype).requires_grad_(learns)
    return q, k, v, table


@pytest.mark.parametrize("name", LOOKUPS)
def test_a_learned_table_in_16_bits_is_looked_up_by_the_program(name):
    def attention(q, k, v, table, index):
        return F.silu(q @ k.mT + LOOKUPS[name](table, index)) @ v

    q, k, v, table = operands(torch.bfloat16)
    fused, recorder = compiled(attention)
    out = fused(q, k, v, table, INDEX)
    assert looked_up_in_programs(recorder) == 1 and not look_ups(recorder)
    bias = LOOKUPS[name](table, INDEX)
    out.backward(torch.randn_like(out))
    wanted = LOOKUPS[name](table.detach().double().requires_grad_(), INDEX)
    assert torch.equal(bias.double(), wanted)
    assert table.grad is not None and table.grad.dtype == torch.bfloat16


def test_sums_of_many_do_not_stop_at_256():
    """A bf16 sum of ones stays at 256: the next one rounds away."""

    def attention(q, k, v, table):
        bias = table[torch.zeros(48, 48, dtype=torch.long)]
        return (q @ k.mT + bias) @ v

    q, k, v = (torch.zeros(1, 1, 48, 8, dtype=torch.bfloat16) for _ in range(3))
    v = v + 1.0
    table = torch.zeros(1, dtype=torch.bfloat16, requires_grad=True)
    fused = torch.compile(attention, backend="gdpa", options={"gdpa.profit": False})
    fused(q, k, v, table).sum().backward()
    assert table.grad.item() == 48 * 48 * 8


STAYS = {
    "in fp32": ({"dtype": torch.float32}, INDEX, True),
    "that does not learn": ({"learns": False}, INDEX, True),
    "without gradients": ({}, INDEX, False),
    "without gradients, crowded": ({"dtype": torch.float32, "size": 7}, NEAR, False),
}


@pytest.mark.parametrize("name", STAYS)
def test_other_tables_stay(name):
    how, index, training = STAYS[name]
    q, k, v, table = operands(**{"dtype": torch.bfloat16, **how})
    fused, recorder = compiled(attention)
    with torch.set_grad_enabled(training):
        fused(q.requires_grad_(), k, v, table, index)
    assert not look_ups(recorder)


def test_one_table_for_two_layers_is_looked_up_by_both():
    def attention(q, k, v, table, index):
        bias = table[:, index]
        y = F.silu(q @ k.mT + bias) @ v
        return F.silu(q @ y.mT + bias) @ v

    fused, recorder = compiled(attention)
    fused(*operands(torch.bfloat16), INDEX).sum().backward()
    assert looked_up_in_programs(recorder) == 2 and not look_ups(recorder, regions=2)


def test_a_lookup_in_what_was_looked_up():
    def attention(q, k, v, table, index):
        first = table[:, index]
        return F.silu(q @ k.mT + first[:, PLACE] + first) @ v

    fused, recorder = compiled(attention)
    fused(*operands(torch.bfloat16), INDEX).sum().backward()
    assert look_ups(recorder) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", LOOKUPS)
def test_a_table_that_is_much_looked_at(name, dtype):
    def attention(q, k, v, table, index):
        bias = LOOKUPS[name](table, index)
        return F.silu(q @ k.mT + bias) @ v, bias

    q, k, v, table = operands(dtype, size=7)
    fused, recorder = compiled(attention)
    out, bias = fused(q, k, v, table, NEAR)
    assert looked_up_in_programs(recorder) == 1 and not look_ups(recorder)
    assert torch.equal(bias, LOOKUPS[name](table, NEAR)) and bias.dtype == dtype
    cotangent = torch.randn_like(out)
    (actual,) = torch.autograd.grad(out, table, cotangent)
    exact = [x.detach().double().requires_grad_() for x in (q, k, v, table)]
    (wanted,) = torch.autograd.grad(attention(*exact, NEAR)[0], exact[-1], cotangent.double())
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float64: 1e-12}[dtype]
    assert (actual.double() - wanted).norm() <= tolerance * wanted.norm()


def test_sizes_that_vary():
    """One graph for all lengths."""

    def attention(q, k, v, table, times):
        apart = (times[:, 1:, None] - times[:, None, :-1]).abs() // 60
        bias = torch.index_select(table, 0, apart.clamp(max=6).view(-1)).view(apart.shape)
        return F.silu(q @ k.mT + bias.unsqueeze(1)) @ v

    fused, recorder = compiled(attention)
    for length in (24, 30, 17):
        q, k, v = (torch.randn(3, H, length, 16, dtype=torch.float64) for _ in range(3))
        table = torch.randn(7, dtype=torch.float64, requires_grad=True)
        times = torch.randint(0, 900, (3, length + 1)).cumsum(1)
        for x in (q, k, v):
            torch._dynamo.mark_dynamic(x, 2)
        torch._dynamo.mark_dynamic(times, 1)
        out, wanted = fused(q, k, v, table, times), attention(q, k, v, table, times)
        torch.testing.assert_close(out, wanted)
        cotangent = torch.randn_like(out)
        actual, exact = (torch.autograd.grad(x, table, cotangent) for x in (out, wanted))
        torch.testing.assert_close(actual, exact)
    assert looked_up_in_programs(recorder) == 1


def test_the_report_says_where_a_bias_is():
    def model(q, k, v, table, index):
        scores = q @ k.mT + table[:, index.clamp(0, 40)]
        return F.silu(scores + F.embedding(index, table.t(), 3).permute(2, 0, 1)) @ v

    fused, recorder = compiled(model)
    fused(*operands(torch.float64), INDEX)
    lines = list(match_lines(recorder.matches[0]))
    places = [line for line in lines if line.startswith(("a0", "a1", "a2"))]
    assert places[0].endswith("[h, t], looked up in the kernel")
    assert "uint8 [q_idx, kv_idx], stored" in places[1]
    assert "float64 [q_idx, kv_idx, h], stored" in places[2]
    (note,) = (line for line in lines if line.startswith("bias stays"))
    assert "TABLE_STORED" in note and "embedding" in note


def test_nobody_is_told_to_store_an_index_in_16_bits():
    def model(q, k, v, table, times):
        far = (times[:, None] - times).abs().clamp(1).log().long().clamp(0, 40)
        return F.silu(q @ k.mT + table[:, far]) @ v

    args = (*operands(torch.float64), torch.arange(N) * 60)
    said = str(gdpa_inductor.explain(model, profit=False)(*args))
    assert "uint8 [q_idx, kv_idx], stored" in said and "16 bits" not in said


def program_of(*sides: str) -> Problem:
    """The problem of a table beside a mask that is computed, or of these operands.

    "times" has an index for each sample too, by which a table of heads is looked up.
    """

    def model(q, k, v, table, *operands):
        place, index = torch.arange(N), INDEX.clamp(0, 40)
        if "times" in sides:
            index = index + torch.arange(len(q))[:, None, None]
        weights = F.silu(q @ k.mT + table[:, index].movedim(0, -3))
        weights = weights * (place[:, None] >= place)
        for x in operands:
            weights = weights * x
        return weights @ v

    masks = [torch.randint(0, 2, (N, N)).float() for _ in {*sides} - {"times"}]
    fused, recorder = compiled(model)
    fused(*operands(torch.float64), *masks)
    return recorder.matches[0].problem


@pytest.mark.parametrize(
    ("sides", "how", "reason"),
    [
        ((), {}, ""),
        ((), {"kernel": "triton"}, "read a stored bias sooner"),
        ((), {"kernel": "triton", "profit": "memory"}, ""),
        (("mask",), {}, "beside a mask or bias that is a tensor"),
        (("mask", "times"), {}, ""),
        (("mask",), {"learns": False}, ""),
        (("mask",), {"device": "cpu", "kernel": "blocked"}, ""),
        (("mask",), {"profit": False}, ""),
    ],
)
def test_where_a_bias_is_rather_stored(sides, how, reason):
    how = {"kernel": "cute", "learns": True, "profit": True, "device": "cuda", **how}
    problem = dataclasses.replace(program_of(*sides), device=torch.device(how.pop("device")))
    said = profit.rather_stored(problem, **how)
    assert reason in said and bool(said) == bool(reason)


def test_a_bias_that_is_rather_stored_is_looked_up_by_the_operator(monkeypatch):
    """The mask stays a part of the program, and the report says why the bias is none."""
    monkeypatch.setattr(profit, "rather_stored", lambda *_: "for a test")

    def model(q, k, v, table, times):
        place = torch.arange(N)
        far = (times[:, None] - times).abs().clamp(1).log().long().clamp(0, 6)
        bias = table[:, far]
        bias = bias + table[:, INDEX.clamp(0, 6)]
        return (F.silu(q @ k.mT + bias) * (place[:, None] >= place)) @ v

    fused, recorder = compiled(model)
    fused(*operands(torch.float64, size=7), torch.arange(N) * 60)
    assert look_ups(recorder) == 2
    program = recorder.matches[0].problem.program
    assert not program.places and "ge(q_idx,kv_idx)" in str(program)
    stays = [x for x in match_lines(recorder.matches[0]) if x.startswith("bias stays")]
    assert len(stays) == 1 and "for a test" in stays[0]


def test_arithmetic_in_16_bits_beside_scores_in_fp64_is_not_read():
    """The program would not round it: seed 13525 of the adversary."""

    def model(q, k, v, table):
        place = INDEX.clamp(0, 6)
        return ((q @ k.mT + table[:, place] * table[:, 6 - place]) * 5).sin() @ v

    q, k, v, _ = operands(torch.float64)
    table = torch.randn(H, 7, dtype=torch.bfloat16, requires_grad=True)
    fused, recorder = compiled(model)
    torch.testing.assert_close(fused(q, k, v, table), model(q, k, v, table))
    assert len(recorder.matches) == 1, recorder.why()


def test_an_element_of_a_table_decides():
    """It is the same number in the program: what is above zero there is so here."""

    def model(q, k, v, table):
        place = INDEX.clamp(0, 6)
        return (F.silu(q @ k.mT) * (table[:, place] > 0) + table[:, 6 - place].clamp(min=0.0)) @ v

    fused, recorder = compiled(model)
    q, k, v, table = operands(torch.float64, size=7)
    torch.testing.assert_close(fused(q, k, v, table), model(q, k, v, table))
    assert looked_up_in_programs(recorder) == 2, recorder.why()
