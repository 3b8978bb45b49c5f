"""Biases that are looked up in learned 16-bit tables: the same bits, gradients added in fp32."""

import pytest
import torch
import torch.nn.functional as F

from gdpa_inductor.options import Options
from gdpa_inductor.patterns import rewrite_graph

N, H = 24, 2
PLACE = torch.arange(N)
INDEX = PLACE[:, None] - PLACE + N - 1


def heads_first(table, index):
    return table[:, index]


def heads_last(table, index):
    return F.embedding(index, table.mT).permute(2, 0, 1).unsqueeze(0)


def selected(table, index):
    return table.index_select(1, index.view(-1)).view(H, N, N)


def windowed(table, index):
    return table.t()[index.view(-1)].view(N, N, -1).permute(2, 0, 1).contiguous()


def gathered(table, index):
    return table.gather(1, index.view(1, -1).expand(H, -1)).unflatten(-1, (N, N)) * 0.5


LOOKUPS = [heads_first, heads_last, selected, windowed, gathered]


def compiled(function):
    """The rewritten graph, run eagerly, and the graphs themselves."""
    graphs = []

    def backend(gm, inputs):
        result = rewrite_graph(gm, options=Options(profit=False))
        assert len(result.matches) == 1
        graphs.append(gm)
        return gm.forward

    torch._dynamo.reset()
    return torch.compile(function, backend=backend, fullgraph=True), graphs


def casts(gm) -> int:
    to_float = [n for n in gm.graph.nodes if n.kwargs.get("dtype") is torch.float32]
    return sum(n.target is torch.ops.aten._to_copy.default for n in to_float)


def attention(q, k, v, table, index):
    return F.silu(q @ k.mT + heads_first(table, index)) @ v


def operands(dtype, learns=True):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, H, N, 16, generator=generator).to(dtype) for _ in range(3))
    table = torch.randn(H, 2 * N - 1, generator=generator).to(dtype).requires_grad_(learns)
    return q, k, v, table


@pytest.mark.parametrize("lookup", LOOKUPS)
def test_a_learned_table_is_looked_up_through_fp32(lookup):
    def attention(q, k, v, table, index):
        return F.silu(q @ k.mT + lookup(table, index)) @ v

    q, k, v, table = operands(torch.bfloat16)
    fused, graphs = compiled(attention)
    out = fused(q, k, v, table, INDEX)
    assert casts(graphs[0]) == 1
    bias = lookup(table, INDEX)
    given = torch.randn_like(out)
    out.backward(given)
    wanted = lookup(table.detach().double().requires_grad_(), INDEX)
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
    torch._dynamo.reset()
    fused = torch.compile(attention, backend="gdpa", options={"gdpa.profit": False})
    fused(q, k, v, table).sum().backward()
    assert table.grad.item() == 48 * 48 * 8


@pytest.mark.parametrize(
    ("dtype", "learns"), [(torch.float32, True), (torch.bfloat16, False)], ids=["fp32", "fixed"]
)
def test_other_tables_stay(dtype, learns):
    q, k, v, table = operands(dtype, learns)
    fused, graphs = compiled(attention)
    fused(q.requires_grad_(), k, v, table, INDEX)
    assert not casts(graphs[0])


def test_no_grad_leaves_a_table_as_it_is():
    fused, graphs = compiled(attention)
    with torch.no_grad():
        fused(*operands(torch.bfloat16), INDEX)
    assert not casts(graphs[0])


@pytest.mark.parametrize("how", [{"sparse": True}, {"max_norm": 1.0}], ids=["sparse", "norm"])
def test_embeddings_that_do_more_than_look_up_stay(how):
    def attention(q, k, v, table, index):
        bias = F.embedding(index, table, **how).permute(2, 0, 1)
        return F.silu(q @ k.mT + bias) @ v

    q, k, v, table = operands(torch.bfloat16)
    table = table.detach().t().contiguous().requires_grad_()
    fused, graphs = compiled(attention)
    fused(q, k, v, table, INDEX)
    assert not casts(graphs[0])


def test_one_table_for_two_layers_is_widened_at_each_lookup():
    def attention(q, k, v, table, index):
        bias = table[:, index]
        y = F.silu(q @ k.mT + bias) @ v
        return F.silu(q @ y.mT + bias) @ v

    graphs = []

    def backend(gm, inputs):
        assert len(rewrite_graph(gm, options=Options(profit=False)).matches) == 2
        graphs.append(gm)
        return gm.forward

    torch._dynamo.reset()
    fused = torch.compile(attention, backend=backend, fullgraph=True)
    fused(*operands(torch.bfloat16), INDEX).sum().backward()
    assert casts(graphs[0]) == 1


def test_a_table_that_is_larger_than_the_bias_stays():
    q, k, v, _ = operands(torch.bfloat16)
    table = torch.randn(H, N * N + 1).bfloat16().requires_grad_()
    fused, graphs = compiled(attention)
    fused(q, k, v, table, INDEX)
    assert not casts(graphs[0])


def test_a_lookup_in_what_was_looked_up():
    def attention(q, k, v, table, index):
        first = table[:, index]
        return F.silu(q @ k.mT + first[:, PLACE] + first) @ v

    fused, graphs = compiled(attention)
    fused(*operands(torch.bfloat16), INDEX).sum().backward()
    graphs[0].graph.lint()
    assert casts(graphs[0]) == 2
