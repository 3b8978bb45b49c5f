"""What the Blackwell backward cannot do, said before anything is compiled. No cutlass here."""

from collections.abc import Sequence
from typing import Any

import torch

from ...config import unsupported as unfit
from ..config import Sm100Config


def unsupported(
    config: Sm100Config, needs: Sequence[bool], key_heads: int, value_heads: int
) -> str:
    """Why the kernels cannot give these gradients, or "". needs: of query, key, value, each aux."""
    dtypes, dims = (getattr(torch, config.dtype),) * 2, (config.head_dim, config.value_dim)
    if reason := unfit(Sm100Config, dtypes, dims, config.aux):
        return reason
    return no_such_gradients(needs, key_heads, value_heads, key_heads == value_heads)


def no_such_gradients(needs: Sequence[bool], key_heads: Any, value_heads: Any, alike: bool) -> str:
    """The same of the gradients alone. Heads may be symbols; alike: they are known to be equal."""
    if any(needs[3:]):
        return "the CuTe backward has no gradients of operands between the products"
    if alike:
        return ""
    heads = f"{key_heads} key heads and {value_heads} value heads"
    return f"the CuTe backward takes as many of both, not {heads}"
