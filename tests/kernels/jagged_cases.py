"""Problems for the Triton kernels whose query side, key side or both are jagged: a table.

What takes no part is NaN in every operand, so that reading it shows.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .cases import ADDED, CAUSAL, HSTU, SILU, Case


@dataclass(frozen=True)
class JaggedCase(Case):
    """lengths_q, lengths_k: of the sequences; None for a dense side of m rows (n keys). max_q,
    max_k: 0 for the longest. before, after: rows that no sequence owns. same: the offsets of the
    query serve the keys. read: the greatest length comes from the device, so that it has no hint.
    """

    lengths_q: tuple[int, ...] | None = None
    lengths_k: tuple[int, ...] | None = None
    max_q: int = 0
    max_k: int = 0
    before: int = 0
    after: int = 0
    same: bool = False
    offsets: torch.dtype = torch.int32
    read: bool = False

    @property
    def batch(self) -> int:
        return len(self.lengths_q or self.lengths_k or ())

    def side(self, lengths: tuple[int, ...] | None) -> torch.Tensor | None:
        """cu_seqlens."""
        if lengths is None:
            return None
        ends = torch.tensor([self.before, *lengths]).cumsum(0)
        return ends.to(self.offsets)

    @property
    def sides(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        return self.side(self.lengths_q), self.side(self.keys)

    @property
    def keys(self) -> tuple[int, ...] | None:
        return self.lengths_q if self.same else self.lengths_k

    @property
    def longest(self) -> tuple[int, int]:
        return (
            self.max_q or max(self.lengths_q or (0,), default=0),
            self.max_k or (self.max_q if self.same else 0) or max(self.keys or (0,), default=0),
        )

    def total(self, lengths: tuple[int, ...]) -> int:
        return self.before + sum(lengths) + self.after

    def tensors(self) -> list[torch.Tensor]:
        """grad_out, query, key, value, the aux operands, and the offsets that there are."""
        cu_q, cu_k = self.sides
        rows = (cu_q, self.lengths_q, self.longest[0], self.batch, self.m)
        cols = (cu_k, self.keys, self.longest[1], self.bk or self.batch, self.n)
        made = [
            self._matrix(*rows, self.h, self.dv),
            self._matrix(*rows, self.h, self.d),
            self._matrix(*cols, self.hk or self.h, self.d),
            self._matrix(*cols, self.hv or self.h, self.dv),
        ]
        if cu_q is None and self.bq == 1:
            made[1] = made[1][:1].clone()
        made += map(self.aux_operand, self.mod.aux)
        return [*made, *(cu for cu in (cu_q, None if self.same else cu_k) if cu is not None)]

    @property
    def sizes(self) -> dict[str, int]:
        rows, cols = self.longest
        sizes = super().sizes | {"b": self.batch}
        sizes |= {} if self.lengths_q is None else {"q_idx": rows, "q": self.total(self.lengths_q)}
        return sizes | ({} if self.keys is None else {"kv_idx": cols, "k": self.total(self.keys)})

    def _matrix(
        self, cu: torch.Tensor | None, lengths: tuple[int, ...] | None, longest: int,
        batch: int, length: int, heads: int, width: int,
    ) -> torch.Tensor:  # fmt: skip
        if cu is None or lengths is None:
            return torch.randn(batch, heads, length, width)
        values = torch.randn(self.total(lengths), heads, width)
        takes_part = torch.zeros(len(values), dtype=torch.bool)
        for start, count in zip(cu.tolist(), lengths, strict=False):
            takes_part[start : start + min(count, longest)] = True
        values[~takes_part] = float("nan")
        if self.view == "split":
            return values.transpose(0, 1).contiguous().transpose(0, 1)
        return values

    def lengths(self, rest: list[torch.Tensor]) -> tuple:
        """Offsets and bounds."""
        arguments = iter(rest)
        cu_q = next(arguments) if self.lengths_q is not None else None
        cu_k = cu_q if self.same else next(arguments) if self.lengths_k is not None else None
        max_q, max_k = self.longest
        if self.read:
            max_q = max_k = cu_q.diff().max().item()
            torch._check(max_q >= 0)
        return cu_q, cu_k, max_q, max_k


@dataclass(frozen=True)
class FollowedCase(JaggedCase):
    """A bias for whole heads follows: it is added where the kernel stores its output."""

    def tensors(self) -> list[torch.Tensor]:
        return [*super().tensors(), torch.randn(self.h * self.dv)]

    def function(self) -> Callable:
        attention = super().function()

        def run(*arguments):
            out, *grads = attention(*arguments[:-1])
            return [out.flatten(1) + arguments[-1], *grads]

        return run

    def expected(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        out, *grads = super().expected(tensors[:-1])
        return [out.flatten(1) + tensors[-1].double(), *grads]


LENGTHS = (37, 0, 150, 1, 64)
# More sequences than are sorted; most are empty, which costs the interpreter nothing.
FEW = tuple(3 * (i % 8 == 0) for i in range(257))
OTHERS = (5, 70, 33, 0, 129)
PER_TOKEN = "a0:f[q,h]; a1:f[k]; a2:f[-,q]; mul(silu(add(mul(s,a2),a0)),a1)"
SHARED = "a0:f[q_idx]; a1:f[h,kv_idx]; a2:f[b,-]; a3:f[]; mul(silu(add(mul(s,a3),add(a0,a1))),a2)"
FULL = "a0:f[h,q_idx,kv_idx]; silu(add(mul(s,0.25),a0))"

CASES = [
    JaggedCase("jagged_inference", SILU, lengths_q=LENGTHS, same=True, needs=""),
    JaggedCase("jagged_self", SILU, lengths_q=LENGTHS, same=True),
    JaggedCase("jagged_long", SILU, lengths_q=LENGTHS, same=True, offsets=torch.int64),
    JaggedCase("jagged_both", "sigmoid(s)", lengths_q=LENGTHS, lengths_k=OTHERS),
    JaggedCase("jagged_added", SILU, lengths_q=LENGTHS, same=True, options=ADDED),
    JaggedCase("jagged_added_gqa", SILU, lengths_q=(37, 20), same=True, h=4, hk=2, options=ADDED),
    JaggedCase("jagged_bound", SILU, lengths_q=LENGTHS, same=True, max_q=700),
    JaggedCase("jagged_truncated", SILU, lengths_q=LENGTHS, same=True, max_q=40),
    JaggedCase(
        "jagged_unowned", "sigmoid(s)", lengths_q=(3, 0, 20, 0), lengths_k=(0, 4, 5, 0),
        before=3, after=300, max_q=16,
    ),
    JaggedCase("jagged_all_empty", "sigmoid(s)", lengths_q=(0, 0), same=True, max_q=8, after=5),
    JaggedCase("jagged_ones", "sigmoid(s)", lengths_q=(1, 1, 1), same=True),
    JaggedCase("jagged_view", SILU, lengths_q=(37, 20), same=True, view="split", d=24, dv=40),
    JaggedCase("jagged_gqa", SILU, lengths_q=(37, 20), same=True, h=4, hk=2, hv=2),
    JaggedCase("jagged_gqa_uneven", SILU, lengths_q=(37, 20), same=True, h=4, hk=2, hv=1),
    JaggedCase("jagged_short_keys", SILU, lengths_q=LENGTHS, n=64),
    JaggedCase("jagged_short_keys_tail", "sigmoid(s)", lengths_q=LENGTHS, n=19, bk=1),
    JaggedCase("jagged_seeds", SILU, lengths_k=LENGTHS, m=8, bq=1),
    JaggedCase("jagged_seed", SILU, lengths_k=LENGTHS, m=1, bq=1),
    JaggedCase("jagged_target", SILU, lengths_k=LENGTHS, m=1, h=1),
    JaggedCase("jagged_queries", "sigmoid(s)", lengths_k=LENGTHS, m=3),
    JaggedCase(
        "jagged_per_token", PER_TOKEN, lengths_q=LENGTHS, lengths_k=OTHERS,
        needs="qkv012", after=3,
    ),
    JaggedCase("jagged_shared_aux", SHARED, lengths_q=LENGTHS, same=True, needs="qkv0123"),
    JaggedCase("jagged_bias", FULL, lengths_q=(37, 0, 20), same=True, needs="qkv0"),
    JaggedCase(
        "jagged_bias_token", "a0:f[q,kv_idx]; silu(add(mul(s,0.25),a0))", lengths_q=(37, 0, 20),
        lengths_k=(20, 7, 33), needs="q0",
    ),
    JaggedCase(
        "jagged_bias_short", "a0:f[b,q_idx,kv_idx]; silu(add(mul(s,0.25),a0))",
        lengths_q=(37, 0, 20), n=17, needs="0",
    ),
    JaggedCase(
        "jagged_bias_all", "a0:f[q_idx,kv_idx]; silu(add(mul(s,0.25),a0))",
        lengths_q=(37, 0, 20, 5), same=True, h=3, needs="qkv0",
    ),
    JaggedCase("jagged_causal", CAUSAL, lengths_q=LENGTHS, same=True),
    JaggedCase(
        "jagged_window",
        "where(and(lt(sub(q_idx,kv_idx),20),ge(q_idx,kv_idx)),silu(mul(s,0.25)),0.0)",
        lengths_q=LENGTHS, same=True, max_q=100,
    ),
    JaggedCase(
        "jagged_targets",
        "a0:i[b]; a1:f[k]; t0=minimum(q_idx,add(a0,30)); t1=minimum(kv_idx,add(a0,30)); "
        "where(or(gt(t0,t1),eq(q_idx,kv_idx)),mul(silu(mul(s,0.25)),a1),0.0)",
        lengths_q=LENGTHS, same=True, needs="qkv1",
    ),
    JaggedCase(
        "jagged_mask",
        "a0:b[q_idx,kv_idx]; a1:b[b,kv_idx]; where(and(a0,a1),silu(mul(s,0.25)),0.0)",
        lengths_q=(70, 0, 100), same=True, blocks=40,
    ),
    JaggedCase(
        "jagged_causal_bias",
        "a0:f[h,q_idx,kv_idx]; where(ge(q_idx,kv_idx),silu(add(mul(s,0.25),a0)),0.0)",
        lengths_q=(37, 0, 20), same=True, needs="qkv0",
    ),
    JaggedCase(
        "jagged_lengths", "a0:i[b]; where(lt(kv_idx,mul(a0,9)),sigmoid(s),0.0)", lengths_k=OTHERS,
        m=40
    ),
    JaggedCase("jagged_hstu", HSTU, lengths_q=(37, 20), same=True, scalars=(40,), needs="qkv01"),
    *(
        JaggedCase(
            f"jagged_table_{i}", SILU, lengths_q=(300, 130), same=True, d=64, dv=64, h=1, choice=i
        )
        for i in range(2)
    ),
    FollowedCase(
        "jagged_followed", SILU, lengths_q=(300, 130), same=True, d=64, dv=64, choice=0, needs=""
    ),
    JaggedCase(
        "jagged_wide", SILU, lengths_q=LENGTHS, lengths_k=OTHERS, h=4, hk=2, hv=2, wide=True
    ),
    JaggedCase("jagged_dynamic", SILU, lengths_q=LENGTHS, same=True, dynamic=True),
    # More sequences than are sorted: found by a search, and without a table.
    JaggedCase(
        "jagged_many", SILU, lengths_q=(*FEW[:256], 150, 0), same=True, h=1,
        max_q=200, before=3,
    ),
    JaggedCase(
        "jagged_many_both", "sigmoid(s)", lengths_q=(*FEW, 0), h=1,
        lengths_k=(*(i % 3 for i in range(257)), 0), max_q=100, max_k=100, after=2,
    ),
    JaggedCase("jagged_many_dynamic", SILU, lengths_q=(*FEW, 0), same=True, h=1, dynamic=True),
    JaggedCase("jagged_read", SILU, lengths_q=LENGTHS, same=True, read=True),
    JaggedCase("jagged_dynamic_both", SILU, lengths_q=LENGTHS, lengths_k=OTHERS, dynamic=True),
]  # fmt: skip
