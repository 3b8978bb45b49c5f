"""Calls whose programs look up learned tables."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gdpa_inductor.operands import Operands
from gdpa_inductor.program.score_mod import Aux, ScoreMod

from . import cute_backward_cases

BF16, FP32, U8 = torch.bfloat16, torch.float32, torch.uint8
POSITION = "lookup(a0,add(sub(q_idx,kv_idx),{}))"
SILU = "silu(add(mul(s,0.1),{}))"
CAUSAL = "where(ge(q_idx,kv_idx),{},0.0)"
TIME = "a0:f[h,t]; a1:i[b,q_idx,kv_idx]; "
BOTH = "a0:f[h,t]; a1:i[b,q_idx,kv_idx]; a2:f[h,t]; "


@dataclass(frozen=True)
class Case(cute_backward_cases.Case):
    """tables: the sizes of tables, in turn. dtypes: of all operands of the program. largest: the
    largest integer of an operand, by default a place of the last table."""

    tables: tuple[int, ...] = ()
    dtypes: tuple[torch.dtype, ...] = ()
    largest: int = 0

    def operand(self, number: int, spec: Aux, sizes: Mapping[str, int]) -> torch.Tensor:
        before = ScoreMod.parse(self.program).aux[:number]
        table = sum(x.is_table for x in before)
        sizes = {**sizes, "t": self.tables[table]} if spec.is_table else sizes
        shape, dtype = [sizes[x] for x in spec.access], self.dtypes[number]
        if dtype.is_floating_point:
            return torch.randn(shape).to(dtype)
        most = self.largest or self.tables[-1]
        return torch.randint(min(most, 0), max(most, 0), shape).to(dtype)

    def call(self) -> tuple[torch.Tensor, Operands[torch.Tensor]]:
        """The gradient of O, and the operands. Rows that no sequence owns are NaN."""
        problem = cute_backward_cases.make_call(self)
        return problem.grad_out, dataclasses.replace(problem.operands, scalars=())


def looked_up(
    program: str, tables: tuple[int, ...], dtypes: tuple[torch.dtype, ...], **fields: Any
) -> Case:
    """A case with as many key heads as heads, unless said, and one CTA."""
    own = {"rows": 140, "keys": 140, "key_heads": fields.get("heads", 2), "ctas": 1, **fields}
    return Case(program, tables=tables, dtypes=dtypes, **own)


def position(offset: int, mask: str = "{}", table: str = "a0:f[h,t]; ") -> str:
    return table + mask.format(SILU.format(POSITION.format(offset)))


TWO = SILU.format(f"add({POSITION.format(139)},lookup(a2,a1))")
JAGGED = (140, 0, 37, 1)
CASES = {
    "positions": looked_up(position(139), (279,), (FP32,)),
    "positions, causal": looked_up(position(299, CAUSAL), (300,), (BF16,), rows=300, keys=300),
    "positions, [T, H]": looked_up(position(139, table="a0:f[t,h]; "), (279,), (FP32,), batch=2),
    "the other direction, for all heads": looked_up(
        "a0:f[t]; " + SILU.format("lookup(a0,add(sub(kv_idx,q_idx),199))"),
        (460,), (FP32,), rows=200, keys=260,
    ),
    "times": looked_up(TIME + SILU.format("lookup(a0,a1)"), (129,), (FP32, U8), rows=70, keys=144),
    "times, odd keys": looked_up(
        TIME + CAUSAL.format(SILU.format("lookup(a0,a1)")), (129,), (BF16, U8), rows=139, keys=139
    ),
    "positions and times": looked_up(
        BOTH + CAUSAL.format(TWO), (279, 65), (FP32, U8, FP32), batch=2, heads=3, rows=140, keys=140
    ),
    "positions and times, head dim 128": looked_up(
        BOTH + CAUSAL.format(TWO), (279, 65), (FP32, U8, FP32), keys=128, dims=(128, 128)
    ),
    "rounded positions and times": looked_up(
        BOTH + CAUSAL.format(
            "silu(add(add(mul(s,0.125),bf16(lookup(a0,add(sub(q_idx,kv_idx),143)))),"
            "bf16(lookup(a2,a1))))"
        ),
        (287, 65), (FP32, U8, FP32), heads=3, rows=144, keys=144,
    ),
    "clipped distances": looked_up(
        "a0:f[h,t]; "
        + SILU.format("lookup(a0,add(minimum(maximum(sub(q_idx,kv_idx),-20),20),20))"),
        (41,), (FP32,), rows=72, keys=300,
    ),
    "every byte": looked_up(TIME + SILU.format("lookup(a0,a1)"), (256,), (FP32, U8)),
    "places of tokens": looked_up(
        "a0:f[h,t]; a1:i[b,q_idx]; a2:i[b,kv_idx]; "
        + SILU.format("lookup(a0,add(mul(a1,3),a2))"),
        (40,), (FP32, torch.int64, torch.int16), batch=2, largest=10,
    ),
    "jagged": looked_up(position(139, CAUSAL), (279,), (FP32,), rows=JAGGED, keys=JAGGED),
    "jagged, times": looked_up(
        TIME + SILU.format("lookup(a0,a1)"), (65,), (FP32, U8), rows=JAGGED, keys=JAGGED
    ),
    "jagged, places of tokens": looked_up(
        "a0:f[h,t]; a1:i[q]; a2:i[k]; " + SILU.format("lookup(a0,add(sub(a1,a2),9))"),
        (19,), (FP32, torch.int32, torch.int32), rows=JAGGED, keys=JAGGED, largest=10,
    ),
    "a table of each query": looked_up(
        "a0:f[q_idx,t]; a1:i[b,q_idx,kv_idx]; " + SILU.format("lookup(a0,a1)"), (9,), (BF16, U8)
    ),
    "fp16, exact functions": looked_up(
        position(139), (279,), (torch.float64,), dtype=torch.float16, fast=False
    ),
    "times, [T, H]": looked_up(
        "a0:f[t,h]; a1:i[b,q_idx,kv_idx]; " + CAUSAL.format(SILU.format("lookup(a0,a1)")),
        (129,), (FP32, U8), batch=2, heads=4, key_heads=2, rows=140, keys=144,
    ),
    "places of 16 bits": looked_up(
        TIME + SILU.format("lookup(a0,a1)"), (20,), (BF16, torch.int16), keys=136
    ),
    "signed places": looked_up(
        TIME + SILU.format("lookup(a0,add(mul(a1,2),199))"), (200,), (FP32, torch.int8),
        keys=144, largest=-90, dims=(128, 64),
    ),
    "a table too large": looked_up(
        TIME + SILU.format("lookup(a0,a1)"), (3000,), (FP32, torch.int16), keys=136, dims=(128, 128)
    ),
    "rounded times": looked_up(
        TIME + CAUSAL.format(SILU.format("bf16(lookup(a0,a1))")), (65,), (FP32, U8), keys=144,
        dims=(64, 32),
    ),
    "a table beside a bias": looked_up(
        TIME + "a2:f[h,q_idx,kv_idx]; " + SILU.format("add(lookup(a0,a1),a2)"), (65,),
        (FP32, U8, BF16), keys=144,
    ),
    "two tables of one place": looked_up(
        BOTH + CAUSAL.format(SILU.format("mul(lookup(a0,a1),lookup(a2,a1))")), (30, 65),
        (FP32, U8, FP32), rows=72, keys=272, heads=3, largest=30,
    ),
    "jagged, tiles of times": looked_up(
        TIME + CAUSAL.format(SILU.format("lookup(a0,a1)")), (65,), (FP32, U8),
        rows=(144, 0, 37, 1), keys=(144, 0, 37, 1),
    ),
    "shared seeds": looked_up(
        position(199), (300,), (FP32,), rows=32, keys=(150, 40, 0, 200), shared="q"
    ),
}  # fmt: skip
