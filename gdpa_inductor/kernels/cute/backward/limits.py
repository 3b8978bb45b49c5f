"""What the backwards cannot do, said before anything is compiled. No cutlass here."""

from collections.abc import Sequence
from typing import Any

from ..config import KernelConfig
from .roots import factor_of


def no_such_heads(key_heads: Any, value_heads: Any, alike: bool) -> str:
    """Why the kernels cannot give any gradient, or "". Heads may be symbols; alike: they are known
    to be equal."""
    if alike:
        return ""
    heads = f"{key_heads} key heads and {value_heads} value heads"
    return f"the CuTe backward takes as many of both, not {heads}"


def no_such_biases(
    kind: type[KernelConfig], program: str, needs: Sequence[bool], jagged: bool
) -> str:
    """Why they cannot give the gradients of these operands between the products, or ""."""
    wanted = [number for number, need in enumerate(needs) if need]
    if not wanted:
        return ""
    about = "the CuTe backward has no gradients of operands between the products"
    if not kind.stores:
        return f"{about} on {kind.gpu}"
    if jagged:
        return f"{about} where a side is jagged"
    other = next((number for number in wanted if not factor_of(program, number)), None)
    return "" if other is None else f"{about} that are not added to the score, as a{other}"
