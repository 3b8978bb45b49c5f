"""`Operands`: all inputs of one call of gdpa::attention. Each side is dense or jagged.

    dense     query [B|1,H,M,D]    key [B|1,Hk,N,D]   value [B|1,Hv,N,Dv]
    jagged    query [Lq,H,D]       key [Lk,Hk,D]      value [Lk,Hv,Dv]

A side is jagged if its cu_seqlens [B+1] (int32 or int64) is given. Sequence b owns the rows
cu[b]:cu[b+1]. The first max_seqlen of them are computed, and M (or N) is max_seqlen. `sequences`
says what happens with offsets that decrease or leave the rows. `T` is a Tensor, or Inductor's IR of
one during lowering.

Keys may lie in pages, where no gradient is wanted: P pages of R rows, which all sequences share. A
page_table [B|1,n] of integers lists the pages of a sequence, which has N = n·R keys.

    pages     query as above       key [P,Hk,R,D]     value [P,Hv,R,Dv]

Row j of sequence b is row j % R of page page_table[b, j // R]. A page outside of 0..P-1 has NaN in
all rows, and no address outside of the pools is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from .program.expr import AXES
from .program.score_mod import Aux, ScoreMod
from .rejection import GDPAError

T = TypeVar("T")
Size = int | torch.SymInt


class JaggedRows(NamedTuple):
    cu_seqlens: Any  # [B+1]
    total: Any  # the rows L of all sequences
    longest: Any  # max_seqlen: the rows of a sequence in the padded form


@dataclass(frozen=True)
class Operands(Generic[T]):
    """See the module."""

    query: T
    key: T
    value: T
    aux: Sequence[T]
    scalars: Sequence[Any]
    program: ScoreMod
    cu_seqlens_q: T | None = None
    cu_seqlens_k: T | None = None
    max_seqlen_q: Any = 0
    max_seqlen_k: Any = 0
    page_table: T | None = None

    @property
    def jagged(self) -> bool:
        return self.cu_seqlens_q is not None or self.cu_seqlens_k is not None

    @property
    def sides(self) -> dict[str, JaggedRows]:
        """The jagged sides: "q" of the query, "k" of key and value. Only of tensors."""
        query: Any = self.query
        key: Any = self.key
        sides: dict[str, JaggedRows] = {}
        if self.cu_seqlens_q is not None:
            sides["q"] = JaggedRows(self.cu_seqlens_q, query.shape[0], self.max_seqlen_q)
        if self.cu_seqlens_k is not None:
            sides["k"] = JaggedRows(self.cu_seqlens_k, key.shape[0], self.max_seqlen_k)
        return sides

    @property
    def differentiable(self) -> list[T]:
        """The tensors that may have a gradient, in the order of `needs`."""
        return [self.query, self.key, self.value, *self.aux]

    @property
    def lengths(self) -> tuple[Any, ...]:
        """The last four arguments of the ops, but for a page table."""
        return self.cu_seqlens_q, self.cu_seqlens_k, self.max_seqlen_q, self.max_seqlen_k

    @property
    def indices(self) -> tuple[T | None, T | None]:
        """What says where the rows of queries and of keys lie: offsets, or the page table."""
        keys = self.cu_seqlens_k if self.page_table is None else self.page_table
        return self.cu_seqlens_q, keys

    def flat(self) -> list[Any]:
        """All tensors and sizes in a list. Absent ones are left out."""
        items = [*self.differentiable, *self.scalars, *self.lengths, self.page_table]
        return [item for item in items if item is not None]

    def filled(self, flat: Sequence[Any]) -> Operands[Any]:
        """The same with other tensors and sizes, in the order of `flat`."""
        items = iter(flat)
        query, key, value = next(items), next(items), next(items)
        aux, scalars = [next(items) for _ in self.aux], [next(items) for _ in self.scalars]
        cu_q, cu_k = (None if cu is None else next(items) for cu in self.lengths[:2])
        lengths = cu_q, cu_k, next(items), next(items), next(items, None)
        return Operands(query, key, value, aux, scalars, self.program, *lengths)

    def with_aux(self, aux: Sequence[T]) -> Operands[T]:
        return replace(self, aux=aux)


def score_shape(operands: Operands[Tensor]) -> tuple[Any, Any, Any, Any]:
    """The sizes [B, H, M, N] of the scores. A jagged side has its max_seqlen."""
    o = operands
    rows = o.query.shape[2] if o.cu_seqlens_q is None else o.max_seqlen_q
    cols = o.key.shape[2] if o.cu_seqlens_k is None else o.max_seqlen_k
    if o.page_table is not None:
        cols *= o.page_table.shape[1]
    return _batch(o), o.query.shape[1], rows, cols


def _batch(o: Operands[Tensor]) -> Any:
    for offsets in (o.cu_seqlens_q, o.cu_seqlens_k):
        if offsets is not None:
            return offsets.shape[0] - 1
    keys = (o.key, o.value) if o.page_table is None else (o.page_table,)
    return next((t.shape[0] for t in (o.query, *keys) if not _is_one(t.shape[0])), 1)


def gathered(operands: Operands[Tensor]) -> Operands[Tensor]:
    """The same, with keys and values copied from their pages in the order of their rows."""
    if operands.page_table is None:
        return operands
    table = operands.page_table
    key, value = (rows_of_pages(pool, table) for pool in (operands.key, operands.value))
    return replace(operands, key=key, value=value, page_table=None)


def rows_of_pages(pool: Tensor, table: Tensor) -> Tensor:
    """A copy [B|1,H,n·R,D] of rows of pages [P,H,R,D]."""
    table = table.long()
    missing = (table < 0) | (table >= pool.shape[0])
    pages = pool[table.masked_fill(missing, 0)].masked_fill(missing[..., None, None, None], nan)
    return pages.transpose(1, 2).flatten(2, 3)


def output_shape(operands: Operands[Tensor]) -> tuple[Any, ...]:
    """[Lq,H,Dv] for a jagged query, else [B,H,M,Dv]."""
    batch, heads, rows, _ = score_shape(operands)
    width = operands.value.shape[-1]
    if operands.cu_seqlens_q is not None:
        return operands.query.shape[0], heads, width
    return batch, heads, rows, width


def row_sums_spec(operands: Operands[Tensor]) -> Aux:
    """How the row sums lie, in the terms of an aux operand: [Lq,H] or [B,H,M]."""
    return Aux("f", ("b", "h", "q_idx") if operands.cu_seqlens_q is None else ("q", "h"))


def check(operands: Operands[Tensor]) -> None:
    """Raise GDPAError if operands do not fit each other or the program."""
    o = operands
    matrices = (
        ("query", o.query, o.cu_seqlens_q),
        ("key", o.key, o.cu_seqlens_k),
        ("value", o.value, o.cu_seqlens_k),
    )
    for name, tensor, offsets in matrices:
        _check_layout(name, tensor, offsets is not None)
    for name, offsets in (("cu_seqlens_q", o.cu_seqlens_q), ("cu_seqlens_k", o.cu_seqlens_k)):
        if offsets is not None:
            check_form(name, offsets)
            _check_not_empty(name, offsets.shape[0])
    for other in (o.key, o.value, *o.aux, o.cu_seqlens_q, o.cu_seqlens_k, o.page_table):
        if other is not None and other.device != o.query.device and other.dim() > 0:
            raise GDPAError(f"operands are on {o.query.device} and {other.device}")
    if o.key.dtype != o.query.dtype:
        raise GDPAError(f"query and key differ in dtype: {o.query.dtype}, {o.key.dtype}")
    _fits("head dim of query and key", o.query.shape[-1], o.key.shape[-1])
    length = 2 if o.cu_seqlens_k is None else 0
    _fits("length of key and value", o.key.shape[length], o.value.shape[length])
    _check_pages(o)
    _check_batch(o, matrices)
    _check_heads(o)
    _check_aux(o)


def _check_batch(o: Operands[Tensor], matrices: Sequence[tuple[str, Tensor, Any]]) -> None:
    batch = _batch(o)
    if o.cu_seqlens_q is not None and o.cu_seqlens_k is not None:
        _fits("batch of cu_seqlens_k", o.cu_seqlens_k.shape[0] - 1, batch)
    if o.page_table is not None:
        matrices = (matrices[0], ("page_table", o.page_table, None))
    for name, tensor, offsets in matrices:
        if offsets is None and not _is_one(tensor.shape[0]):
            _fits(f"batch of {name}", tensor.shape[0], batch)


def _check_pages(o: Operands[Tensor]) -> None:
    table = o.page_table
    if table is None:
        return
    if o.cu_seqlens_k is not None:
        raise GDPAError("keys lie in pages, or have cu_seqlens_k, not both")
    if table.dim() != 2 or kind_of(table.dtype) != "i":
        shape = tuple(table.shape)
        raise GDPAError(f"page_table must be integers [batch, pages], not {table.dtype} {shape}")
    _fits("number of pages of key and value", o.key.shape[0], o.value.shape[0])
    _check_not_empty("key", o.key.shape[0])


def _check_heads(o: Operands[Tensor]) -> None:
    for name, tensor in (("key", o.key), ("value", o.value)):
        if tensor.shape[1] == 0 or o.query.shape[1] % tensor.shape[1] != 0:
            raise GDPAError(
                f"{o.query.shape[1]} query heads are no multiple of {tensor.shape[1]} {name} heads"
            )


def _check_layout(name: str, tensor: Tensor, jagged: bool) -> None:
    if tensor.dim() != (3 if jagged else 4):
        form = "[total length, heads, head dim]" if jagged else "[batch, heads, length, head dim]"
        raise GDPAError(f"{name} must be {form}, got shape {tuple(tensor.shape)}")
    if not tensor.dtype.is_floating_point:
        raise GDPAError(f"{name} must be floating point, got {tensor.dtype}")


def check_form(name: str, offsets: Tensor) -> None:
    """Raise GDPAError where offsets are no vector of integers."""
    if not isinstance(offsets, Tensor):
        raise GDPAError(f"{name} must be a tensor [batch + 1], got {type(offsets).__name__}")
    if offsets.dim() != 1 or offsets.dtype not in (torch.int32, torch.int64):
        raise GDPAError(
            f"{name} must be [batch + 1] of int32 or int64, "
            f"got {offsets.dtype} of shape {tuple(offsets.shape)}"
        )


def _check_not_empty(name: str, size: Size) -> None:
    _require(size >= 1, lambda: f"gdpa::attention: {name} is empty")


def _check_aux(o: Operands[Tensor]) -> None:
    if len(o.aux) != len(o.program.aux) or len(o.scalars) < o.program.num_scalars:
        declared = f"{len(o.program.aux)} operands and {o.program.num_scalars} sizes"
        raise GDPAError(
            f"the program {o.program} declares {declared}, "
            f"{len(o.aux)} and {len(o.scalars)} are given"
        )
    if not o.aux:
        return
    sizes = dict(zip(AXES, score_shape(o), strict=True))
    sizes |= {letter: side.total for letter, side in o.sides.items()}
    for i, (tensor, spec) in enumerate(zip(o.aux, o.program.aux, strict=True)):
        if tensor.dim() != len(spec.access):
            raise GDPAError(
                f"a{i} has {tensor.dim()} dimensions, its access map {spec} has {len(spec.access)}"
            )
        if kind_of(tensor.dtype) != spec.kind:
            raise GDPAError(f"a{i} is {tensor.dtype}, the program declares kind {spec.kind}")
        for size, entry in zip(tensor.shape, spec.access, strict=True):
            if entry == "t":
                _check_not_empty(f"table a{i}", size)
                continue
            if entry in "qk" and entry not in sizes:
                raise GDPAError(f"a{i} is read by {entry!r}, but that side is not jagged")
            _fits(f"dimension {entry} of a{i}", size, sizes.get(entry, 1))


def in_order(operands: Operands[Tensor]) -> bool:
    """Whether offsets ascend within the rows. It reads the offsets on the host."""
    return all(_rises_within(side.cu_seqlens, side.total) for side in operands.sides.values())


_FEW = 256  # offsets that Python compares sooner than torch does


def _rises_within(offsets: Tensor, rows: int) -> bool:
    if offsets.shape[0] <= _FEW:
        values = offsets.tolist()
        return values == sorted(values) and values[0] >= 0 and values[-1] <= rows
    rises = bool((offsets[1:] >= offsets[:-1]).all())
    return rises and int(offsets[0]) >= 0 and int(offsets[-1]) <= rows


def check_bounds(name: str, offsets: Tensor, rows: int) -> None:
    """Read offsets; raise GDPAError where they decrease or leave 0..rows."""
    if not _rises_within(offsets, rows):
        first, last = int(offsets[0]), int(offsets[-1])
        raise GDPAError(
            f"{name} must not decrease and must lie in 0..{rows}, the rows that there are; "
            f"it goes from {first} to {last}"
        )


def kind_of(dtype: torch.dtype) -> str:
    """The kind of a program's operand: "b", "f" or "i"."""
    return "b" if dtype == torch.bool else "f" if dtype.is_floating_point else "i"


