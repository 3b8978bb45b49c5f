"""Silu and tanh-gelu with their scale: the algebra of the fast forms, and that they share."""

import pytest
import torch

from gdpa_inductor.program.expr import SCORE, const, differentiate, fold, postorder, torch_apply
from gdpa_inductor.program.fast import gated
from gdpa_inductor.program.score_mod import ScoreMod
from gdpa_inductor.reference import program_leaves

PROGRAMS = [
    *(
        program.format(f"{gate}({score})")
        for gate in ("silu", "gelu_tanh")
        for score in ("s", "mul(s,0.0884)", "div(s,-11.5)", "add(mul(s,0.5),1.0)", "mul(s,0.0)")
        for program in ("{}", "div({},7.0)", "where(ge(q_idx,kv_idx),{},0.0)", "mul({},s)")
    ),
    "silu(mul(gelu_tanh(mul(silu(s),0.7)),2.0))",
    "mul(silu(mul(s,0.3)),sigmoid(mul(s,0.3)))",
    "sigmoid(mul(s,0.3))",
]


@pytest.mark.parametrize("text", PROGRAMS)
def test_the_same_values(text: str) -> None:
    program = ScoreMod.parse(text)
    (slope,) = differentiate(program.weight, [SCORE], const(1.0))
    terms = [program.weight, program.gradients.score, slope]
    s = torch.linspace(-30, 30, 4001, dtype=torch.float64).expand(2, 1, 2, 4001)
    leaf = program_leaves(s, [], [], program, torch.ones_like(s) * 0.7)
    want = fold(terms, leaf, torch_apply(torch.float64))
    got = fold([gated(t, program.weight) for t in terms], leaf, torch_apply(torch.float64))
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, atol=1e-11, rtol=1e-9)


@pytest.mark.parametrize("text", ["silu(s)", "gelu_tanh(s)", "gelu_tanh(mul(s,100.0))"])
def test_slopes_of_large_scores(text: str) -> None:
    """In fp32: not infinity times 0."""
    program = ScoreMod.parse(text)
    s = torch.tensor([-1e15, -1e13, 1e13, 1e15], dtype=torch.float32).view(1, 1, 1, 4)
    leaf = program_leaves(s, [], [], program, torch.ones_like(s))
    terms = [program.gradients.score, gated(program.gradients.score, program.weight)]
    want, got = fold(terms, leaf, torch_apply(torch.float32))
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("gate, count", [("silu", 10), ("gelu_tanh", 15)])
@pytest.mark.parametrize("score", ["s", "mul(s,0.0884)", "div(s,11.5)"])
def test_the_backward_computes_each_part_once(gate: str, count: int, score: str) -> None:
    """One tanh, no sigmoid, and no instruction for the scale; a product and a sum are one."""
    program = ScoreMod.parse(f"{gate}({score})")
    terms = [gated(t, program.weight) for t in (program.weight, program.gradients.score)]
    done = [node.op for node in postorder(terms) if node.args]
    assert done.count("tanh") == 1 and "sigmoid" not in done and gate not in done
    assert len(done) == count


@pytest.mark.parametrize("gate, count", [("silu", 10), ("gelu_tanh", 15)])
def test_a_slope_by_itself_takes_no_more(gate: str, count: int) -> None:
    """As kernels have it that multiply by dP later: no factor for the scale."""
    weight = ScoreMod.parse(f"{gate}(mul(s,0.0884))").weight
    (slope,) = differentiate(weight, [SCORE], const(1.0))
    terms = [gated(t, weight) for t in (weight, slope)]
    assert len([node for node in postorder(terms) if node.args]) == count - 1


def test_what_is_no_gate_is_left_alone() -> None:
    program = ScoreMod.parse("a0:f[h,q_idx,kv_idx]; mul(tanh(add(s,a0)),sigmoid(s))")
    for term in (program.weight, program.gradients.score):
        assert gated(term, program.weight) is term
