"""Which terms do without a mask past the ends of their operands."""

import pytest
import torch

from gdpa_inductor.program.expr import fold, torch_apply
from gdpa_inductor.program.score_mod import ScoreMod
from gdpa_inductor.program.tails import still
from gdpa_inductor.reference import program_leaves

STILL = [
    "s",
    "silu(mul(s,0.1))",
    "gelu_tanh(s)",
    "mish(s)",
    "bf16(silu(bf16(s)))",
    "where(ge(q_idx,kv_idx),div(silu(s),9.0),0.0)",
    "mul(float(ge(q_idx,kv_idx)),silu(s))",
    "a0:i[b]; where(lt(kv_idx,a0),silu(s),0.0)",
    "a0:b[q_idx,kv_idx]; where(a0,silu(s),gelu_tanh(s))",
    "div(silu(s),float(i0))",
]
RESTLESS = [
    "div(1.0,s)",
    "div(silu(s),float(where(eq(i0,0),0,i0)))",  # a number that may be 0
    "log(s)",
    "exp(add(s,200.0))",
    "mul(exp(add(s,80.0)),1e-30)",
    "a0:f[q_idx,kv_idx]; silu(add(s,a0))",  # a bias may be infinite
    "a0:f[kv_idx]; mul(silu(s),a0)",
    "a0:f[kv_idx]; where(ge(q_idx,kv_idx),silu(s),a0)",
    "mul(silu(s),float(q_idx))",
    "sigmoid(s)",  # 1 at infinity: beside a key of infinities the zeros past the end give NaN
    "exp(s)",
    "relu(s)",
    "tanh(s)",
    "a0:b[q_idx,kv_idx]; where(a0,silu(s),sigmoid(s))",
]


def unmasked(text: str) -> frozenset[str]:
    program = ScoreMod.parse(text)
    terms = [program.weight, program.gradients.score]
    return still(["p", "ds"], [terms, terms])


@pytest.mark.parametrize("text", STILL)
def test_still(text: str) -> None:
    assert unmasked(text) == {"p", "ds"}
    program = ScoreMod.parse(text)
    zero = torch.zeros(1, 1, 3, 3)
    operands = [torch.ones([1] * len(a.access)).to(_KINDS[a.kind]) for a in program.aux]
    leaf = program_leaves(zero, operands, [5] * program.num_scalars, program, zero)
    for value in fold([program.weight, program.gradients.score], leaf, torch_apply(torch.float32)):
        assert value.isfinite().all()


_KINDS = {"i": torch.int32, "b": torch.bool, "f": torch.float32}


@pytest.mark.parametrize("text", RESTLESS)
def test_restless(text: str) -> None:
    assert "p" not in unmasked(text)


def test_the_slope_alone() -> None:
    assert unmasked("pow(s,0.5)") == {"p"}  # infinite slope at 0, and 0 · inf is not a number


@pytest.mark.parametrize(
    "text",
    ["hardswish(mul(s,0.125))", "silu(hardtanh(s,-50.0,50.0))", "where(lt(s,-20.0),0.0,silu(s))"],
)
def test_slopes_that_are_zero_somewhere(text: str) -> None:
    """There the formula has 0 for an infinite gradient, a tail would have NaN."""
    assert "ds" not in unmasked(text)


def test_every_variant_counts() -> None:
    quiet, loud = ScoreMod.parse("silu(s)").weight, ScoreMod.parse("div(1.0,s)").weight
    assert still(["p"], [[quiet], [loud]]) == frozenset()
    assert still(["p"], [[quiet], [quiet]]) == {"p"}


def test_sums_have_to_be_zero() -> None:
    """What is summed as it is, and not multiplied by zeros, may not be 1 there."""
    terms = [ScoreMod.parse(text).weight for text in ("add(s,1.0)", "silu(s)")]
    assert still(["g0", "g1"], [terms, terms]) == {"g1"}


def test_all_combinations_of_operands_count() -> None:
    """Of 25 products of two sums of masks the last alone is 16. The first 17 were looked at."""
    masks = "; ".join(f"a{number}:b[q_idx,kv_idx]" for number in range(8))
    sums = ["add(add(add({},{}),{}),{})".format(*numbers) for numbers in (_FLOATS[:4], _FLOATS[4:])]
    assert "p" not in unmasked(f"{masks}; div(silu(s),sub(mul({sums[0]},{sums[1]}),16.0))")


_FLOATS = [f"float(a{number})" for number in range(8)]
