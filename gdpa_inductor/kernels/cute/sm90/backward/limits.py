"""What the Hopper backward cannot do, said before anything is compiled. No cutlass here."""

from collections.abc import Sequence

from ..config import Sm90Config


def unsupported(config: Sm90Config, needs: Sequence[bool], key_heads: int, value_heads: int) -> str:
    """Why the kernel cannot give these gradients, or "". needs: of query, key, value, each aux."""
    if any(needs[3:]):
        return "the CuTe backward has no gradients of operands between the products"
    if config.head_dim <= 64:
        return "the Hopper backward takes head dims from 72 on"
    if config.shared & {"k", "v"}:
        return "the Hopper backward takes keys and values of every sequence, not shared ones"
    if key_heads != value_heads:
        return "key heads"
    return ""
