"""What a kernel for Blackwell is a function of, and what it cannot do. No cutlass here."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .. import config
from ..config import AUX_DTYPES, BOX

ROWS = COLS = BOX  # a score tile: 128 lanes of tensor memory, 128 fp32 columns
MAX_DIM = 128
SHARED_MEMORY = 227 << 10
TMEM_COLUMNS = 512


@dataclass(frozen=True)
class Sm100Config(config.KernelConfig):
    """The same, with the buffers that there is room for."""

    @property
    def output_stages(self) -> int:
        """Two accumulators per query tile where tensor memory has room, so that the next tile does
        not wait for the drain of this one."""
        return 2 if self.padded_value_dim <= 64 else 1

    @property
    def query_stages(self) -> int:
        return 4

    @property
    def key_stages(self) -> int:
        """As many as fit beside the query tiles, up to 6."""
        stage = 2 * COLS * max(self.padded_head_dim, self.padded_value_dim)
        room = SHARED_MEMORY - 2048 - 2 * ROWS * self.padded_head_dim * self.query_stages
        return min(6, room // stage)


def unsupported(
    dtypes: tuple[torch.dtype, torch.dtype], dims: tuple[int, int], aux: Sequence[str]
) -> str:
    """Why the kernel cannot run this, or "". dtypes, dims: of query and value. aux: dtype names."""
    if any(dtype not in (torch.bfloat16, torch.float16) for dtype in dtypes):
        return f"the CuTe kernel takes fp16 and bf16 operands, not {dtypes[0]} and {dtypes[1]}"
    if dtypes[0] != dtypes[1]:
        return f"query is {dtypes[0]}, value {dtypes[1]}; the CuTe kernel takes one"
    for size in dims:
        if not 8 <= size <= MAX_DIM or size % 8:
            return f"a head dim of {size}; the CuTe kernel takes multiples of 8 up to {MAX_DIM}"
    strange = [dtype for dtype in aux if dtype not in AUX_DTYPES]
    return f"an operand between the products is {strange[0]}" if strange else ""
