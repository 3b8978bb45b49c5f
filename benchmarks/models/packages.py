"""Models from packages: x-transformers, FLASH-pytorch and fla-core (the extra `clients`)."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..cases import ACTIVATIONS, Case
from .model import DEPTH, Built
from .published import package_file


def sequence(case: Case) -> Tensor:
    return torch.randn(case.batch, case.length, case.heads * case.head_dim)


def transformer(case: Case, kind: str = "Encoder", **options: Any) -> Built:
    """Layers of x-transformers with their feed-forward blocks."""
    import x_transformers

    layers = getattr(x_transformers, kind)(
        dim=case.heads * case.head_dim, depth=DEPTH, heads=case.heads,
        attn_dim_head=case.head_dim, **options,
    )  # fmt: skip
    return Built(layers, (sequence(case),))


encoder_sigmoid = functools.partial(transformer, attn_sigmoid=True)
decoder_sigmoid = functools.partial(
    transformer, kind="Decoder", attn_sigmoid=True, alibi_pos_bias=True
)
encoder_relu2 = functools.partial(transformer, attn_custom_attn_fn=ACTIVATIONS["relu2"])
encoder_laplace = functools.partial(transformer, attn_custom_attn_fn=ACTIVATIONS["laplace"])


def gau(case: Case, laplace: bool = False) -> Built:
    """Gated attention units of FLASH-pytorch: one head, values twice as wide as the input."""
    from flash_pytorch import GAU

    width = case.heads * case.head_dim
    units = (
        GAU(dim=width, query_key_dim=case.head_dim, causal=True, laplace_attn_fn=laplace)
        for _ in range(DEPTH)
    )
    return Built(nn.Sequential(*units), (sequence(case),))


gau_laplace = functools.partial(gau, laplace=True)


def group(case: Case) -> int:
    """The number of tokens in a group of FLASH."""
    return min(256, case.length // 2)


def flash(case: Case) -> Built:
    """FLASH of FLASH-pytorch: quadratic within groups, linear across groups."""
    from flash_pytorch import FLASH

    units = (
        FLASH(
            dim=case.heads * case.head_dim, group_size=group(case), query_key_dim=case.head_dim,
            causal=True,
        )
        for _ in range(DEPTH)
    )  # fmt: skip
    return Built(nn.Sequential(*units), (sequence(case),))


def heads(case: Case) -> tuple[Tensor, ...]:
    """Random q, k and v [B, H, N, D], which require gradients."""
    shape = (case.batch, case.heads, case.length, case.head_dim)
    return tuple(torch.randn(shape, requires_grad=True) for _ in range(3))


def naive(case: Case, path: str, name: str, **options: Any) -> Built:
    """A reference function of fla-core, on q, k and v [B, H, N, D]."""
    function: Callable[..., Tensor] = getattr(package_file("fla-core", path), name)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return function(q, k, v, **options)

    return Built(attend, heads(case))


retention = functools.partial(naive, path="fla/ops/retention/naive.py", name="naive_retention")
rebased = functools.partial(
    naive, path="fla/ops/rebased/naive.py", name="naive_parallel_rebased", use_norm=False
)
