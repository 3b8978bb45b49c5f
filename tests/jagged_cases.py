"""Jagged problems in small, with the operator written out one sequence at a time.

`JaggedCase.tensors` draws the operands, `call` runs gdpa::attention on them, and `by_hand` is the
truth: a loop over sequences of slices and plain torch. With the package it shares the parser alone,
which says along what the operands between the products vary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from gdpa_inductor.program.score_mod import Aux, ScoreMod

HEADS, KEY_HEADS, VALUE_HEADS, DIM, VALUE_DIM = 4, 2, 1, 6, 5
PLACES = 12  # of a table

# (score [H,n,m] of sequence b, b, h, n, m, blocks of the aux operands) -> weight
ByHand = Callable[..., Tensor]


@dataclass(frozen=True)
class JaggedCase:
    """rows, cols: lengths of the sequences where the side is jagged, else (batch, length).

    longest: max_seqlen of both sides; None: the exact one. tail: rows past the last offset.
    """

    program: str
    weight: ByHand
    rows: tuple[int, ...] | None = (3, 0, 1, 5)
    cols: tuple[int, ...] | None = (3, 0, 1, 5)
    dense_rows: tuple[int, int] = (4, 3)
    dense_cols: tuple[int, int] = (4, 6)
    longest: tuple[int | None, int | None] = (None, None)
    tail: int = 0
    index: torch.dtype = torch.int64
    same: bool = False
    heads: tuple[int, int, int] = field(default=(HEADS, KEY_HEADS, VALUE_HEADS))

    @property
    def aux(self) -> tuple[Aux, ...]:
        """How the operands between the products are read."""
        return ScoreMod.parse(self.program).aux

    @property
    def batch(self) -> int:
        if self.rows is not None:
            return len(self.rows)
        return len(self.cols) if self.cols is not None else self.dense_rows[0]

    @property
    def max_q(self) -> int:
        return max(self.rows or (), default=0) if self.longest[0] is None else self.longest[0]

    @property
    def max_k(self) -> int:
        return max(self.cols or (), default=0) if self.longest[1] is None else self.longest[1]

    def sizes(self) -> dict[str, int]:
        jagged_q, jagged_k = self.rows is not None, self.cols is not None
        return {
            "b": self.batch,
            "h": self.heads[0],
            "q_idx": self.max_q if jagged_q else self.dense_rows[1],
            "kv_idx": self.max_k if jagged_k else self.dense_cols[1],
            "q": sum(self.rows or ()) + self.tail,
            "k": sum(self.cols or ()) + self.tail,
            "-": 1,
            "t": PLACES,
        }

    def offsets(self) -> tuple[Tensor | None, Tensor | None]:
        offsets = [
            None if lengths is None else torch.tensor([0, *lengths]).cumsum(0).to(self.index)
            for lengths in (self.rows, self.cols)
        ]
        return (offsets[0], offsets[0]) if self.same else (offsets[0], offsets[1])

    def tensors(self, dtype: torch.dtype = torch.float64) -> list[Tensor]:
        """query, key, value, *aux; the floating ones require gradients."""
        sizes, (heads, key_heads, value_heads) = self.sizes(), self.heads
        query = (
            torch.randn(sizes["q"], heads, DIM, dtype=dtype)
            if self.rows is not None
            else torch.randn(self.dense_rows[0], heads, self.dense_rows[1], DIM, dtype=dtype)
        )
        keys = [
            torch.randn(sizes["k"], own, width, dtype=dtype)
            if self.cols is not None
            else torch.randn(self.dense_cols[0], own, self.dense_cols[1], width, dtype=dtype)
            for own, width in ((key_heads, DIM), (value_heads, VALUE_DIM))
        ]
        tensors = [query, *keys]
        for spec in self.aux:
            shape = [sizes[entry] for entry in spec.access]
            drawn = torch.randn(shape, dtype=dtype)
            integers = (4 * drawn).long().abs().clamp(max=PLACES - 1)
            tensors.append({"f": drawn, "i": integers, "b": drawn > 0}[spec.kind])
        return [t.requires_grad_() if t.is_floating_point() else t for t in tensors]

    def arguments(self, tensors: Sequence[Tensor], *rest: object) -> tuple[object, ...]:
        """Of the op; rest: what stands between the program and the lengths."""
        query, key, value, *aux = tensors
        lengths = (*self.offsets(), self.max_q, self.max_k)
        return (query, key, value, aux, [], self.program, *rest, *lengths)

    def call(self, tensors: Sequence[Tensor], options: str = "") -> Tensor:
        return torch.ops.gdpa.attention(*self.arguments(tensors, options))

    def by_hand(self, tensors: Sequence[Tensor]) -> Tensor:
        query, key, value, *aux = tensors
        parts = [self._one(b, query, key, value, aux) for b in range(self.batch)]
        if self.rows is None:
            shape = (0, self.heads[0], self.dense_rows[1], VALUE_DIM)
            return torch.stack(parts) if parts else value.new_zeros(shape)
        out = []
        for b, part in enumerate(parts):
            missing = self.rows[b] - part.shape[1]
            out.append(F.pad(part.transpose(0, 1), (0, 0, 0, 0, 0, missing)))
        out.append(value.new_zeros(self.tail, self.heads[0], VALUE_DIM))
        return torch.cat(out)

    def _one(self, b: int, query: Tensor, key: Tensor, value: Tensor, aux: list[Tensor]) -> Tensor:
        """[H, n, Dv] of sequence b."""
        rows = self._slice(b, self.rows, self.max_q)
        cols = self._slice(b, self.cols, self.max_k)

        def of(tensor: Tensor, jagged: bool, part: slice) -> Tensor:
            if jagged:
                return tensor[part].transpose(0, 1)
            return tensor[b if tensor.shape[0] > 1 else 0]

        q = of(query, self.rows is not None, rows)
        k, v = (
            of(t, self.cols is not None, cols).repeat_interleave(self.heads[0] // own, 0)
            for t, own in ((key, self.heads[1]), (value, self.heads[2]))
        )
        score = q @ k.mT
        heads, n, m = score.shape
        where = {"b": b, "h": slice(None), "q_idx": slice(0, n), "kv_idx": slice(0, m), "q": rows,
                 "k": cols, "-": 0, "t": slice(None)}  # fmt: skip
        places = {"h": 0, "q_idx": 1, "q": 1, "kv_idx": 2, "k": 2, "t": 3}
        blocks = []
        for tensor, spec in zip(aux, self.aux, strict=True):
            block = tensor[tuple(where[entry] for entry in spec.access)]
            left = [places[entry] for entry in spec.access if entry not in ("b", "-")]
            block = block.permute([left.index(place) for place in sorted(left)])
            for place in {0, 1, 2} - set(left):
                block = block.unsqueeze(place)
            blocks.append(block)
        index = (torch.arange(heads).view(-1, 1, 1), torch.arange(n).view(-1, 1), torch.arange(m))
        return self.weight(score, b, *index, *blocks).expand_as(score) @ v

    @staticmethod
    def _slice(b: int, lengths: tuple[int, ...] | None, longest: int) -> slice:
        if lengths is None:
            return slice(None)
        start = sum(lengths[:b])
        return slice(start, start + min(lengths[b], longest))


def silu(s: Tensor, *_: object) -> Tensor:
    return F.silu(s)


def looked_up(table: Tensor, place: Tensor) -> Tensor:
    """[H|1, n|1, m|1, T] at [·, n, m]."""
    shape = torch.broadcast_shapes(table.shape[:-1], place.shape)
    place = place.expand(shape).unsqueeze(-1)
    return table.expand(*shape, -1).gather(-1, place).squeeze(-1)


SILU = "silu(s)"
CASES: dict[str, JaggedCase] = {
    "self": JaggedCase(SILU, silu, same=True),
    "own offsets": JaggedCase(SILU, silu, cols=(2, 4, 0, 7)),
    "PFFN": JaggedCase(SILU, silu, cols=None),
    "PFFN, one for all": JaggedCase(SILU, silu, cols=None, dense_cols=(1, 6)),
    "PMA": JaggedCase(SILU, silu, rows=None, dense_rows=(1, 3)),
    "delta queries": JaggedCase(SILU, silu, rows=None, dense_rows=(4, 3)),
    "int32": JaggedCase(SILU, silu, same=True, index=torch.int32),
    "truncated": JaggedCase(SILU, silu, cols=(6, 4, 0, 2), longest=(4, 3)),
    "bounds beyond the longest": JaggedCase(SILU, silu, same=True, longest=(9, 11)),
    "rows of nobody": JaggedCase(SILU, silu, same=True, tail=3),
    "all empty": JaggedCase("add(s,1.0)", lambda s, *_: s + 1, rows=(0, 0), cols=(0, 0)),
    "no keys": JaggedCase("add(s,1.0)", lambda s, *_: s + 1, rows=(2, 3), cols=(0, 0)),
    "no rows": JaggedCase("add(s,1.0)", lambda s, *_: s + 1, rows=(0, 0), cols=(2, 3)),
    "empty batch": JaggedCase(SILU, silu, rows=(), cols=()),
    "empty batch, rows of nobody": JaggedCase(SILU, silu, rows=(), cols=(), tail=2),
    "empty batch, PMA": JaggedCase(SILU, silu, rows=None, cols=(), dense_rows=(1, 3)),
    "length one": JaggedCase("sigmoid(s)", lambda s, *_: s.sigmoid(), rows=(1, 1), cols=(1, 1)),
    "one sequence": JaggedCase(SILU, silu, rows=(5,), cols=(5,), same=True),
    "MHA": JaggedCase(SILU, silu, same=True, heads=(3, 3, 3)),
    "act(0) is not 0": JaggedCase("sigmoid(s)", lambda s, *_: s.sigmoid(), cols=(2, 4, 0, 7)),
    "causal": JaggedCase(
        "where(ge(q_idx,kv_idx),silu(s),0.0)", lambda s, b, h, n, m: F.silu(s) * (n >= m), same=True
    ),
    "indices": JaggedCase(
        "mul(silu(s),float(add(add(b,h),mul(q_idx,kv_idx))))",
        lambda s, b, h, n, m: F.silu(s) * (b + h + n * m),
        cols=(2, 4, 0, 7),
    ),
    "token operands": JaggedCase(
        "a0:f[q]; a1:f[k]; silu(add(mul(s,a0),a1))",
        lambda s, b, h, n, m, x, y: F.silu(s * x + y),
        cols=(2, 4, 0, 7),
        tail=2,
    ),
    "token and head": JaggedCase(
        "a0:f[h,q]; a1:f[k,h,-]; silu(add(mul(s,a0),a1))",
        lambda s, b, h, n, m, x, y: F.silu(s * x + y),
        same=True,
    ),
    "token mask": JaggedCase(
        "a0:b[q]; a1:i[k]; where(and(a0,ge(a1,kv_idx)),s,0.0)",
        lambda s, b, h, n, m, x, y: torch.where(x & (y >= m), s, 0.0),
        same=True,
    ),
    "a row of bias per token": JaggedCase(
        "a0:f[q,kv_idx]; silu(add(s,a0))",
        lambda s, b, h, n, m, x: F.silu(s + x),
        same=True,
    ),
    "dense operands": JaggedCase(
        "a0:f[h,q_idx,kv_idx]; a1:f[b]; a2:f[b,-,q_idx,-]; a3:f[]; "
        "mul(silu(add(mul(s,a1),a0)),add(a2,a3))",
        lambda s, b, h, n, m, w, x, y, z: F.silu(s * x + w) * (y + z),
        cols=(2, 4, 0, 7),
    ),
    "targets": JaggedCase(
        "a0:i[b]; where(or(lt(kv_idx,a0),eq(q_idx,kv_idx)),silu(s),0.0)",
        lambda s, b, h, n, m, x: F.silu(s) * ((m < x) | (n == m)),
        same=True,
    ),
    "full bias, truncated": JaggedCase(
        "a0:f[b,h,q_idx,kv_idx]; mul(silu(s),a0)",
        lambda s, b, h, n, m, x: F.silu(s) * x,
        longest=(4, 2),
        same=True,
    ),
    "PMA with a token operand": JaggedCase(
        "a0:f[k]; a1:f[q_idx]; silu(mul(add(s,a0),a1))",
        lambda s, b, h, n, m, x, y: F.silu((s + x) * y),
        rows=None,
        dense_rows=(1, 3),
    ),
    "a table by position": JaggedCase(
        "a0:f[h,t]; silu(add(s,lookup(a0,minimum(maximum(add(sub(q_idx,kv_idx),6),0),11))))",
        lambda s, b, h, n, m, x: F.silu(s + looked_up(x, (n - m + 6).clamp(0, 11)[None])),
        same=True,
    ),
    "HSTU: tables by position and time": JaggedCase(
        "a0:f[t,h]; a1:i[q]; a2:i[k]; a3:f[t]; silu(add(add(s,"
        "lookup(a0,minimum(maximum(sub(q_idx,kv_idx),0),11))),"
        "lookup(a3,minimum(maximum(sub(a1,a2),0),11))))",
        lambda s, b, h, n, m, x, y, z, w: F.silu(
            s + looked_up(x, (n - m).clamp(0, 11)[None]) + looked_up(w, (y - z).clamp(0, 11))
        ),
        cols=(2, 4, 0, 7),
        tail=2,
    ),
    "a table by an operand of all scores": JaggedCase(
        "a0:f[b,h,t]; a1:i[b,q_idx,kv_idx]; silu(add(s,lookup(a0,a1)))",
        lambda s, b, h, n, m, x, y: F.silu(s + looked_up(x, y)),
        cols=(6, 4, 0, 2),
        longest=(4, 3),
    ),
    "a row of a table per token": JaggedCase(
        "a0:f[q,h,t]; a1:i[kv_idx]; silu(add(s,lookup(a0,a1)))",
        lambda s, b, h, n, m, x, y: F.silu(s + looked_up(x, y)),
        tail=2,
    ),
}  # fmt: skip


def poisoned(
    case: JaggedCase, tensors: Sequence[Tensor], cotangent: Tensor, kept: int
) -> tuple[list[Tensor], Tensor, list[slice]]:
    """NaN in all that sequence `kept` does not own or that takes no part: operands, cotangent.

    Also: what of the output and of the gradients of query, key and value belongs to `kept`.
    """
    longest = {"q": case.max_q, "k": case.max_k}

    def owned(side: str, cut: bool) -> slice | None:
        cu = case.offsets()["qk".index(side)] if side else None
        if cu is None:
            return None
        start, stop = int(cu[kept]), int(cu[kept + 1])
        return slice(start, min(stop, start + longest[side]) if cut else stop)

    def dirty(tensor: Tensor, side: str, dim: int) -> Tensor:
        own = owned(side, cut=True)
        clean = tensor.detach()
        if own is None:
            return clean.clone()
        filled = torch.full_like(clean, float("nan") if clean.is_floating_point() else 1 << 40)
        filled.movedim(dim, 0)[own] = clean.movedim(dim, 0)[own]
        return filled

    sides = sides_of(case)
    made = [dirty(t, side, dim) for t, (side, dim) in zip(tensors, sides, strict=True)]
    made = [t.requires_grad_() if t.is_floating_point() else t for t in made]
    batch = slice(kept, kept + 1)
    parts = [owned(side, cut=False) or batch for side in "qqkk"]
    if case.offsets()[0] is not None:
        return made, dirty(cotangent, "q", 0), parts
    clean = torch.full_like(cotangent, float("nan"))
    clean[batch] = cotangent[batch]
    return made, clean, parts


def sides_of(case: JaggedCase) -> list[tuple[str, int]]:
    """For each operand: the side of which it has jagged rows, and the dim; "" if of none."""
    sides = [("q", 0), ("k", 0), ("k", 0)]
    for spec in case.aux:
        own = next((entry for entry in "qk" if entry in spec.access), "")
        sides.append((own, spec.access.index(own) if own else 0))
    return sides


def take(
    case: JaggedCase, tensor: Tensor, side: str, order: Sequence[int], dim: int = 0
) -> Tensor:  # fmt: skip
    """The sequences of a tensor in another order; rows of nobody stay at the end."""
    if not side:
        return tensor
    cu = case.offsets()["qk".index(side)]
    if cu is None:
        return tensor[list(order)] if tensor.shape[0] > 1 else tensor
    parts = list(tensor.tensor_split(cu[1:].tolist(), dim))
    return torch.cat([*(parts[b] for b in order), parts[-1]], dim)
