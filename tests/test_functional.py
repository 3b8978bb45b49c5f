"""functional: `gdpa_inductor.attention` is its formula, and becomes one op with one program."""

import pytest
import torch
import torch.nn.functional as F

import gdpa_inductor
from gdpa_inductor import GDPAError
from tests._recorder import Recorder

Q = torch.randn(2, 4, 9, 8, dtype=torch.float64)
K = torch.randn(2, 4, 11, 8, dtype=torch.float64)
V = torch.randn(2, 4, 11, 5, dtype=torch.float64)

CALLS = {
    "identity": ({}, "s", lambda s: s),
    "scale": ({"scale": 0.5}, "s*0.5", lambda s: s * 0.5),
    "score_mod": (
        {"score_mod": lambda s, b, h, n, m: F.silu(s) / 9},
        "silu(s)/9.0",
        lambda s: F.silu(s) / 9,
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_it_is_the_formula_and_one_op(name: str) -> None:
    options, formula, by_hand = CALLS[name]

    def function(q, k, v):
        return gdpa_inductor.attention(q, k, v, **options)

    expected = by_hand(Q @ K.mT) @ V
    torch.testing.assert_close(function(Q, K, V), expected)
    recorder = Recorder()
    actual = torch.compile(function, backend=recorder, fullgraph=True)(Q, K, V)
    torch.testing.assert_close(actual, expected)
    assert [match.score_mod.formula for match in recorder.matches] == [formula], recorder.why()


def test_half_precision_scores_are_fp32() -> None:
    q, k, v = (t.bfloat16() for t in (Q, K, V))
    seen = []
    gdpa_inductor.attention(q, k, v, score_mod=lambda s, b, h, n, m: seen.append(s.dtype) or s)
    assert seen == [torch.float32]
    assert gdpa_inductor.attention(q, k, v).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("mask_mod", "kind"),
    [
        (lambda b, h, n, m: (n >= m).double(), "torch.float64"),
        (lambda b, h, n, m: (n >= m).to(torch.uint8), "torch.uint8"),
        (lambda b, h, n, m: True, "bool"),
        (lambda b, h, n, m: None, "NoneType"),
    ],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_mask_that_is_not_of_booleans(mask_mod, kind: str, compiled: bool) -> None:
    def function(q, k, v):
        return gdpa_inductor.attention(q, k, v, mask_mod=mask_mod)

    run = torch.compile(function, backend=Recorder()) if compiled else function
    with pytest.raises(TypeError, match=f"mask_mod must return a tensor of .*bool, not {kind}"):
        run(Q, K, V)


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        ((Q, K.tolist(), V), "key must be a tensor, got list"),
        ((Q[0], K, V), "query must be a floating-point tensor .batch, heads, length, head dim."),
        ((Q, K.long(), V), "key must be a floating-point tensor"),
        ((Q, K, V.cfloat()), "value must be a floating-point tensor"),
        ((Q, K.float(), V), "key is torch.float32 on cpu, query torch.float64"),
        ((Q, K.to("meta"), V), "key is torch.float64 on meta"),
        ((Q, K[:1], V), "batch, heads or lengths differ"),
        ((Q, K, V[:, :, :3]), "batch, heads or lengths differ"),
        ((Q, K[..., :4], V), "head dims of query and key differ: 8 and 4"),
        ((Q, K[:, :2], V[:, :2]), "4 query heads over 2 key heads need enable_gqa"),
    ],
)
def test_operands_that_do_not_fit(operands: tuple[torch.Tensor, ...], message: str) -> None:
    with pytest.raises(GDPAError, match=message):
        gdpa_inductor.attention(*operands)
