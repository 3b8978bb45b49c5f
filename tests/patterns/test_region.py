"""Candidates, closures and effects, on graphs as Dynamo writes them."""

import pytest
import torch
import torch.nn.functional as F

from gdpa_inductor.patterns.host import facts, places
from gdpa_inductor.patterns.host.ambient import Ambient
from gdpa_inductor.patterns.host.candidates import HostGraph
from gdpa_inductor.patterns.host.finder import Finder, Through
from gdpa_inductor.patterns.host.region import Region
from gdpa_inductor.patterns.result import Refused
from gdpa_inductor.rejection import Code

SHAPES = {"q": (2, 3, 5, 4), "k": (2, 3, 7, 4), "v": (2, 3, 7, 6)}


def graph_of(function, dynamic: bool = False, **shapes) -> HostGraph:
    """The one graph of a function of tensors."""
    graphs = []

    def capture(gm, inputs):
        graphs.append(HostGraph.of(gm.graph, Ambient.of(gm.graph)))
        return gm.forward

    operands = {name: torch.randn(shape) for name, shape in (shapes or SHAPES).items()}
    torch.compile(function, backend=capture, fullgraph=True, dynamic=dynamic)(**operands)
    return graphs[0]


def region_of(function, through=Through.VIEWS | Through.MASKS, **shapes) -> Region:
    graph = graph_of(function, **shapes)
    return Finder(graph).of(graph.candidates[-1], through)


def names(nodes) -> list[str]:
    return [facts.name(node) or node.name for node in nodes]


def refusal(function) -> Code:
    with pytest.raises(Refused) as caught:
        region_of(function)
    return caught.value.code


def test_region_holds_what_lies_between():
    def attention(q, k, v):
        return torch.tanh(F.silu(q @ k.mT) / 5) @ v.sin()

    region = region_of(attention)
    assert names(region.nodes) == ["matmul", "silu", "truediv", "tanh", "matmul"]
    assert names(region.makers) == ["mT"]
    assert sorted(names(region.leaves)) == ["l_k_", "l_q_", "sin"]
    assert not region.dead and not region.sizes


def test_in_place_calls_belong_to_the_region():
    def attention(q, k, v):
        s = q @ k.mT
        s.view(-1).mul_(2.0)
        s += 1.0
        return s @ v

    actual = names(region_of(attention).nodes)
    assert actual == ["matmul", "view", "mul_", "iadd", "matmul"]


def test_unused_pure_branches_are_dead():
    def attention(q, k, v):
        s = q @ k.mT
        s.abs().mean()
        return F.silu(s) @ v

    region = region_of(attention)
    assert set(names(region.dead)) <= {"abs", "mean"}


def test_masks_of_indices_are_read_through_where_that_is_asked_for():
    def attention(q, k, v):
        keep = torch.arange(5)[:, None] >= torch.arange(7)
        return F.silu(q @ k.mT) * keep @ v

    assert "ge" in names(region_of(attention).makers)
    assert "ge" in names(region_of(attention, Through.VIEWS).leaves)
    assert names(region_of(attention, Through.NOTHING).makers) == []


def test_full_sized_masks_are_leaves():
    def attention(q, k, v, a, b):
        return F.silu(q @ k.mT) * (a * b) @ v

    region = region_of(attention, **SHAPES, a=(5, 7), b=(5, 7))
    assert "mul" in names(region.leaves)


def test_a_mask_that_is_changed_afterwards_is_a_leaf():
    def attention(q, k, v):
        keep = torch.arange(5)[:, None] >= torch.arange(7)
        keep.logical_not_()
        return F.silu(q @ k.mT) * keep @ v

    assert "ge" in names(region_of(attention).leaves)


ESCAPES = {
    "returned": lambda s, v: (F.silu(s) @ v, s),
    "summed": lambda s, v: F.silu(s) @ v + s.sum(),
    "viewed": lambda s, v: (F.silu(s) @ v, s[0]),
}


@pytest.mark.parametrize("how", ESCAPES)
def test_escapes(how):
    assert refusal(lambda q, k, v: ESCAPES[how](q @ k.mT, v)) is Code.SCORES_ESCAPE


