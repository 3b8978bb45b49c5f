"""Models that nobody wrote for this package: what a user has, unmodified.

In: a case, for its heads, head dim and length. Out: a module from [B, N, heads · head dim] to the
same. HSTU layers come with the demo; the others are packages of the extra `clients`.
"""

from collections.abc import Callable

from torch import nn

from .cases import Case

DEPTH = 2


def hstu(case: Case) -> nn.Module:
    """Pointwise attention with a learned bias by distance, causal, gated."""
    from gdpa_inductor.demo.model import Layer

    width = case.heads * case.head_dim
    return nn.Sequential(*(Layer(width, case.heads, case.length) for _ in range(DEPTH)))


def gau(case: Case) -> nn.Module:
    """Gated attention units of FLASH-pytorch: one head, relu², values twice as wide as the
    input."""
    from flash_pytorch import GAU

    width = case.heads * case.head_dim
    units = (GAU(dim=width, query_key_dim=case.head_dim, causal=True) for _ in range(DEPTH))
    return nn.Sequential(*units)


def sigmoid(case: Case) -> nn.Module:
    """An encoder of x-transformers with sigmoid attention, feed-forward blocks and all."""
    from x_transformers import Encoder

    width = case.heads * case.head_dim
    return Encoder(
        dim=width, depth=DEPTH, heads=case.heads, attn_dim_head=case.head_dim, attn_sigmoid=True
    )


CLIENTS: dict[str, Callable[[Case], nn.Module]] = {"hstu": hstu, "gau": gau, "sigmoid": sigmoid}
