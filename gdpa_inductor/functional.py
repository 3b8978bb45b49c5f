"""The public function `attention(query, key, value, score_mod=..., mask_mod=...)`.

Operands are dense, jagged or nested. The function is written in plain torch, in exactly the form
that the matcher reads, so that under `backend="gdpa"` it becomes the same fused op as a region that
was found in a model. Outside of a compiled model it is compiled alone (`direct`). Jagged values are
padded by ops that the matcher removes again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import direct
from ._compat import subclasses
from .operands import Size, check_bounds, check_form
from .program.expr import compute_dtype
from .rejection import GDPAError
from .scalars import at_all_scores

ScoreFn = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
MaskFn = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score_mod: ScoreFn | None = None,
    mask_mod: MaskFn | None = None,
    scale: float | Tensor = 1.0,
    enable_gqa: bool = False,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: Size | Tensor | None = None,
    max_seqlen_k: Size | Tensor | None = None,
) -> Tensor:
    """Softmax-free attention: `O = where(mask_mod, score_mod(scale · q·k), 0) V`.

    Args:
        query: [B, H, M, D], or with `cu_seqlens_q` [Lq, H, D].
        key, value: [B, H, N, D] and [B, H, N, Dv], or with `cu_seqlens_k` [Lk, H, ·].
        score_mod: `(score, b, h, q_idx, kv_idx) -> weight`; None is the identity. `score` is
            scale · q·k, in fp32 (fp64 for fp64). All five are tensors of no dims, the indices
            integers, as in flex_attention. A tensor of the scores' dims that it captures,
            [B, H, M, N] or with ones among them, is taken at each score's place.
        mask_mod: `(b, h, q_idx, kv_idx) -> bool`. Where False the weight is 0, whatever
            `score_mod` gives.
        scale: multiplies q·k. The default is 1, not 1/sqrt(D). A float is compiled in: one that
            changes from step to step should be a tensor of no dims.
        enable_gqa: key and value may have fewer heads, which divide H.
        cu_seqlens_q, cu_seqlens_k: int32 or int64 [B+1]. Sequence b owns the rows cu[b]:cu[b+1] of
            that side, and indices count within it.
        max_seqlen_q, max_seqlen_k: bounds on the lengths of such a side; later rows take no part.
            The default is a bound that holds. One in a tensor of no dims is read, as by `item()`.

    Query, key and value may be nested tensors of layout torch.jagged, [B, j, H, D], instead.

    Outside of `torch.compile` the first call of a kind compiles for seconds; docs/api.md says what
    a kind is, and when the unfused formula runs instead.

    Returns:
        [B, H, M, Dv], or [Lq, H, Dv] for a jagged query, nested if it is; in value's dtype.

    Raises:
        GDPAError: operands that do not fit each other.
        ValueError: a negative bound.
        TypeError: a `score_mod` or `mask_mod` that returns no tensor of no dims, or a `mask_mod`
            that returns no booleans.
    """
    mods = (score_mod, mask_mod, scale, enable_gqa)
    operands, offsets = (query, key, value), (cu_seqlens_q, cu_seqlens_k)
    _check_tensors(*operands)
    bounds = max_seqlen_q, max_seqlen_k = _number(max_seqlen_q), _number(max_seqlen_k)
    if query.is_nested or key.is_nested or value.is_nested:
        # A compiled function is not given nested tensors: torch 2.11 mistakes their parts once they
        # remember their longest length, and no version keeps such a graph in its cache.
        operands, sides = _without_nesting(
            *operands, *offsets, *bounds, _reads_lengths(query, score_mod, mask_mod, *bounds)
        )
        options = {"mask_mod": mask_mod, "scale": scale, "enable_gqa": enable_gqa, **sides}
        out = attention(*operands, score_mod=score_mod, **options)
        if not query.is_nested:
            return out
        return torch.nested.nested_tensor_from_jagged(out, sides["cu_seqlens_q"])
    arguments = (*operands, *mods, *offsets)
    kind = None
    if not torch.compiler.is_compiling():
        kind = direct.kind_of(operands, score_mod, mask_mod)
    if kind is None:
        return _attention(*arguments, *bounds)
    if cu_seqlens_q is None and cu_seqlens_k is None:
        return direct.compiled(kind, _attention, (*arguments, *bounds))
    if not _reads_lengths(query, score_mod, mask_mod, *bounds):
        # Not fused, the formula would be as large as the number of all rows.
        with contextlib.suppress(direct.NotFused):
            unread = (*kind, "unread")  # of its own: Dynamo would try one after the other
            return direct.compiled(unread, _attention, (*arguments, *bounds), fused_only=True)
    longest = key_longest = _longest("query", query, "cu_seqlens_q", cu_seqlens_q, max_seqlen_q)
    rows = (id(cu_seqlens_q), max_seqlen_q, query.shape[0])  # what `_longest` reads
    if (id(cu_seqlens_k), max_seqlen_k, key.shape[0]) != rows:
        key_longest = _longest("key", key, "cu_seqlens_k", cu_seqlens_k, max_seqlen_k)
    return direct.compiled(kind, _attention, (*arguments, longest, key_longest))


def _check_tensors(query: object, key: object, value: object) -> None:
    for name, operand in (("query", query), ("key", key), ("value", value)):
        if not isinstance(operand, Tensor):
            raise GDPAError(f"{name} must be a tensor, got {type(operand).__name__}")


def _number(bound: Size | Tensor | None) -> Size | None:
    return int(bound) if isinstance(bound, Tensor) else bound


def _reads_lengths(
    query: Tensor,
    score_mod: ScoreFn | None,
    mask_mod: MaskFn | None,
    max_seqlen_q: Size | None,
    max_seqlen_k: Size | None,
) -> bool:
    """Whether bounds that are left out are read, or those that are given checked.

    On a device they are not read if any bound gives the same result.
    """
    if torch.compiler.is_compiling() or not query.is_cuda:
        return True
    if max_seqlen_q is not None or max_seqlen_k is not None:
        return True
    return not direct.reads_arguments_alone(score_mod, mask_mod)


def _without_nesting(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: Size | None,
    max_seqlen_k: Size | None,
    reads: bool,
) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Any]]:
    """The values of nested operands, and what `attention` takes of their sides by name."""
    if key.is_nested != value.is_nested:
        raise GDPAError("key and value must both be nested, or neither")
    if query.is_nested:
        query, cu_seqlens_q, max_seqlen_q = _unnested(
            "query", query, "cu_seqlens_q", cu_seqlens_q, max_seqlen_q, reads
        )
    if key.is_nested:
        nested = (key, value)
        if max_seqlen_k is None and subclasses.offsets_of(key) is cu_seqlens_q:
            own = subclasses.longest_of(key)
            max_seqlen_k = max_seqlen_q if own is None else own
        key, offsets, max_seqlen_k = _unnested(
            "key", key, "cu_seqlens_k", cu_seqlens_k, max_seqlen_k, reads
        )
        value, *_ = _unnested("value", value, "cu_seqlens_k", cu_seqlens_k, max_seqlen_k, reads)
        cu_seqlens_k = offsets
        if nested[0].shape[1] != nested[1].shape[1]:
            raise GDPAError("key and value are nested by different offsets")
    return (query, key, value), {
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "max_seqlen_q": max_seqlen_q,
        "max_seqlen_k": max_seqlen_k,
    }


def _longest(
    name: str, values: Tensor, cu_name: str, offsets: Tensor | None, longest: Size | None
) -> Size | None:
    """The bound of a side; None where it is dense. Here is checked what the formula does not."""
    on_device = isinstance(offsets, Tensor) and not offsets.is_cpu
    if on_device and isinstance(longest, int) and longest >= 0:
        return longest
    side = _jagged_side(name, values, cu_name, offsets, longest)
    return None if side is None else side.longest


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: ScoreFn | None,
    mask_mod: MaskFn | None,
    scale: float | Tensor,
    enable_gqa: bool,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: Size | None,
    max_seqlen_k: Size | None,
) -> Tensor:
    """`attention` as a formula of torch's operators."""
    rows = _jagged_side("query", query, "cu_seqlens_q", cu_seqlens_q, max_seqlen_q)
    cols = _jagged_side("key", key, "cu_seqlens_k", cu_seqlens_k, max_seqlen_k)
    if cols is not None:
        _jagged_side("value", value, "cu_seqlens_k", cu_seqlens_k, max_seqlen_k)
    sides = _Sides(rows, cols)
    query, key, value = sides.pad(query, key, value)
    groups = _check(query, key, value, sides, enable_gqa)
    out = _formula(query, key, value, sides, groups, score_mod, mask_mod, scale)
    if rows is None:
        return out
    return torch.ops.gdpa.dense_to_jagged(out.transpose(1, 2), rows.offsets, rows.total)


