"""exact: which conditions of a mask are the same in every precision."""

import pytest

from gdpa_inductor.patterns.exact import fragile_condition
from gdpa_inductor.score_mod import ScoreMod, formula

DECLARED = "a0:f[b,n]; a1:f[b,m]; a2:i[b]; "


@pytest.mark.parametrize(
    "text, fragile",
    [
        ("where(ge(n,m),s,0.0)", None),
        ("where(le(abs(sub(float(n),float(m))),4.0),s,0.0)", None),
        ("where(lt(mul(float(n),0.5),float(m)),s,0.0)", None),
        ("where(lt(a0,a1),s,0.0)", None),
        ("where(lt(maximum(a0,a1),3.0),s,0.0)", None),
        ("where(lt(floor(mul(float(n),0.25)),2.0),s,0.0)", None),
        # Numbers that round: the condition is another one in fp64 or with a fused multiply-add.
        ("where(lt(mul(float(n),0.1),0.3),s,0.0)", "float(n)*0.1 < 0.3"),
        ("where(lt(sub(a0,a1),2.0),s,0.0)", "a0 - a1 < 2.0"),
        ("where(eq(int(div(float(n),3.0)),m),s,0.0)", "int(float(n)/3.0)"),
        ("where(lt(div(float(n),float(a2)),1.0),s,0.0)", "float(n)/float(a2) < 1.0"),
        ("where(lt(a0,0.1),s,0.0)", "a0 < 0.1"),
        ("where(lt(exp(float(n)),7.0),s,0.0)", "exp(float(n)) < 7.0"),
        ("mul(s,floor(mul(float(n),0.3)))", "floor(float(n)*0.3)"),
        # What decides by the score is the model's own function; what does not decide is smooth.
        ("where(gt(s,0.3),s,0.0)", None),
        ("where(gt(mul(s,0.1),mul(float(n),0.1)),s,0.0)", None),
        ("mul(s,exp(mul(float(sub(n,m)),-0.1)))", None),
    ],
)
def test_conditions_that_round(text: str, fragile: str | None):
    found = fragile_condition(ScoreMod.parse(DECLARED + text).weight)
    assert (None if found is None else formula(found)) == fragile
