"""exact: which conditions of a mask are the same in every precision."""

import pytest
import torch

from gdpa_inductor.program.rounding import fragile_condition
from gdpa_inductor.program.score_mod import ScoreMod, formula
from tests._recorder import Recorder, recorded

DECLARED = "a0:f[b,q_idx]; a1:f[b,kv_idx]; a2:i[b]; "


@pytest.mark.parametrize(
    "text, fragile",
    [
        ("where(ge(q_idx,kv_idx),s,0.0)", None),
        ("where(le(abs(sub(float(q_idx),float(kv_idx))),4.0),s,0.0)", None),
        ("where(lt(mul(float(q_idx),0.5),float(kv_idx)),s,0.0)", None),
        ("where(lt(a0,a1),s,0.0)", None),
        ("where(lt(maximum(a0,a1),3.0),s,0.0)", None),
        ("where(lt(floor(mul(float(q_idx),0.25)),2.0),s,0.0)", None),
        ("where(gt(bf16(float(q_idx)),bf16(float(kv_idx))),s,0.0)", None),
        # Numbers that round: the condition is another one in fp64 or with a fused multiply-add.
        ("where(lt(mul(float(q_idx),0.1),0.3),s,0.0)", "float(q_idx)*0.1 < 0.3"),
        ("where(lt(sub(a0,a1),2.0),s,0.0)", "a0 - a1 < 2.0"),
        ("where(eq(int(div(float(q_idx),3.0)),kv_idx),s,0.0)", "int(float(q_idx)/3.0)"),
        ("where(lt(div(float(q_idx),float(a2)),1.0),s,0.0)", "float(q_idx)/float(a2) < 1.0"),
        ("where(lt(a0,0.1),s,0.0)", "a0 < 0.1"),
        ("where(lt(exp(float(q_idx)),7.0),s,0.0)", "exp(float(q_idx)) < 7.0"),
        ("mul(s,floor(mul(float(q_idx),0.3)))", "floor(float(q_idx)*0.3)"),
        # What decides by the score is the model's own function; what does not decide is smooth.
        ("where(gt(s,0.3),s,0.0)", None),
        ("where(gt(mul(s,0.1),mul(float(q_idx),0.1)),s,0.0)", None),
        ("mul(s,exp(mul(float(sub(q_idx,kv_idx)),-0.1)))", None),
    ],
)
def test_conditions_that_round(text: str, fragile: str | None):
    actual = fragile_condition(ScoreMod.parse(DECLARED + text).weight)
    assert (None if actual is None else formula(actual)) == fragile


N = 320  # positions past 256 tie in bf16


TIED = {
    "later": lambda i, d: i.to(d)[:, None] > i.to(d),
    "as far": lambda i, d: (i[:, None] - i).to(d) == 260,
    "beside integers": lambda i, d: i.to(d)[:, None] >= i,
}
COMPUTED = {
    "far apart": lambda i, d: (i.to(d)[:, None] - i.to(d)) > 256,
    "halves": lambda i, d: (i.to(d)[:, None] + 1) * 0.5 > i.to(d),
}


def attend(mask, is_operand):
    def attention(q, k, v, i):
        return torch.sigmoid(q @ k.mT) * mask(i if is_operand else torch.arange(N), q.dtype) @ v

    return attention


def is_eagers(mask, function):
    """Whether the mask is: with a wrong one every row after 256 sums other values."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, N, 16, generator=generator).bfloat16() for _ in range(3))
    i = torch.arange(N)
    exact = torch.sigmoid(q.double() @ k.double().mT) * mask(i, q.dtype) @ v.double()
    return (function(q, k, v, i).double() - exact).norm() <= 0.01 * exact.norm()


@pytest.mark.parametrize("is_operand", [False, True], ids=["made", "given"])
@pytest.mark.parametrize("mask", TIED.values(), ids=TIED)
def test_positions_in_16_bits_tie_as_they_do_in_eager(mask, is_operand):
    torch._dynamo.reset()
    recorder = Recorder()
    assert is_eagers(mask, torch.compile(attend(mask, is_operand), backend=recorder))
    (match,) = recorder.matches
    if "q_idx,kv_idx" in str(match.score_mod):  # torch 2.11: it is Inductor's to compute
        return
    torch._dynamo.reset()
    options = {"gdpa.profit": False, "gdpa.expect": 1}
    compiled = torch.compile(attend(mask, is_operand), backend="gdpa", options=options)
    assert is_eagers(mask, compiled)


@pytest.mark.parametrize("mask", COMPUTED.values(), ids=COMPUTED)
def test_arithmetic_of_positions_in_16_bits_stays_the_models(mask):
    """The rewritten graph is run eagerly: Inductor itself drops such roundings."""
    torch._dynamo.reset()
    recorder = Recorder()
    assert is_eagers(mask, torch.compile(attend(mask, False), backend=recorder))
    (match,) = recorder.matches
    assert "q_idx,kv_idx" in str(match.score_mod)


def test_large_integers_round_to_fp32_beside_fp64_scores():
    def attention(q, k, v, at):
        since = (at[:, :, None] - 0 * at[:, None]).float() >= (at[0, 0] + 300.0).float()
        return torch.sigmoid(q @ k.mT) * since[:, None] @ v

    q, k, v = (torch.randn(2, 2, 40, 16, dtype=torch.float64) for _ in range(3))
    at = 1_700_000_000 + torch.randint(0, 60, (2, 40)).cumsum(1)
    assert recorded(attention, q, k, v, at).matches