def _formula(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sides: _Sides,
    groups: int,
    score_mod: ScoreFn | None,
    mask_mod: MaskFn | None,
    scale: float | Tensor,
) -> Tensor:
    batch, heads, rows = sides.batch(query), query.shape[1], query.shape[2]
    kv_heads, cols = key.shape[1:3]
    compute = compute_dtype(query.dtype)
    if groups > 1:
        query = query.unflatten(1, (kv_heads, groups))
        key, value = key.unsqueeze(2), value.unsqueeze(2)
    score = torch.matmul(query.to(compute), key.to(compute).transpose(-2, -1)) * scale

    def placed(flat: Tensor, *shape: Size) -> Tensor:
        return flat.view(
            shape if groups == 1 else (shape[0], *_head_axes(shape[1], groups), *shape[2:])
        )

    def index(size: Size, *shape: Size) -> Tensor:
        return placed(torch.arange(size, device=query.device), *shape)  # type: ignore[arg-type]

    b, h = index(batch, batch, 1, 1, 1), index(heads, 1, heads, 1, 1)
    q_idx, kv_idx = index(rows, 1, 1, rows, 1), index(cols, 1, 1, 1, cols)
    lengths = [None if s is None else placed(torch.diff(s.offsets), batch, 1, 1, 1) for s in sides]
    there = [i < own for i, own in zip((q_idx, kv_idx), lengths, strict=True) if own is not None]
    # Twice: what is no score has no weight, and what the weight's slope is there does not matter.
    for exists in there:
        score = torch.where(exists, score, 0.0)
    last = score.dim() - 1
    indices = (b, h, q_idx, kv_idx)
    axes = [(0,), tuple(range(1, last - 1)), (last - 1,), (last,)]
    weight = score
    if score_mod is not None:
        weight = at_all_scores(score_mod, (score, *indices), [range(last + 1), *axes])
        weight = _of_one_score("score_mod", weight, score.dim())
        if weight.dim() == 0 or weight.shape != score.shape:
            weight = weight.expand(score.shape)
    if mask_mod is not None:
        mask = _of_one_score("mask_mod", at_all_scores(mask_mod, indices, axes), score.dim())
        weight = torch.where(mask, weight, 0.0)
    for exists in there:
        weight = torch.where(exists, weight, 0.0)
    out = torch.matmul(weight.to(value.dtype), value)
    return out.flatten(1, 2) if groups > 1 else out


