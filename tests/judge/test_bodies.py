"""The judge on graphs that call bodies: what holds in one graph says nothing of another."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from gdpa_inductor.graphs import copy_graph
from gdpa_inductor.judge import judged
from gdpa_inductor.patterns import rewrite_graph
from gdpa_inductor.rejection import Code
from tests.judge.rewritten import (
    ALONE,
    fused,
    heads,
    on_operand,
    plain,
    program,
    verdicts,
    with_argument,
)

OTHER = "silu(mul(s,0.25))"
NEGATED = on_operand(torch.ops.aten.neg.default)


def checkpointed(q, k, v):
    return torch.utils.checkpoint.checkpoint(plain, q, k, v, use_reentrant=False)


@torch.compiler.nested_compile_region
def region(q, k, v):
    return F.silu(q @ k.transpose(-1, -2) * 0.5) @ v


def twice_in_a_region(q, k, v):
    return region(q, k, v) + region(-q, k, v)


@pytest.mark.parametrize("function", [checkpointed, twice_in_a_region])
def test_a_rewritten_body_is_judged(function: Callable):
    results = []

    def backend(gm, _):
        before = copy_graph(gm)
        assert rewrite_graph(gm, options=ALONE).matches
        results.append(judged(before, gm))
        (body,) = (m for m in gm.children() if isinstance(m, torch.fx.GraphModule))
        program(OTHER)(body.graph)
        body.recompile()
        results.append(judged(before, gm))
        return lambda *arguments: (plain(*heads()),)

    torch.compile(function, backend=backend)(*heads())
    assert results[0] is None
    assert results[1].invalid and "other weights" in results[1].reason


def once_in_autocast(q, k, v):
    with torch.autocast("cpu", torch.bfloat16):
        low = region(q, k, v)
    return low + region(q, k, v)


def once_without_gradients(q, k, v):
    with torch.no_grad():
        constant = region(q, k, v)
    return constant + region(q, k, v)


@pytest.mark.parametrize("function", [once_in_autocast, once_without_gradients])
def test_a_body_that_is_called_in_several_modes_stays_as_it_is(function: Callable):
    """What the calls in it compute depends on the mode of its caller."""
    results = []

    def backend(gm, _):
        results.append(rewrite_graph(gm, options=ALONE))
        return lambda *arguments: (plain(*heads()),)

    torch.compile(function, backend=backend)(*heads())
    assert not results[0].matches
    assert [r.code for r in results[0].rejections] == [Code.OPAQUE_CALL]


def in_body(tamper: Callable) -> Callable:
    """Tamper with the one body that a graph calls."""

    def change(graph: torch.fx.Graph) -> None:
        children = graph.owning_module.children()
        (body,) = (m for m in children if isinstance(m, torch.fx.GraphModule))
        tamper(body.graph)
        body.recompile()

    return change


def hands_over_the_value(graph: torch.fx.Graph) -> None:
    """The checkpoint is given the value in place of the fused result."""
    node = fused(graph)
    node.replace_all_uses_with(node.args[2])


def reads_the_key_as_values(graph: torch.fx.Graph) -> None:
    node = fused(graph)
    query, key, _, *rest = node.args
    node.args = (query, key, key, *rest)


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        pytest.param(program(OTHER), "other weights", id="program outside"),
        pytest.param(in_body(program(OTHER)), "other weights", id="program in the body"),
        pytest.param(hands_over_the_value, "one of the graphs alone", id="no fused result"),
        pytest.param(reads_the_key_as_values, "other values", id="values outside"),
        pytest.param(in_body(reads_the_key_as_values), "other values", id="values in the body"),
        pytest.param(in_body(with_argument(2, NEGATED)), "other values", id="a sign in the body"),
    ],
)
def test_a_wrong_rewrite_beside_a_checkpoint_is_refused(tamper: Callable, reason: str):
    """The fused result enters a body whose own fused call has the same name."""

    def layers(q, k, v):
        return torch.utils.checkpoint.checkpoint(plain, q, k, plain(k, k, v), use_reentrant=False)

    assert verdicts(layers, heads()) == [None]
    (verdict,) = verdicts(layers, heads(), tamper)
    assert verdict is not None and reason in verdict.reason