def test_operand_changed_between():
    def attention(q, k, v):
        q, s = q * 1.0, None
        s = q @ k.mT
        q.transpose(0, 1).add_(1.0)
        return F.silu(s) @ v + q.sum()

    assert refusal(attention) is Code.MUTATED_OPERAND


def test_value_changed_between_is_read_later():
    def attention(q, k, v):
        v = v * 1.0
        s = q @ k.mT
        v.mul_(2.0)
        return F.silu(s) @ v

    assert "mul_" not in names(region_of(attention).nodes)


def test_gradient_mode_of_the_whole_region_is_one():
    def attention(q, k, v):
        with torch.no_grad():
            s = q @ k.mT
        return F.silu(s) @ v

    assert refusal(attention) is Code.GRAD_MODE


def test_softmax_is_refused_before_anything_is_traced():
    assert refusal(lambda q, k, v: (q @ k.mT).softmax(-1) @ v) is Code.NORMALISED


# Candidates


def firsts(function, **shapes) -> list[int]:
    return [len(c.firsts) for c in graph_of(function, **shapes).candidates]


def test_projections_are_no_candidates():
    def model(x, w, u):
        return F.linear(F.relu(x @ w), u)

    assert firsts(model, x=(2, 5, 4), w=(4, 8), u=(4, 8)) == []


def test_both_operands_may_come_from_products():
    def model(q, k, v):
        return F.silu(q @ k.mT) @ (k @ v.mT).mT.tanh().mT

    assert firsts(model, q=(2, 5, 4), k=(2, 7, 4), v=(2, 4, 4)) == [1, 1]


def test_a_smaller_product_is_a_bias():
    """Scores [b, n, m] plus a bias [n, m] that is itself a product."""

    def model(q, k, v, a):
        position = a.sin() @ a.cos().T
        return F.silu(q @ k.mT + position) @ v

    assert firsts(model, q=(2, 5, 4), k=(2, 5, 4), v=(2, 5, 4), a=(5, 3)) == [1]


# Effects of single calls

EFFECTS = {
    "add_": lambda x, y: x.add_(1.0),
    "relu inplace": lambda x, y: F.relu(x, inplace=True),
    "relu by position": lambda x, y: F.relu(x, True),
    "iadd": lambda x, y: x.__iadd__(1.0),
    "setitem": lambda x, y: x.__setitem__(0, 1.0),
    "out": lambda x, y: torch.add(y, 1.0, out=x),
    "aten": lambda x, y: torch.ops.aten.mul_.Tensor(x, y),
    "torch.tanh_": lambda x, y: torch.tanh_(x),
}


@pytest.mark.parametrize("how", EFFECTS)
def test_changes_in_place_are_seen(how):
    def model(x, y):
        x, y = x * 1.0, y * 1.0
        EFFECTS[how](x, y)
        return x + y

    graph = graph_of(model, x=(3,), y=(3,))
    assert len(graph.mutators) == 1
    (changed,) = graph.mutators.values()
    first = next(n for n in graph.graph.nodes if facts.name(n) == "mul")
    assert facts.storages(first) == set(changed)


PURE = {
    "or": lambda x, y: (x > 0) | (y > 0),
    "abs": lambda x, y: abs(x),
    "dropout": lambda x, y: F.dropout(x, 0.0),
    "invert": lambda x, y: ~(x > y),
    "clone": lambda x, y: x.clone(),
}


@pytest.mark.parametrize("how", PURE)
def test_pure_calls_change_nothing(how):
    assert not graph_of(lambda x, y: PURE[how](x, y), x=(3,), y=(3,)).mutators


def test_places_and_opaque_calls():
    def model(x, y):
        return torch.relu(x) + y

    nodes = [n for n in graph_of(model, x=(3,), y=(3,)).graph.nodes if n.op == "call_function"]
    assert all(places.location(n).rpartition(":")[0].endswith("test_region.py") for n in nodes)
    assert not any(facts.is_opaque(n) for n in nodes)
    assert places.describe(nodes[0]).startswith("`relu` (line ")