def _of_one_score(name: str, value: object, rank: int) -> Tensor:
    """What a mod has returned, if it is one element for each score."""
    wanted = "a tensor of torch.bool" if name == "mask_mod" else "a tensor"
    kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
    if not isinstance(value, Tensor) or (name == "mask_mod" and value.dtype != torch.bool):
        raise TypeError(f"{name} must return {wanted}, not {kind}")
    if value.dim() not in (0, rank):
        shape = tuple(value.shape[rank:])
        raise TypeError(f"{name} must return {wanted} without dims, not of shape {shape}")
    return value


def _head_axes(size: Size, groups: int) -> tuple[Size, Size]:
    return (1, 1) if isinstance(size, int) and size == 1 else (size // groups, groups)


class _Side(NamedTuple):
    """A jagged side: its offsets [B+1], a bound on its lengths, and how many rows it has."""

    offsets: Tensor
    longest: Size
    total: Size

    def pad(self, values: Tensor) -> Tensor:
        """[L,H,D] to [B,H,M,D]."""
        padded = torch.ops.gdpa.jagged_to_padded_dense(values, self.offsets, self.longest)
        return padded.transpose(1, 2)


class _Sides(NamedTuple):
    """What is jagged; None where a side is dense."""

    query: _Side | None
    key: _Side | None

    def pad(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.query is not None:
            query = self.query.pad(query)
        if self.key is not None:
            key, value = self.key.pad(key), self.key.pad(value)
        return query, key, value

    def fit(self, query: Tensor, key: Tensor) -> bool:
        """Whether the batches are one, or 1 next to a jagged side."""
        batch = self.batch(query)
        return all(
            batch == t.shape[0] or (t.shape[0] == 1 and side is None and any(self))
            for t, side in zip((query, key), self, strict=True)
        )

    def batch(self, query: Tensor) -> Size:
        side = self.query if self.key is None else self.key
        return query.shape[0] if side is None else side.offsets.shape[0] - 1


def _jagged_side(
    name: str, values: Tensor, cu_name: str, offsets: Tensor | None, longest: Size | None
) -> _Side | None:
    """The side of values [L,H,D]; None of dense ones."""
    if offsets is None:
        if longest is not None:
            raise GDPAError(f"{name} is dense: max_seqlen goes with {cu_name}")
        return None
    _check_offsets(name, values, cu_name, offsets)
    total = values.shape[0]
    if not torch.compiler.is_compiling():
        if isinstance(longest, int) and longest < 0:  # in a graph it may be known at run time only
            bound = cu_name.replace("cu_seqlens", "max_seqlen")
            raise ValueError(f"{bound} must not be negative, got {longest}")
        if offsets.device.type == "cpu":
            check_bounds(cu_name, offsets, total)
    return _Side(offsets, _bound(offsets, total) if longest is None else longest, total)


def _unnested(
    name: str,
    nested: Tensor,
    cu_name: str,
    offsets: Tensor | None,
    longest: Size | None,
    reads: bool,
) -> tuple[Tensor, Tensor, Size | None]:
    """The values, the offsets and the longest length, which the tensor remembers.

    So it does for torch's own attention. None where it may not be read.
    """
    if offsets is not None:
        raise GDPAError(f"{name} is nested: its offsets are its own, leave {cu_name} out")
    if not subclasses.is_compact_nested(nested):
        raise GDPAError(
            f"a nested {name} must be of layout torch.jagged, [B, j, heads, dim], not transposed"
        )
    values: Tensor = nested.values()  # type: ignore[attr-defined]
    longest = subclasses.longest_of(nested) if longest is None else longest
    if reads and longest is None and not (torch.compiler.is_compiling() or _is_captured(values)):
        longest = subclasses.read_longest(nested)
    return values, nested.offsets(), longest  # type: ignore[attr-defined]


def _check_offsets(name: str, values: Tensor, cu_name: str, offsets: Tensor) -> None:
    if values.dim() != 3:
        raise GDPAError(
            f"{name} must be [total length, heads, head dim] next to {cu_name}, "
            f"got shape {tuple(values.shape)}"
        )
    check_form(cu_name, offsets)
    if offsets.shape[0] == 0:
        raise GDPAError(f"{cu_name} is empty: of no sequences it is [0]")
    if offsets.device != values.device:
        raise GDPAError(f"{cu_name} is on {offsets.device}, {name} on {values.device}")


def _bound(offsets: Tensor, total: Size) -> Size:
    """The longest length, where it may be read."""
    if torch.compiler.is_compiling():  # asked first: Dynamo cannot trace the other question
        return total
    if _is_captured(offsets):
        return total
    # One copy from the device, where it would launch three kernels and copy what they give.
    return int(torch.diff(offsets.cpu()).max()) if offsets.shape[0] > 1 else 0


def _is_captured(tensor: Tensor) -> bool:
    """Whether a CUDA graph is captured, so that nothing on the device may be read."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _check(query: Tensor, key: Tensor, value: Tensor, sides: _Sides, enable_gqa: bool) -> int:
    """The number of query heads per key head, or GDPAError."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 4 or not tensor.dtype.is_floating_point:
            raise GDPAError(
                f"{name} must be a floating-point tensor [batch, heads, length, head dim], "
                f"got {tensor.dtype} of shape {tuple(tensor.shape)}"
            )
        if tensor.device != query.device or tensor.dtype != query.dtype:
            raise GDPAError(
                f"{name} is {tensor.dtype} on {tensor.device}, "
                f"query {query.dtype} on {query.device}"
            )
    if not sides.fit(query, key) or key.shape[:3] != value.shape[:3]:
        raise GDPAError(
            f"batch, heads or lengths differ: {[tuple(t.shape) for t in (query, key, value)]}"
        )
    if query.shape[3] != key.shape[3]:
        raise GDPAError(f"head dims of query and key differ: {query.shape[3]} and {key.shape[3]}")
    if query.shape[1] == key.shape[1]:
        return 1
    if not enable_gqa or key.shape[1] == 0 or query.shape[1] % key.shape[1]:
        raise GDPAError(
            f"{query.shape[1]} query heads over {key.shape[1]} key heads need enable_gqa=True "
            "and a whole ratio"
        )
    return query.shape[1] // key.shape[1]
