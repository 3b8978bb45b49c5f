"""What the backwards cannot do, said before anything is compiled. No cutlass here."""

from collections.abc import Sequence
from typing import Any


def no_such_gradients(needs: Sequence[bool], key_heads: Any, value_heads: Any, alike: bool) -> str:
    """Why the kernels cannot give these gradients, or "". needs: of query, key, value, each aux.
    Heads may be symbols; alike: they are known to be equal."""
    if any(needs[3:]):
        return "the CuTe backward has no gradients of operands between the products"
    if alike:
        return ""
    heads = f"{key_heads} key heads and {value_heads} value heads"
    return f"the CuTe backward takes as many of both, not {heads}"
