"""attention-gym's masks and mods, unmodified: `attention` takes them as flex_attention does.

Each is compared with a loop over (b, h, q, kv) in fp64, eager and compiled. Skipped where the
package is not installed (`pip install gdpa-inductor[clients]`).
"""

import pytest
import torch
import torch.nn.functional as F

import gdpa_inductor
from tests._recorder import Recorder
from tests.test_scalars import loop

masks = pytest.importorskip("attn_gym.masks")
mods = pytest.importorskip("attn_gym.mods")

from attn_gym.masks import document_mask  # noqa: E402
from attn_gym.mods import alibi, graphormer, latent_attention, softcapping  # noqa: E402
from torch.nn.attention.flex_attention import and_masks, noop_mask, or_masks  # noqa: E402

B, H, N, D = 2, 2, 16, 4
OFFSETS = torch.tensor([0, 5, 9, 16], dtype=torch.int32)
ADJACENT = torch.rand(B, N, N, generator=torch.Generator().manual_seed(0)) < 0.3

MASKS = {
    "causal": lambda: masks.causal_mask,
    "batchify": lambda: masks.batchify_mask_mod(masks.causal_mask, 4),
    "dilated window": lambda: masks.generate_dilated_sliding_window(4, 2),
    "documents": lambda: document_mask.generate_doc_mask_mod(masks.causal_mask, OFFSETS),
    "documents, not causal": lambda: document_mask.generate_doc_mask_mod(noop_mask, OFFSETS),
    "images in text": lambda: masks.generate_vision_cross_attention_mask_mod(
        torch.tensor([[0, 7], [1, 7], [7, 12], [3, 16]]), 4
    ),
    "window and global tokens": lambda: masks.generate_global_sliding_window(
        3, torch.arange(N) % 8 == 0
    ),
    "prefix": lambda: masks.generate_prefix_lm_mask(4),
    "shared prefix": lambda: masks.generate_shared_prefix_mask_mod(
        OFFSETS, torch.tensor([0, 0, 0])
    ),
    "window": lambda: masks.generate_sliding_window(3),
    "tiles in 2-D": lambda: masks.generate_sta_mask_mod_2d((4, 3), (2, 3), (2, 1), 4),
    "tiles in 3-D": lambda: masks.generate_sta_mask_mod_3d((2, 2, 3), (2, 2, 3), (1, 2, 1), 4),
    "heads of frames": lambda: masks.generate_spatial_head_mask_mod(2, 3, 5, 1, False, 2),
    "heads of time": lambda: masks.generate_temporal_head_mask_mod(2, 2, 5, 1),
    "neighbours": lambda: masks.generate_natten(4, 4, 3, 3),
    "neighbours in tiles": lambda: masks.generate_tiled_natten(4, 4, 3, 3, 2, 2),
    "neighbours by Morton's code": lambda: masks.generate_morton_natten(4, 4, 3, 3),
    "joined": lambda: or_masks(
        and_masks(masks.causal_mask, masks.generate_sliding_window(3)), lambda b, h, i, j: j < 2
    ),
}
MODS = {
    "alibi": lambda: alibi.generate_alibi_bias(H),
    "distances in a graph": lambda: graphormer.generate_graphormer_spatial_bias(
        torch.randn(H, 6), graphormer.shortest_path_distances(ADJACENT, 4)
    ),
    "softcap": lambda: softcapping.generate_tanh_softcap(20),
}
# Right, and not fused: a product in the mod, and an operator that is opaque.
UNFUSED_MODS = {
    "rotary part of a latent": lambda: latent_attention.generate_mla_rope_score_mod(
        torch.randn(B, H, N, D).double(), torch.randn(B, 1, N, D).double(), H, 0.3
    ),
    "softcap by an approximation": lambda: softcapping.generate_tanh_softcap(20, approx=True),
}


def check(score_mod, mask_mod, fused: bool) -> None:
    q, k, v = torch.randn(3, B, H, N, D, dtype=torch.float64)

    def function(q, k, v):
        return gdpa_inductor.attention(q, k, v, score_mod=score_mod, mask_mod=mask_mod)

    wanted = loop(q, k, v, score_mod, mask_mod)
    torch.testing.assert_close(function(q, k, v), wanted)
    recorder = Recorder()
    results = torch.compile(function, backend=recorder, fullgraph=True)(q, k, v)
    torch.testing.assert_close(results, wanted)
    assert len(recorder.matches) == fused, recorder.why()


@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    check(lambda s, *_: F.silu(s), made(MASKS[name]), fused=True)


@pytest.mark.parametrize("name", {**MODS, **UNFUSED_MODS})
def test_mods(name: str) -> None:
    mod = made({**MODS, **UNFUSED_MODS}[name])
    check(lambda s, *at: torch.sigmoid(mod(s, *at)), None, fused=name in MODS)


def made(factory):
    """What a factory makes; versions of the package differ in what they have."""
    try:
        return factory()
    except (AttributeError, TypeError) as missing:
        pytest.skip(f"not in this version: {missing}")
