"""The refusals of the backward kernels, decided before anything is compiled.

cutlass is not imported here.
"""

from collections.abc import Sequence
from typing import Any

from ..config import KernelConfig
from .roots import factor_of, is_moderate

NONE = "the CuTe backward has no gradients of operands between the products"


def no_such_heads(key_heads: Any, value_heads: Any, alike: bool) -> str:
    # Why a backward cannot run with these numbers of heads, which may be symbols, or "".
    if alike:
        return ""
    heads = f"{key_heads} key heads and {value_heads} value heads"
    return f"the CuTe backward takes as many of both, not {heads}"


def no_such_dims(kind: type[KernelConfig], dims: Sequence[int]) -> str:
    # Why a backward cannot run at these head dims, or "".
    widest, most = max(dims), kind.max_backward_dim
    if widest <= most:
        return ""
    return f"a head dim of {widest}; the CuTe backward takes up to {most}"


def no_such_biases(program: str, needs: Sequence[bool], dtype: str) -> str:
    # Why the kernels cannot compute the gradients of the aux operands that need one, or "".
    wanted = [number for number, need in enumerate(needs) if need]
    if not wanted:
        return ""
    for number in wanted:
        factor = factor_of(program, number)
        if not factor:
            return f"{NONE} that are not added to the score, as a{number}"
        if not is_moderate(factor, dtype):
            return (
                f"{NONE} whose slope is {factor:g} times smaller than the score's, as of a{number}"
            )
    return ""