def dtype_name(dtype: torch.dtype) -> str:
    """`float32`."""
    return str(dtype).removeprefix("torch.")


def on_axis(axis: str, values: Tensor) -> Tensor:
    """Values along one axis of the scores, with a dim of 1 for each of the others."""
    return values.view([values.shape[0] if name == axis else 1 for name in AXES])


def _fits(what: str, left: Size, right: Size) -> None:
    _require(left == right, lambda: f"gdpa::attention: {what}: {left} and {right}")


def _require(holds: Any, complaint: Callable[[], str]) -> None:
    """Raise GDPAError if a condition is false. For symbolic sizes torch records it as a fact."""
    if not isinstance(holds, bool):
        torch._check(holds, complaint)
    elif not holds:
        raise GDPAError(complaint())


def _is_one(size: Size) -> bool:
    return isinstance(size, int) and size == 1


def aux_on_axes(tensor: Tensor, spec: Aux) -> Tensor:
    """View an aux tensor as [B|1, H|1, M|1, N|1], and a table as [B|1, H|1, M|1, N|1, T]."""
    squeezed = tensor.squeeze([d for d, a in enumerate(spec.access) if a == "-"])
    axes = [a for a in spec.access if a != "-"]
    ordered = squeezed.permute([axes.index(a) for a in (*AXES, "t") if a in axes])
    for position, axis in enumerate(AXES):
        if axis not in axes:
            ordered = ordered.unsqueeze(position)
    return ordered


