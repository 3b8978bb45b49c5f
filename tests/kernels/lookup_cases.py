"""Calls whose programs look up learned tables."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gdpa_inductor.operands import Operands
from gdpa_inductor.program.score_mod import ScoreMod

BF16, FP32, U8 = torch.bfloat16, torch.float32, torch.uint8
POSITION = "lookup(a0,add(sub(q_idx,kv_idx),{}))"
SILU = "silu(add(mul(s,0.1),{}))"
CAUSAL = "where(ge(q_idx,kv_idx),{},0.0)"
TIME = "a0:f[h,t]; a1:i[b,q_idx,kv_idx]; "
BOTH = "a0:f[h,t]; a1:i[b,q_idx,kv_idx]; a2:f[h,t]; "
Side = int | tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """rows, keys: of every sequence, or the lengths of jagged ones. tables: the sizes of tables, in
    turn. dtypes: of all operands of the program. layout: the access of tables in memory, if that is
    another one. ctas, fast: of the launch."""

    program: str
    tables: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    batch: int = 1
    heads: int = 2
    key_heads: int = 0
    rows: Side = 140
    keys: Side = 140
    dims: tuple[int, int] = (64, 64)
    dtype: torch.dtype = BF16
    shared: str = ""
    ctas: int = 1
    fast: bool = True
    most: int = 0  # the largest integer of an operand, by default a place of the last table

    def call(self) -> tuple[torch.Tensor, Operands[torch.Tensor]]:
        """The gradient of O, and the operands. Rows that no sequence owns are NaN."""
        torch.manual_seed(0)
        key_heads = self.key_heads or self.heads
        sides = [x if isinstance(x, tuple) else None for x in (self.rows, self.keys)]
        batch = next((len(x) for x in sides if x), self.batch)
        longest = [max(x) if isinstance(x, tuple) else x for x in (self.rows, self.keys)]
        cu_q, cu_k = (None if x is None else offsets(x) for x in sides)

        def matrix(name: str, side: Side, heads: int, width: int) -> torch.Tensor:
            if isinstance(side, tuple):
                values = torch.randn(sum(side) + 9, heads, width)
                values[sum(side) :] = torch.nan
                return values.to(self.dtype)
            rows = 1 if name in self.shared else batch
            return torch.randn(rows, heads, side, width).to(self.dtype)

        query = matrix("q", self.rows, self.heads, self.dims[0])
        key = matrix("k", self.keys, key_heads, self.dims[0])
        value = matrix("v", self.keys, key_heads, self.dims[1])
        grad_out = matrix("o", self.rows, self.heads, self.dims[1])
        sizes = {"b": batch, "h": self.heads, "q_idx": longest[0], "kv_idx": longest[1], "-": 1}
        sizes |= {"q": len(query), "k": len(key)}
        program = ScoreMod.parse(self.program)
        places, most = iter(self.tables), self.most or self.tables[-1]
        aux = []
        for spec, dtype in zip(program.aux, self.dtypes, strict=True):
            shape = [next(places) if x == "t" else sizes[x] for x in spec.access]
            if dtype.is_floating_point:
                aux.append(torch.randn(shape).to(dtype))
            else:
                aux.append(torch.randint(min(most, 0), max(most, 0), shape).to(dtype))
        lengths = (cu_q, cu_k, *longest)
        return grad_out, Operands(query, key, value, aux, (), program, *lengths)


def offsets(lengths: Sequence[int]) -> torch.Tensor:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)


def position(offset: int, mask: str = "{}", table: str = "a0:f[h,t]; ") -> str:
    return table + mask.format(SILU.format(POSITION.format(offset)))


TWO = SILU.format(f"add({POSITION.format(139)},lookup(a2,a1))")
JAGGED = (140, 0, 37, 1)
CASES = {
    "positions": Case(position(139), (279,), (FP32,)),
    "positions, causal": Case(position(299, CAUSAL), (300,), (BF16,), rows=300, keys=300),
    "positions, [T, H]": Case(position(139, table="a0:f[t,h]; "), (279,), (FP32,), batch=2),
    "the other direction, for all heads": Case(
        "a0:f[t]; " + SILU.format("lookup(a0,add(sub(kv_idx,q_idx),199))"),
        (460,), (FP32,), rows=200, keys=260,
    ),
    "times": Case(TIME + SILU.format("lookup(a0,a1)"), (129,), (FP32, U8), rows=70, keys=144),
    "times, odd keys": Case(
        TIME + CAUSAL.format(SILU.format("lookup(a0,a1)")), (129,), (BF16, U8), rows=139, keys=139
    ),
    "positions and times": Case(
        BOTH + CAUSAL.format(TWO), (279, 65), (FP32, U8, FP32), batch=2, heads=3, rows=140, keys=140
    ),
    "positions and times, head dim 128": Case(
        BOTH + CAUSAL.format(TWO), (279, 65), (FP32, U8, FP32), keys=128, dims=(128, 128)
    ),
    "rounded positions and times": Case(
        BOTH + CAUSAL.format(
            "silu(add(add(mul(s,0.125),bf16(lookup(a0,add(sub(q_idx,kv_idx),143)))),"
            "bf16(lookup(a2,a1))))"
        ),
        (287, 65), (FP32, U8, FP32), heads=3, rows=144, keys=144,
    ),
    "clipped distances": Case(
        "a0:f[h,t]; "
        + SILU.format("lookup(a0,add(minimum(maximum(sub(q_idx,kv_idx),-20),20),20))"),
        (41,), (FP32,), rows=72, keys=300,
    ),
    "every byte": Case(TIME + SILU.format("lookup(a0,a1)"), (256,), (FP32, U8)),
    "places of tokens": Case(
        "a0:f[h,t]; a1:i[b,q_idx]; a2:i[b,kv_idx]; "
        + SILU.format("lookup(a0,add(mul(a1,3),a2))"),
        (40,), (FP32, torch.int64, torch.int16), batch=2, most=10,
    ),
    "jagged": Case(position(139, CAUSAL), (279,), (FP32,), rows=JAGGED, keys=JAGGED),
    "jagged, times": Case(
        TIME + SILU.format("lookup(a0,a1)"), (65,), (FP32, U8), rows=JAGGED, keys=JAGGED
    ),
    "jagged, places of tokens": Case(
        "a0:f[h,t]; a1:i[q]; a2:i[k]; " + SILU.format("lookup(a0,add(sub(a1,a2),9))"),
        (19,), (FP32, torch.int32, torch.int32), rows=JAGGED, keys=JAGGED, most=10,
    ),
    "a table of each query": Case(
        "a0:f[q_idx,t]; a1:i[b,q_idx,kv_idx]; " + SILU.format("lookup(a0,a1)"), (9,), (BF16, U8)
    ),
    "fp16, exact functions": Case(
        position(139), (279,), (torch.float64,), dtype=torch.float16, fast=False
    ),
    "times, [T, H]": Case(
        "a0:f[t,h]; a1:i[b,q_idx,kv_idx]; " + CAUSAL.format(SILU.format("lookup(a0,a1)")),
        (129,), (FP32, U8), batch=2, heads=4, key_heads=2, rows=140, keys=144,
    ),
    "places of 16 bits": Case(
        TIME + SILU.format("lookup(a0,a1)"), (20,), (BF16, torch.int16), keys=136
    ),
    "signed places": Case(
        TIME + SILU.format("lookup(a0,add(mul(a1,2),199))"), (200,), (FP32, torch.int8),
        keys=144, most=-90, dims=(128, 64),
    ),
    "a table too large": Case(
        TIME + SILU.format("lookup(a0,a1)"), (3000,), (FP32, torch.int16), keys=136, dims=(128, 128)
    ),
    "rounded times": Case(
        TIME + CAUSAL.format(SILU.format("bf16(lookup(a0,a1))")), (65,), (FP32, U8), keys=144,
        dims=(64, 32),
    ),
    "a table beside a bias": Case(
        TIME + "a2:f[h,q_idx,kv_idx]; " + SILU.format("add(lookup(a0,a1),a2)"), (65,),
        (FP32, U8, BF16), keys=144,
    ),
    "two tables of one place": Case(
        BOTH + CAUSAL.format(SILU.format("mul(lookup(a0,a1),lookup(a2,a1))")), (30, 65),
        (FP32, U8, FP32), rows=72, keys=272, heads=3, most=30,
    ),
    "jagged, tiles of times": Case(
        TIME + CAUSAL.format(SILU.format("lookup(a0,a1)")), (65,), (FP32, U8),
        rows=(144, 0, 37, 1), keys=(144, 0, 37, 1),
    ),
    "shared seeds": Case(
        position(199), (300,), (FP32,), rows=32, keys=(150, 40, 0, 200), shared="q"
    ),
}  # fmt: skip
