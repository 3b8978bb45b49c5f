"""Hugging Face's flex_attention integration, with an activation in the place of the softmax.

transformers is no dependency of the tests: `pip install transformers`.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask

import gdpa_inductor
from tests._recorder import Recorder
from tests.test_scalars import loop

flex = pytest.importorskip("transformers.integrations.flex_attention")

B, H, N, D = 2, 4, 12, 8
ADDED = torch.randn(B, 1, N, N, dtype=torch.float64)
BIAS = torch.randn(B, H, N, N, dtype=torch.float64)
CAUSAL = create_block_mask(lambda b, h, i, j: i >= j, B, None, N, N, device="cpu")
# name: (mask, further arguments, the score by hand).
CALLS = {
    "plain": (None, {}, lambda s, b, h, i, j: s),
    "added mask": (ADDED, {}, lambda s, b, h, i, j: s + ADDED[b, 0, i, j]),
    "softcap": (None, {"softcap": 5.0}, lambda s, b, h, i, j: 5 * torch.tanh(s / 5)),
    "bias and mask": (
        ADDED,
        {"position_bias": BIAS},
        lambda s, b, h, i, j: s + ADDED[b, 0, i, j] + BIAS[b, h, i, j],
    ),
    "block mask": (CAUSAL, {}, lambda s, b, h, i, j: s),
}


def attend(query, key, value, score_mod=None, block_mask=None, enable_gqa=False, scale=None, **_):
    return gdpa_inductor.attention(
        query,
        key,
        value,
        score_mod=lambda score, *at: F.silu(score_mod(score, *at)),
        mask_mod=None if block_mask is None else block_mask.mask_mod,
        scale=scale,
        enable_gqa=enable_gqa,
    )


@pytest.mark.parametrize("key_heads", [H, 2])
@pytest.mark.parametrize("name", CALLS)
def test_it_is_one_fused_op(name: str, key_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "compile_friendly_flex_attention", attend)
    mask, options, by_hand = CALLS[name]
    q = torch.randn(B, H, N, D, dtype=torch.float64)
    k, v = torch.randn(2, B, key_heads, N, D, dtype=torch.float64)

    def function(q, k, v):
        return flex.flex_attention_forward(nn.Identity(), q, k, v, mask, scaling=0.5, **options)[0]

    wide = [x.repeat_interleave(H // key_heads, 1) for x in (k, v)]
    causal = CAUSAL.mask_mod if name == "block mask" else None
    weight = lambda s, *at: F.silu(by_hand(0.5 * s, *at))
    wanted = loop(q, *wide, weight, causal).transpose(1, 2)
    torch.testing.assert_close(function(q, k, v), wanted)
    recorder = Recorder()
    actual = torch.compile(function, backend=recorder, fullgraph=True)(q, k, v)
    torch.testing.assert_close(actual, wanted)
    assert len(recorder.matches) == 1, recorder.why()
