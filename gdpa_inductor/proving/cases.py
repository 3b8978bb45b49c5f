"""The small matrix by which kernels are proved, and the shapes on which they are timed: data.

A case has as few rows as its feature needs. But one case of each family has more tiles than a GPU
has multiprocessors, since persistent kernels then take several each. Every operand lies among NaN,
which no kernel may read.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..kernels.cute.certificates import shape_of
from ..kernels.cute.tables import MOST
from ..operands import Operands, kind_of, output_shape
from ..program.score_mod import ScoreMod

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
PAD = 8  # elements or rows of NaN behind those of an operand; they keep addresses aligned

SILU = "silu(mul(s,0.088))"
GELU = "gelu_tanh(mul(s,0.125))"
RELU2 = "mul(relu(mul(s,0.088)),relu(mul(s,0.088)))"
CAUSAL = "where(ge(q_idx,kv_idx),sigmoid(mul(s,0.125)),0.0)"
WINDOW = "where(and(ge(q_idx,kv_idx),lt(sub(q_idx,kv_idx),128)),silu(mul(s,0.1)),0.0)"
BIASED = "a0:f[h,q_idx,kv_idx]; silu(add(mul(s,0.1),a0))"
MASKED = "a0:f[h,q_idx,kv_idx]; a1:b[b,-,-,kv_idx]; where(a1,silu(add(mul(s,0.1),a0)),0.0)"
OWN = "a0:f[b,h,q_idx,kv_idx]; where(ge(q_idx,kv_idx),sigmoid(add(mul(s,0.125),a0)),0.0)"


@dataclass(frozen=True)
class Case:
    """rows, keys: Of all sequences or, as a tuple, of each one of a jagged side.

    dims: Of query and key, and of the value. aux: The dtypes of the operands of the program.
    """

    name: str
    program: str = SILU
    batch: int = 1
    heads: int = 1
    key_heads: int = 0  # 0 for as many as `heads`
    rows: int | tuple[int, ...] = 256
    keys: int | tuple[int, ...] = 256
    dims: tuple[int, int] = (128, 128)
    dtype: torch.dtype = BF16
    aux: tuple[torch.dtype, ...] = ()

    def operands(self, device: torch.device) -> Operands[Tensor]:
        """Equal for equal names, on every device."""
        generator = torch.Generator().manual_seed(zlib.crc32(self.name.encode()))

        def poisoned(shape: Sequence[int], dtype: torch.dtype, dim: int) -> Tensor:
            whole = list(shape)
            whole[dim] += PAD
            memory = torch.zeros(whole, dtype=dtype)
            if dtype.is_floating_point:
                memory.fill_(torch.nan)
            own = memory.narrow(dim, 0, shape[dim])
            if dtype == torch.bool:
                own.copy_(torch.rand(*shape, generator=generator) > 0.3)
            else:
                own.copy_(torch.randn(*shape, generator=generator))
            memory = memory.to(device)
            # Rows of a jagged matrix that no sequence owns are part of the operand.
            return memory if len(shape) == 3 and dim == 0 else memory.narrow(dim, 0, shape[dim])

        def matrix(heads: int, rows: int | tuple[int, ...], width: int) -> Tensor:
            if isinstance(rows, tuple):
                return poisoned((sum(rows), heads, width), self.dtype, 0)
            return poisoned((self.batch, heads, rows, width), self.dtype, 2)

        key_heads, program = self.key_heads or self.heads, ScoreMod.parse(self.program)
        query = matrix(self.heads, self.rows, self.dims[0])
        key = matrix(key_heads, self.keys, self.dims[0])
        value = matrix(key_heads, self.keys, self.dims[1])
        sides = [_side(x, device) for x in (self.rows, self.keys)]
        lengths = [x if isinstance(x, int) else max(x) for x in (self.rows, self.keys)]
        batch = next((len(x) for x in (self.rows, self.keys) if isinstance(x, tuple)), self.batch)
        sizes = {"b": batch, "h": self.heads, "q_idx": lengths[0], "kv_idx": lengths[1], "-": 1}
        aux = [
            poisoned([sizes[x] for x in spec.access], dtype, -1)
            for spec, dtype in zip(program.aux, self.aux, strict=True)
        ]
        (cu_q, most_q), (cu_k, most_k) = sides
        return Operands(query, key, value, aux, (), program, cu_q, cu_k, most_q, most_k)

    def grad_out(self, o: Operands[Tensor]) -> Tensor:
        generator = torch.Generator().manual_seed(len(self.name))
        direction = torch.randn(output_shape(o), generator=generator)
        if isinstance(self.rows, tuple):
            direction[sum(self.rows) :] = torch.nan
        return direction.to(o.query.device, self.dtype)

    def needs(self, o: Operands[Tensor], family: str) -> tuple[bool, ...]:
        """Which gradients a family computes: none of a forward."""
        if family == "forward":
            return ()
        biases = [family in ("biases", "pairs") and kind_of(x.dtype) == "f" for x in o.aux]
        return True, True, True, *biases


def _side(rows: int | tuple[int, ...], device: torch.device) -> tuple[Tensor | None, int]:
    """(cu_seqlens, max_seqlen)."""
    if isinstance(rows, int):
        return None, 0
    offsets = [0, *itertools.accumulate(rows)]
    return torch.tensor(offsets, dtype=torch.int32, device=device), max(rows)


MIXED, OTHER = (300, 0, 1, 129), (70, 256, 0, 200)
MANY = tuple(1 + 97 * i % 611 for i in range(48))  # lengths of 48 sequences

CASES: dict[str, tuple[Case, ...]] = {
    "forward": (
        Case("dense", rows=520, keys=700),
        Case("narrow, fp16", GELU, heads=3, rows=300, keys=200, dims=(64, 64), dtype=FP16),
        Case("causal", CAUSAL, rows=520, keys=520, dims=(64, 64)),
        Case("window", WINDOW, heads=2, rows=700, keys=700, dims=(64, 64)),
        Case("shared heads", RELU2, heads=4, key_heads=2, rows=140, keys=140, dtype=FP16),
        Case("odd dims", rows=100, keys=100, dims=(72, 40)),
        Case("wide", rows=200, keys=300, dims=(192, 192)),
        Case("jagged, wide", CAUSAL, heads=2, rows=MIXED, keys=MIXED, dims=(256, 256)),
        Case("bias", BIASED, heads=2, rows=200, keys=304, aux=(BF16,)),
        Case("bias and mask", MASKED, 2, 2, rows=200, keys=300, dims=(64, 64),
             aux=(FP32, torch.bool)),
        Case("jagged", CAUSAL, heads=2, rows=MIXED, keys=MIXED, dims=(64, 64)),
        Case("jagged queries", batch=4, rows=OTHER, keys=192, dims=(64, 64)),
        Case("sequences without keys", "sigmoid(s)", rows=(100, 384, 140, 1), keys=(0, 80, 0, 9)),
        Case("many tiles", batch=8, heads=8, rows=1000, keys=520),
        Case("many wide tiles", batch=4, heads=8, rows=1000, keys=520, dims=(256, 192)),
        Case("many sequences", CAUSAL, heads=4, rows=MANY, keys=MANY),
        Case("many sequences, wide query", CAUSAL, heads=4, rows=MANY, keys=MANY, dims=(192, 128)),
    ),
    "backward": (
        Case("dense", rows=520, keys=700),
        Case("narrow, fp16", GELU, heads=3, rows=300, keys=200, dims=(64, 64), dtype=FP16),
        Case("causal", CAUSAL, rows=520, keys=520, dims=(64, 64)),
        Case("shared heads", heads=4, key_heads=2, rows=300, keys=140),
        Case("odd dims", rows=100, keys=100, dims=(72, 40)),
        Case("jagged", CAUSAL, heads=2, rows=MIXED, keys=MIXED, dims=(64, 64)),
        Case("jagged keys", heads=2, rows=OTHER, keys=MIXED),
        Case("many tiles", batch=8, heads=8, rows=1000, keys=520),
        Case("many sequences", CAUSAL, heads=4, rows=MANY, keys=MANY),
    ),
    "biases": (
        Case("bias", BIASED, 2, 2, rows=200, keys=304, aux=(BF16,)),
        Case("bias of each batch", OWN, 2, 2, rows=260, keys=260, dims=(64, 64), aux=(BF16,)),
        Case("jagged bias", BIASED, heads=2, rows=MIXED, keys=MIXED, dims=(64, 64), aux=(FP32,)),
        Case("many tiles", BIASED, 8, 8, rows=600, keys=520, aux=(BF16,)),
    ),
    "pairs": (
        Case("dense", rows=520, keys=700),
        Case("causal, fp16", CAUSAL, rows=520, keys=520, dtype=FP16),
        Case("shared heads", heads=4, key_heads=2, rows=300, keys=140),
        Case("odd dims", rows=300, keys=300, dims=(104, 120)),
        Case("jagged keys", heads=2, rows=OTHER, keys=MIXED),
        Case("bias", BIASED, 2, 2, rows=300, keys=304, aux=(BF16,)),
        Case("many tiles", batch=8, heads=8, rows=1000, keys=520),
        Case("many sequences", CAUSAL, heads=4, rows=MANY, keys=MANY),
    ),
    "weights": (
        Case("dense", rows=520, keys=704, dims=(256, 256)),
        Case("three warpgroups", heads=2, rows=300, keys=304, dims=(192, 192)),
        Case("causal", CAUSAL, rows=520, keys=520, dims=(256, 256)),
        Case("shared heads, fp16", heads=4, key_heads=2, rows=140, keys=136, dims=(256, 128),
             dtype=FP16),
        Case("bias", BIASED, heads=2, rows=200, keys=304, dims=(192, 192), aux=(BF16,)),
        Case("many tiles", batch=5, heads=8, rows=1000, keys=520, dims=(256, 256)),
    ),
}  # fmt: skip
# Look-ups: (rows, columns, places of the table), dtype of the terms.
TABLES = (((5000, 4, 63), FP32), ((40000, 2, MOST), BF16), ((1001, 3, 7), FP16))

LONG = tuple(1024 + 64 * i for i in range(16))
SHAPES: tuple[tuple[str, Case], ...] = tuple(
    (family, Case(shape_of(jagged, dim), SILU, batch, 4, 0, rows, rows, (dim, dim)))
    for family, dims in (("forward", (64, 128, 256)), ("backward", (64, 128)))
    for jagged, batch, rows in ((False, 16, 2048), (True, 1, LONG))
    for dim in dims
)

# The names of devices in `predictions.json`, by compute capability.
PREDICTED = {"10.0": "B200", "10.3": "B300"}


def predicted(shape: str, capability: str) -> str:
    """What the timing model predicts for a shape that is timed, such as "0.10 to 0.11 ms", or "".

    shape: The family and the name of the case.
    """
    device = PREDICTED.get(capability)
    family, case = next((f, c) for f, c in SHAPES if f"{f}, {c.name}" == shape)
    problem = (family, [case.batch, case.heads, case.rows, case.dims[0]])
    entries = json.loads(Path(__file__).with_name("predictions.json").read_text())["predictions"]
    by_name = [x["ms"].items() for x in entries if (x["kernel"], x["shape"]) == problem]
    times = [ms for items in by_name for name, ms in items if name.split(",")[0] == device]
    ends = dict.fromkeys(f"{x:.3f}" for x in (min(times), max(times))) if times else ()
    return f"{' to '.join(ends)} ms" if ends else ""