def aux_sums(placed: Tensor, spec: Aux, dtype: torch.dtype) -> Tensor:
    """Zeros, to which the gradient of an aux operand on four axes is added in `dtype`."""
    # With all four axes nothing is summed. Each element is written once, in its own dtype.
    sum_dtype = placed.dtype if len(spec.axes) == len(AXES) else dtype
    return torch.zeros(placed.shape, dtype=sum_dtype, device=placed.device)


def aux_from_axes(tensor: Tensor, spec: Aux) -> Tensor:
    """The inverse of `aux_on_axes`."""
    squeezed = tensor.squeeze([d for d, a in enumerate(AXES) if a not in spec.access])
    return by_access(squeezed, [a for a in (*AXES, "t") if a in spec.access], spec)


def places_of(tensor: Tensor, spec: Aux) -> Size:
    """How many places a table has; 1 of another operand."""
    return tensor.shape[spec.access.index("t")] if spec.is_table else 1


def add_by_place(term: Tensor, places: Tensor, total: Tensor) -> None:
    """total [B|1, H|1, M|1, N|1, T] += term [b|1, h|1, m|1, n|1], at `places` along T.

    term has all axes of total and of places. What was looked up outside of the table is left out.
    The order of the additions is that of the elements, so the bits are the same in every run.
    """
    *sizes, count = total.shape
    # Sums of each batch and head stay apart at first, as they are of each row of such a table. So
    # several threads have work, and sums are shorter.
    apart = [d for d, size in enumerate(sizes) if size > 1 or d < 2]
    order = [*apart, *(d for d in range(len(sizes)) if d not in apart)]
    places = places.clamp(-1, count).add_(1)  # the first and the last are outside
    matrix, index = (t.permute(order).flatten(len(apart)) for t in (term, places))
    index = index.expand_as(matrix)
    sums = term.new_zeros(*matrix.shape[:-1], count + 2).scatter_add_(-1, index, matrix)
    shared = [d for d in apart if sizes[d] == 1]
    for position, d in enumerate(apart):
        if d in shared:
            sums = sums.sum(position, keepdim=True)
    total += sums[..., 1:-1].reshape(total.shape)


def by_access(tensor: Tensor, letters: Sequence[str], spec: Aux) -> Tensor:
    """From a dim for each of `letters` to the access map of `spec`."""
    axes = [a for a in spec.access if a != "-"]
    restored = tensor.permute([letters.index(a) for a in axes])
    for position, entry in enumerate(spec.access):
        if entry == "-":
            restored = restored.unsqueeze(position)
    return restored
