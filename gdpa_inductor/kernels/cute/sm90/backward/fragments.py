"""What a warpgroup of the backward multiplies: registers, and operands in shared memory."""

from dataclasses import dataclass
from typing import Any

from cutlass import Float32, cute
from cutlass.cute.nvgpu import warp

from ...operands import Tiles
from ...values import Fixed
from ..wgmma import WARPGROUP, issue, transposed
from .roles import HopperShapes


@dataclass
class HopperBackwardFragments(Fixed):
    """Registers and operands of a warpgroup."""

    shapes: HopperShapes
    tiles: dict[str, Tiles]  # of "q", "k", "v" and "o" (dO)
    sKt: Any  # K, as wide as the product dQ reads it
    sdS: Any  # the buffers of dS and dQ
    sdQ: Any
    thread: Any

    def __post_init__(self) -> None:
        shapes, tiles, thread = self.shapes, self.tiles, self.thread
        sKt, sdS, sdQ = self.sKt, self.sdS, self.sdQ
        group, x = cute.arch.make_warp_uniform(thread // WARPGROUP), shapes.products
        scores, values, keys, queries = (
            x[name].get_slice(group * WARPGROUP) for name in ("scores", "dv", "dk", "dq")
        )
        sQ, sK, sV, sdO = (tiles[name].sX for name in "qkvo")
        self.tK, self.tV = (scores.make_fragment_A(scores.partition_A(s)) for s in (sK, sV))
        self.tQ, self.tdO = (scores.make_fragment_B(scores.partition_B(s)) for s in (sQ, sdO))
        self.tdOt = values.make_fragment_B(values.partition_B(transposed(sdO)))
        self.tQt = keys.make_fragment_B(keys.partition_B(transposed(sQ)))
        self.tKt = queries.make_fragment_A(queries.partition_A(transposed(sKt)))
        self.tdS = queries.make_fragment_B(queries.partition_B(sdS))
        atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(True, 4), shapes.dtype)
        self.copy = cute.make_tiled_copy_C(atom, x["scores"])
        self.part = self.copy.get_slice(thread)
        self.to_dS = self.part.partition_D(transposed(sdS))
        atom = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(True, 4), shapes.dtype)
        self.fetch = cute.make_tiled_copy_C(atom, x["scores"])
        self.own = self.fetch.get_slice(thread)
        self.from_a = self.own.partition_S(transposed(sdS))
        alone = x["dq alone"].get_slice(thread % WARPGROUP)
        self.to_dQ = alone.partition_C(transposed(sdQ))
        self.S = self.scores()
        self.dV = cute.make_rmem_tensor(values.partition_shape_C(shapes.dv), Float32)
        self.dK = cute.make_rmem_tensor(keys.partition_shape_C(shapes.dk), Float32)

    def scores(self):
        product = self.shapes.products["scores"]
        return cute.make_rmem_tensor(product.partition_shape_C(self.shapes.scores), Float32)

    def multiply_scores(self, query) -> None:
        k, q = self.tK[None, None, None, 0], self.tQ[None, None, None, query]
        issue(self.shapes.products["scores"], self.S, k, q, True)

    def flow(self, stage):
        dP = self.scores()
        v, o = self.tV[None, None, None, 0], self.tdO[None, None, None, stage]
        issue(self.shapes.products["scores"], dP, v, o, True)
        return dP

    def sum_values(self, P, stage) -> None:
        issue(self.shapes.products["dv"], self.dV, P, self.tdOt[None, None, None, stage], False)

    def sum_keys(self, dS, stage) -> None:
        issue(self.shapes.products["dk"], self.dK, dS, self.tQt[None, None, None, stage], False)

    def share(self, dS, stage) -> None:
        cute.copy(self.copy, self.part.retile(dS), self.to_dS[None, None, None, stage])

    def fetched(self, registers, stage, part: int) -> None:
        """Read the aux operand of scores 8·part to 8·part + 7 of the thread from shared memory."""
        source, target = self.from_a[None, None, None, stage], self.own.retile(registers)
        cute.copy(self.fetch, source[None, None, part], target[None, None, part])

    def query_part(self, stage, registers=None):
        """Issue dQᵀ = Kᵀ dS, by default into registers of its own."""
        product, dQ = self.shapes.products["dq"], registers
        if dQ is None:
            dQ = cute.make_rmem_tensor(product.partition_shape_C(self.shapes.dq), Float32)
        k, s = self.tKt[None, None, None, 0], self.tdS[None, None, None, stage]
        issue(product, dQ, k, s, True)
        return dQ
