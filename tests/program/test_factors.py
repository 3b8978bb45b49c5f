"""Factors that all weights have in common: the algebra, and where there is none."""

import pytest
import torch

from gdpa_inductor.program.expr import call, const, fold, postorder, torch_apply
from gdpa_inductor.program.factors import factored, of_queries
from gdpa_inductor.program.fast import gated
from gdpa_inductor.program.score_mod import ScoreMod
from gdpa_inductor.program.tile_classes import classify
from gdpa_inductor.reference import program_leaves

SCORES = ("s", "mul(s,0.0884)", "div(s,-11.5)", "add(mul(s,0.5),1.0)")
FRAMES = (
    "{}", "div({},7.0)", "mul({},-0.25)", "mul(0.25,{})", "neg(div({},3.0))",
    "where(ge(q_idx,kv_idx),{},0.0)", "div(where(ge(q_idx,kv_idx),mul({},3.0),0.0),512.0)",
    "mul(div({},7.0),float(ge(q_idx,kv_idx)))",
)  # fmt: skip
FACTORS = {
    "{}": 1.0, "div({},7.0)": 1 / 7, "mul({},-0.25)": -0.25,
    "mul(div({},7.0),float(ge(q_idx,kv_idx)))": 1 / 7,
}  # fmt: skip


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("gate", ["silu", "gelu_tanh", "sigmoid", "relu"])
def test_the_same_values(gate: str, score: str, frame: str) -> None:
    program = ScoreMod.parse(frame.format(f"{gate}({score})"))
    terms = (*classify([program.weight], program.aux).full_terms, program.weight)
    rests, factor = factored(terms)
    s = torch.linspace(-30, 30, 4002, dtype=torch.float64).view(1, 1, 2, 2001)
    leaf = program_leaves(s, [], [], program, torch.ones_like(s))
    want = fold(terms, leaf, torch_apply(torch.float64))
    got = fold(rests, leaf, torch_apply(torch.float64))
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x * factor, y, atol=1e-11, rtol=1e-9)
    if gate != "gelu_tanh":
        assert factor == pytest.approx(FACTORS.get(frame, factor))
    assert (factor == 1.0) == (rests == terms)


@pytest.mark.parametrize("score, factor", [("s", 0.5), ("mul(s,0.0884)", 0.0442)])
def test_tanh_gelu_takes_an_instruction_less(score: str, factor: float) -> None:
    """y·y, α·y² + β, the product with y, tanh, y·t + y."""
    weight = ScoreMod.parse(f"gelu_tanh({score})").weight
    (rest,), actual = factored([weight])
    assert actual == pytest.approx(factor)
    with_products, without = (
        [node.op for node in postorder([term]) if node.args]
        for term in (gated(rest, weight), gated(weight, weight))
    )
    assert with_products.count("tanh") == without.count("tanh") == 1
    # A product whose sum follows is one instruction with it.
    instructions = [len(ops) - ops.count("add") for ops in (with_products, without)]
    assert instructions == [5, 6]


@pytest.mark.parametrize(
    "text",
    [
        "silu(s)",
        "where(ge(q_idx,kv_idx),mul(silu(s),3.0),1.0)",
        "where(ge(q_idx,kv_idx),0.0,mul(silu(s),3.0))",
        "add(mul(silu(s),3.0),1.0)",
        "mul(silu(s),1e30)",
        "div(silu(s),1e-30)",
        "mul(silu(s),0.0)",
        "div(3.0,add(exp(s),1.0))",
        "div(silu(s),float(i0))",
    ],
)
def test_terms_that_keep_all_factors(text: str) -> None:
    weight = ScoreMod.parse(text).weight
    assert factored([weight]) == ((weight,), 1.0)


def test_terms_with_other_factors_keep_them() -> None:
    weight = ScoreMod.parse("mul(silu(s),3.0)").weight
    terms = (weight, call("mul", weight, const(2.0)))
    assert factored(terms) == (terms, 1.0)


QUERIES = {
    "silu(mul(s,0.125))": 0.0625,
    "where(ge(q_idx,kv_idx),silu(mul(s,0.125)),0.0)": 0.0625,
    "div(silu(mul(s,2.0)),7.0)": 1.0,
    "silu(mul(s,0.5))": 0.25,
    "silu(s)": 0.5,
    "where(ge(q_idx,kv_idx),mul(silu(s),3.0),1.0)": 0.5,
}


@pytest.mark.parametrize("text", QUERIES)
def test_queries_may_have_the_factor(text: str) -> None:
    program = ScoreMod.parse(text)
    terms = (*classify([program.weight], program.aux).full_terms, program.weight)
    rests, factor = of_queries(terms, program.weight)
    assert factor == QUERIES[text]
    s = torch.linspace(-30, 30, 4002, dtype=torch.float64).view(1, 1, 2, 2001)
    got, want = (
        fold(x, program_leaves(y, [], [], program, torch.ones_like(y)), torch_apply(y.dtype))
        for x, y in ((rests, s * factor), (terms, s))
    )
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))


@pytest.mark.parametrize(
    "text",
    [
        "s",
        "1.0",
        "silu(add(s,1.0))",
        "silu(mul(s,0.1))",
        "silu(mul(s,0.0))",
        "silu(mul(s,-0.125))",
        "silu(mul(s,1e-30))",
        "sigmoid(mul(s,0.125))",
        "gelu_tanh(mul(s,0.125))",
        "silu(add(mul(s,0.125),1.0))",
        "add(s,silu(mul(s,0.125)))",
        "add(silu(mul(s,0.25)),silu(mul(s,0.125)))",
        "where(ge(mul(s,0.125),0.0),silu(mul(s,0.125)),0.0)",
    ],
)
def test_queries_without_a_factor(text: str) -> None:
    weight = ScoreMod.parse(text).weight
    assert of_queries([weight], weight) == ((weight,), 1.0)
