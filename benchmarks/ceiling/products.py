"""The host's side of the plain wgmma loops (wgmma.py): compiling, launching, expected results.

In: q, k, v and dO in bf16, contiguous [B, H, N, 128]. Out: the tensors that the loop stores.
Compiling needs no GPU. Importing this module needs nvidia-cutlass-dsl.
"""

import functools
import math
from typing import Any

import cuda.bindings.driver as cuda
import torch
from cutlass import BFloat16, Float32, Int32, cute
from torch import Tensor

from .backward import BackwardCeiling
from .forward import ForwardCeiling
from .wgmma import COLS, D

Loop = ForwardCeiling | BackwardCeiling
ADDED = ("added", "ordered", "reduced")  # the variants of `dq` that compute dQ
# The loops of each measure by their name in the table.
LOOPS: dict[str, dict[str, Loop]] = {
    "forward": {
        "products": ForwardCeiling(),
        "products, resident": ForwardCeiling(resident=True),
        "products and silu": ForwardCeiling(activated=True),
    },
    "backward": {
        "products, 64": BackwardCeiling(),
        "products, 80": BackwardCeiling(80),
        "products and silu, 64": BackwardCeiling(activated=True),
        "products and silu, 80": BackwardCeiling(80, activated=True),
        "products and silu, 64, ordered": BackwardCeiling(activated=True, dq="ordered"),
        "products and silu, 80, ordered": BackwardCeiling(80, activated=True, dq="ordered"),
        "products and silu, 80, ordered, not turned": BackwardCeiling(
            80, activated=True, dq="ordered", turned=False
        ),
        "products, 80, ordered": BackwardCeiling(80, dq="ordered"),
        "products, 80, ordered by two warps": BackwardCeiling(80, dq="ordered", warps=2),
        "products, 80, dQ reduced": BackwardCeiling(80, dq="reduced"),
        "products, 80, dQ handed": BackwardCeiling(80, dq="handed"),
        "products, 80, dQ dropped": BackwardCeiling(80, dq="dropped"),
        "products, 80, dQ dropped, resident": BackwardCeiling(80, dq="dropped", resident=True),
        "products, 80, not turned": BackwardCeiling(80, turned=False),
    },
}


def pointer(kind: Any, address: int = 1024) -> Any:
    return cute.runtime.make_ptr(kind, address, cute.AddressSpace.gmem, assumed_align=16)


@functools.cache
def compiled(loop: Loop, options: str = "--gpu-arch=sm_90a") -> Any:
    inputs, outputs = (4, 2) if loop.backward else (3, 1)
    example = tuple(pointer(BFloat16) for _ in range(inputs + outputs))
    sizes = (Int32(1), Int32(1))
    return cute.compile(
        loop, example[:inputs], example[inputs:], (pointer(Float32), pointer(Int32)), sizes,
        Int32(1), cuda.CUstream(0), options=options,
    )  # fmt: skip


def ctas(loop: Loop, multiprocessors: int, tiles: int) -> int:
    """The number of CTAs of a launch: one on each multiprocessor.

    In order, it is a multiple of a head's tiles, so that all tiles of a head run at once. So no
    tile waits for a CTA that is busy with another head. tiles: Key tiles of a head.
    """
    if not (isinstance(loop, BackwardCeiling) and loop.ordered):
        return multiprocessors
    if tiles > multiprocessors:
        raise ValueError(f"{tiles} tiles of a head do not run at once")
    return multiprocessors // tiles * tiles


class Launch:
    """A loop with its operands. Calling it runs the kernel on the current stream.

    q, k, v, direction: bf16 [B, H, N, D], where direction is dO and N a multiple of 128.
    """

    def __init__(self, loop: Loop, q: Tensor, k: Tensor, v: Tensor, direction: Tensor) -> None:
        batch, heads, length, width = q.shape
        assert width == D and length % COLS == 0 and all(x.is_contiguous() for x in (q, k, v))
        self.loop, self.tensors, self.heads = loop, (q, k, v, direction), batch * heads
        inputs = (k, v, q, direction) if loop.backward else (q, k, v)
        self.outputs = [torch.empty_like(q) for _ in range(2 if loop.backward else 1)]
        self.tiles = -(-length // loop.rows)
        self.dq = torch.zeros(self.heads * self.tiles * loop.rows * D, device=q.device)
        # The last turn of a run sets its counter back to 0.
        self.counters = torch.zeros(self.heads * self.tiles, dtype=torch.int32, device=q.device)
        self.kernel = compiled(loop)
        properties = torch.cuda.get_device_properties(q.device)
        self.arguments = (
            tuple(pointer(BFloat16, x.data_ptr()) for x in inputs),
            tuple(pointer(BFloat16, x.data_ptr()) for x in self.outputs),
            (pointer(Float32, self.dq.data_ptr()), pointer(Int32, self.counters.data_ptr())),
            (Int32(self.heads), Int32(length)),
            Int32(ctas(loop, properties.multi_processor_count, length // COLS)),
        )

    def __call__(self) -> None:
        self.kernel(*self.arguments, cuda.CUstream(torch.cuda.current_stream().cuda_stream))

    def results(self) -> list[Tensor]:
        """The results of one run: O, or dV and dK, and dQ if the loop computes it."""
        ordered = isinstance(self.loop, BackwardCeiling) and self.loop.ordered
        self.dq.fill_(math.nan if ordered else 0)
        self()
        summed = isinstance(self.loop, BackwardCeiling) and self.loop.dq in ADDED
        return [*self.outputs, self.rows_of_dq()] if summed else self.outputs

    def same_bits(self, runs: int = 20) -> bool:
        """True if further runs give the same bits as the first one."""
        first = [x.clone() for x in self.results()]
        pairs = (pair for _ in range(runs) for pair in zip(first, self.results(), strict=True))
        return all(torch.equal(a.view(torch.int16), b.view(torch.int16)) for a, b in pairs)

    def rows_of_dq(self) -> Tensor:
        """dQ [B, H, N, D], put in order: the loop leaves it as the warps' registers hold it."""
        q, rows = self.tensors[0], self.loop.rows
        # heads, tile, warpgroup, 8 rows, warp, 8 columns, 2 rows, column + 8, row
        lain = self.dq.view(self.heads, self.tiles, 2, rows // 8, 4, 8, 4, 2, 2)
        whole = lain.permute(0, 1, 3, 6, 8, 2, 4, 7, 5).reshape(self.heads, self.tiles * rows, D)
        return whole[:, : q.shape[2]].reshape(q.shape)


def expected(loop: Loop, q: Tensor, k: Tensor, v: Tensor, direction: Tensor) -> list[Tensor]:
    """The results that `Launch.results` should have, in fp64 but with P and dS rounded to bf16."""
    q, k, v, direction = (x.double() for x in (q, k, v, direction))
    scores, slope = q @ k.mT, torch.ones((), dtype=torch.double, device=q.device)
    if loop.activated:
        scaled = scores * D**-0.5
        sigmoid = scaled.sigmoid()
        scores, slope = scaled * sigmoid, sigmoid * (1 + scaled * (1 - sigmoid))
    p = scores.bfloat16().double()
    if not isinstance(loop, BackwardCeiling):
        return [p @ v]
    ds = (direction @ v.mT * slope).bfloat16().double()
    grads = [p.mT @ direction, ds.mT @ q, ds @ k]
    return grads if loop.dq in ADDED else grads[:2]
