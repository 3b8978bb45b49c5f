"""Candidates and closures, on graphs as Dynamo writes them."""

import pytest
import torch
import torch.nn.functional as F

from gdpa_inductor.patterns.host import facts
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


def test_softmax_is_refused_before_anything_is_traced():
    with pytest.raises(Refused) as caught:
        region_of(lambda q, k, v: (q @ k.mT).softmax(-1) @ v)
    assert caught.value.code is Code.NORMALISED


# Candidates


def firsts(function, **shapes) -> list[int]:
    return [len(c.firsts) for c in graph_of(function, **shapes).candidates]


def test_both_operands_may_come_from_products():
    def model(q, k, v):
        return F.silu(q @ k.mT) @ (k @ v.mT).mT.tanh().mT

    assert firsts(model, q=(2, 5, 4), k=(2, 7, 4), v=(2, 4, 4)) == [1, 1]
