"""HSTU as it is published: research layers and the production function, and the demo's layers.

Published models have jagged sequences, whose mean length is `fill` times the greatest. Their code
is from the repository generative-recommenders.
"""

import functools
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ..cases import Case
from ..jagged import offsets
from .model import DEPTH, Built, autocasts
from .published import hstu_file

FOLDER = Path(".cache/hstu")
RESEARCH = "generative_recommenders/research/modeling/sequential/hstu.py"
PRODUCTION = "generative_recommenders/ops/pytorch/pt_hstu_attention.py"
_AROUND = "generative_recommenders.research."
NEEDS = {
    f"{_AROUND}modeling.sequential.embedding_modules": ("EmbeddingModule",),
    f"{_AROUND}modeling.sequential.input_features_preprocessors": (
        "InputFeaturesPreprocessorModule",
    ),
    f"{_AROUND}modeling.sequential.output_postprocessors": ("OutputPostprocessorModule",),
    f"{_AROUND}modeling.sequential.utils": ("get_current_embeddings",),
    f"{_AROUND}modeling.similarity_module": ("SequentialEncoderWithLearnedSimilarityModule",),
    f"{_AROUND}rails.similarities.module": ("SimilarityModule",),
}
BUCKETS = 128


def padded(case: Case) -> Built:
    """The demo's layers: causal and gated pointwise attention with a learned bias by distance."""
    from examples.movielens.model import Layer

    width = case.heads * case.head_dim
    layers = nn.Sequential(*(Layer(width, case.heads, case.length) for _ in range(DEPTH)))
    return Built(layers, (torch.randn(case.batch, case.length, width),))


class Research(nn.Module):
    """Layers of the research code. Rows [L, W], offsets [B + 1] and times [B, N] to [B, N, W].

    W is the width. A time is a time stamp in seconds.
    """

    mask: Tensor

    def __init__(self, module: ModuleType, case: Case) -> None:
        super().__init__()
        layers = [research_layer(module, case) for _ in range(DEPTH)]
        dtype = torch.bfloat16 if autocasts(case) and case.device == "cuda" else None
        self.layers = module.HSTUJagged(modules=layers, autocast_dtype=dtype)
        self.register_buffer("mask", torch.ones(case.length, case.length).tril())

    def forward(self, x: Tensor, ends: Tensor, times: Tensor) -> Tensor:
        output: Tensor = self.layers(
            x=x, x_offsets=ends, all_timestamps=times, invalid_attn_mask=self.mask
        )[0]
        return output


def bucket(apart: Tensor) -> Tensor:
    """The bucket of a time difference, as in the published configurations."""
    return (torch.log(torch.abs(apart).clamp(min=1)) / 0.301).long()


def research_layer(module: ModuleType, case: Case) -> nn.Module:
    bias = module.RelativeBucketedTimeAndPositionBasedBias(
        max_seq_len=case.length, num_buckets=BUCKETS, bucketization_fn=bucket
    )
    layer: nn.Module = module.SequentialTransductionUnitJagged(
        embedding_dim=case.heads * case.head_dim, linear_hidden_dim=case.head_dim,
        attention_dim=case.head_dim, dropout_ratio=0.0, attn_dropout_ratio=0.0,
        num_heads=case.heads, linear_activation="silu", relative_attention_bias_module=bias,
        max_length=case.length,
    )  # fmt: skip
    return layer


def research(case: Case) -> Built:
    """DEPTH layers with learned biases by position and time, as the research code trains them."""
    ends = offsets(case.lengths()).long()
    x = torch.randn(int(ends[-1]), case.heads * case.head_dim, requires_grad=True)
    times = torch.randint(0, 5000, (case.batch, case.length)).cumsum(1)
    return Built(Research(hstu_file(RESEARCH, FOLDER, NEEDS), case), (x, ends, times))


def production(case: Case, targets: bool = False) -> Built:
    """`pytorch_hstu_mha` on jagged sequences with a causal mask.

    targets: The mask also has targets and a window.
    """
    function = hstu_file(PRODUCTION, FOLDER).pytorch_hstu_mha
    counts = case.lengths()
    rows = (int(counts.sum()), case.heads, case.head_dim)
    values = tuple(torch.randn(rows, requires_grad=True) for _ in range(3))
    # Targets are the last rows of a sequence, at most a sixteenth of the greatest length. They see
    # the history, but not each other.
    wanted = counts.clamp(max=case.length // 16).long()
    options: dict[str, Any] = {"max_attn_len": case.length // 4} if targets else {}

    def attend(q: Tensor, k: Tensor, v: Tensor, ends: Tensor, count: Tensor) -> Tensor:
        more = {"num_targets": count, **options} if targets else {}
        out: Tensor = function(case.length, case.head_dim**-0.5, q, k, v, ends, **more)
        return out

    return Built(attend, (*values, offsets(counts).long(), wanted))


production_targets = functools.partial(production, targets=True)
