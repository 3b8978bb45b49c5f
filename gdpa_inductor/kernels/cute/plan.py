"""Launch plans: what follows from the form of a call, checked and computed once for each form.

The form is all of a call but its addresses, the values of its scalars, what its tensors hold, and
how many rows a jagged side has: that varies from batch to batch.
Whoever lets a check or a plan read more of a call adds it to `form_of`. Nothing here reads from the
device, and a plan holds no tensor.
"""

import functools
import operator
import struct
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...operands import Operands, check, output_shape, score_shape
from ...program.score_mod import ScoreMod
from ...program.tile_classes import boundable
from ...rejection import GDPAError
from .architectures import config_of
from .config import LETTERS, KernelConfig, slice_of, unsupported

ALIGNMENT = 16  # bytes: of every address and stride that TMA reads
MOST = 512  # plans that are kept
MOST_TILES = 1 << 31  # kernels number them in 32 bits with a sign
LEAST = 64  # rows or keys of a tile
JAGGED = 3  # dims of a matrix
SIDES = (0, 1, 1, 0)  # of query, key, value and a gradient of O: 0 if they have queries, 1 if keys
SEVERAL = 2  # rows
FEW = 8  # strides of the other matrices that a plan remembers

Kind = type[KernelConfig]
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class LaunchPlan:
    """What one form needs.

    config       of the kernels
    sizes        what they take of these: batch, heads of query, key and value, M, N
    output       the shape of O but for its first dim
    empty        there is nothing to compute
    copied       which of query, key and value TMA cannot read as they lie
    strides      of the three as they are read
    aux_strides  of every operand of the program, by letter
    widened      the offsets of the queries have to be brought to the dtype of the keys'
    gathered     offsets that do not lie side by side have to be copied
    scalars      how many the program reads
    aligned      every address was a multiple of 16 bytes
    words        `form_words` by the strides of the others
    kept         what else follows from the form and was asked for (`once`)
    """

    config: KernelConfig
    sizes: tuple[int, ...]
    output: tuple[int, ...]
    empty: bool
    copied: tuple[bool, ...]
    strides: tuple[int, ...]
    aux_strides: tuple[int, ...]
    widened: bool
    gathered: bool
    scalars: int
    aligned: bool
    words: dict[Hashable, bytes] = field(default_factory=dict)
    kept: dict[Hashable, Any] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        return self.sizes[0]

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` gave for the key. Launchers are kept so too: to hash a configuration takes
        microseconds."""
        if key not in self.kept:
            self.kept[key] = make()
        found: T = self.kept[key]
        return found

    @property
    def in_place(self) -> bool:
        """Kernels read the operands as they lie."""
        return not (any(self.copied) or self.widened or self.gathered)

    @property
    def plain(self) -> bool:
        """They do so for calls of other addresses too, and there is something to compute."""
        return self.aligned and self.in_place and not self.empty

    @property
    def leaves_rows(self) -> bool:
        """No tile covers the rows of a jagged query that no sequence owns, and the kernel does not
        clear them."""
        return self.config.jagged_q and not self.config.clears

    def output_of(self, o: Operands[Tensor]) -> tuple[int, ...]:
        """The shape of O."""
        return (o.query.shape[0] if self.config.jagged_q else self.batch, *self.output)

    def slices(
        self, readable: Operands[Tensor], out: Tensor
    ) -> Iterator[tuple[Operands[Tensor], Tensor]]:
        """The operands and O of each launch of a forward: with all channels of V, or a slice."""
        width, channels = self.config.value_dim, out.shape[-1]
        if width == channels:
            yield readable, out
            return
        for first in range(0, channels, width):
            of = slice(first, first + width)
            yield replace(readable, value=readable.value[..., of]), out[..., of]

    def readable(self, operands: Operands[Tensor]) -> Operands[Tensor]:
        """The operands as kernels read them; copies have to live until the launch."""
        if self.in_place:
            return operands
        o = operands
        cu_q, cu_k = (None if x is None else x.contiguous() for x in o.lengths[:2])
        if self.widened and cu_q is not None and cu_k is not None:
            cu_q = cu_q.to(cu_k.dtype)
        query, key, value = (
            x.clone(memory_format=torch.contiguous_format) if copied else x
            for x, copied in zip((o.query, o.key, o.value), self.copied, strict=True)
        )
        return replace(o, query=query, key=key, value=value, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)

    def form_words(
        self, others: Sequence[Tensor], dealt: int | None = None, tables: Sequence[Any] = ()
    ) -> bytes:
        """Of a launcher. others: its matrices beside query, key and value. Their shapes follow from
        the form, so their strides are enough to know them again. dealt: how many sequences, by
        default all. tables: see bounds.py."""
        known = (dealt, *[x.stride() for x in others], *[x.strides for x in tables])
        if known not in self.words:
            steps = [step for x in others for step in strides(x)]
            steps += [step for x in tables for step in x.strides]
            dealt = self.batch if dealt is None else dealt
            words = (*self.sizes, dealt, *self.strides, *steps, *self.aux_strides)
            if len(self.words) >= FEW:
                self.words.clear()
            self.words[known] = struct.pack(f"{len(words)}q", *words)
        return self.words[known]

    def call_words(
        self,
        readable: Operands[Tensor],
        others: Sequence[Tensor],
        order: Tensor | None,
        ctas: int,
        stream: int,
        tables: Sequence[Any] = (),
    ) -> list[int]:
        """Of a launcher."""
        o = readable
        words = [x.data_ptr() for x in (o.query, o.key, o.value, *others)]
        words += totals(o.query, o.key)
        if o.jagged:
            offsets = (o.cu_seqlens_q, o.cu_seqlens_k, order)
            words += [x.data_ptr() for x in offsets if x is not None]
        words += [x.room.data_ptr() for x in tables]
        words += [x.data_ptr() for x in o.aux]
        words += o.scalars[: self.scalars]
        words += (ctas, stream)
        return words


def totals(query: Tensor, key: Tensor) -> tuple[int, int]:
    """The rows of both."""
    return query.shape[0 if query.dim() == JAGGED else 2], key.shape[
        0 if key.dim() == JAGGED else 2
    ]


def offsets_of(o: Operands[Tensor]) -> Tensor | None:
    """Those that say how much work a sequence is."""
    return o.cu_seqlens_q if o.cu_seqlens_k is None else o.cu_seqlens_k


PLANS: dict[Hashable, LaunchPlan] = {}
_LOCK = threading.Lock()


def plan_of(operands: Operands[Tensor], fast: bool, skip: bool, kind: Kind | None) -> LaunchPlan:
    """The plan of a call, from before if there was one of its form. kind: as `forward` has it.

    Raises:
        GDPAError: what the kernels do not take, and why.
    """
    form = form_of(operands, fast, skip, kind)
    plan = PLANS.get(form)
    if plan is None:
        plan = made(operands, fast, skip, kind)
        with _LOCK:
            while len(PLANS) >= MOST:
                del PLANS[next(iter(PLANS))]  # the oldest
            PLANS[form] = plan
    return plan


def _tensors(o: Operands[Tensor]) -> tuple[Tensor | None, ...]:
    return (o.query, o.key, o.value, o.cu_seqlens_q, o.cu_seqlens_k, *o.aux)


def misaligned(o: Operands[Tensor]) -> bool:
    """Some tensor begins elsewhere than at a multiple of 16 bytes."""
    return off_alignment([0 if x is None else x.data_ptr() for x in _tensors(o)])


def off_alignment(addresses: Iterable[int]) -> bool:
    """One of them is no multiple of 16 bytes."""
    return functools.reduce(operator.or_, addresses, 0) % ALIGNMENT != 0


def form_of(o: Operands[Tensor], fast: bool, skip: bool, kind: Kind | None) -> Hashable:
    """All that `made` reads of a call."""
    return (
        *lying((o.query, o.key, o.value), o.aux, o.lengths),
        *[
            None if x is None else (x.dtype, x.device, x.data_ptr() % ALIGNMENT)
            for x in _tensors(o)
        ],
        *(str(o.program), len(o.scalars), fast, skip, kind),
    )


def lying(
    matrices: Sequence[Tensor], aux: Sequence[Tensor], lengths: Sequence[Any]
) -> tuple[Hashable, ...]:
    """Sizes and strides. The rows of a jagged side are none, one or more, and other sizes are as
    many or not. matrices: query, key and value, and a gradient of O."""
    found: list[Hashable] = list(lengths[2:])
    rows = [x.shape[0] if x.dim() == JAGGED else None for x in matrices[:2]]
    for x, side in zip(matrices, SIDES, strict=False):
        shape, count = x.shape, rows[side]
        if count is None or len(shape) != JAGGED:
            found.append(shape)
        else:
            found += (shape[0] == count, min(count, SEVERAL), shape[1], shape[2])
        found.append(x.stride())
    for other in (*lengths[:2], *aux):
        found.append(None if other is None else (other.shape, other.stride()))
    counts = [count for count in rows if count is not None]
    found += [size == count for count in counts for other in aux for size in other.shape]
    return tuple(found)


def made(o: Operands[Tensor], fast: bool, skip: bool, kind: Kind | None) -> LaunchPlan:
    """A new plan, of a call that is checked."""
    check(o)
    kind = kind or config_of(o.query.device)
    if kind is None:
        raise GDPAError(f"there is no CuTe kernel for {o.query.device}")
    config = config_for(o, kind, fast, skip)
    if complaint := _complaint(config, o):
        raise GDPAError(complaint)
    matrices = (o.query, o.key, o.value)
    batch, heads, rows, cols = score_shape(o)
    output, copied = output_shape(o), tuple(not fits(x) for x in matrices)
    specs = zip(o.aux, o.program.aux, strict=True)
    return LaunchPlan(
        config,
        sizes=(batch, heads, o.key.shape[1], o.value.shape[1], rows, cols),
        output=output[1:],
        empty=0 in (*output, batch, rows, cols, o.key.numel()),
        copied=copied,
        strides=tuple(
            step
            for x, copy in zip(matrices, copied, strict=True)
            for step in strides(torch.empty(x.shape, device="meta") if copy else x)
        ),
        aux_strides=tuple(step for x, spec in specs for step in _by_letter(x, spec.access)),
        widened=len({x.dtype for x in o.lengths[:2] if x is not None}) > 1,
        gathered=not all(x.is_contiguous() for x in o.lengths[:2] if x is not None),
        scalars=o.program.num_scalars,
        aligned=not misaligned(o),
    )


def config_for(o: Operands[Tensor], kind: Kind, fast: bool, skip: bool) -> KernelConfig:
    """The configuration of the kernels of a call."""
    batch, offsets = score_shape(o)[0], offsets_of(o)
    matrices = {"q": o.query, "k": o.key, "v": o.value}
    return kind(
        dtype=name(o.query.dtype),
        head_dim=o.query.shape[-1],
        value_dim=slice_of(kind, o.value.shape[-1]),
        program=str(o.program),
        aux=tuple(name(x.dtype) for x in o.aux),
        jagged_q=o.cu_seqlens_q is not None,
        jagged_k=o.cu_seqlens_k is not None,
        offsets="int32" if offsets is None else name(offsets.dtype),
        shared=frozenset(
            letter for letter, x in matrices.items() if x.dim() == 4 and x.shape[0] == 1 != batch
        ),
        fast=fast,
        skip=skip,
        vectors=_vectors(o.aux, o.program),
        expanded=frozenset(number for number, x in enumerate(o.aux) if 0 in x.stride()),
        bounded=frozenset(boundable(o.program.aux) if skip else ()),
    )


def _complaint(config: KernelConfig, o: Operands[Tensor]) -> str:
    """Why the kernels do not take operands that fit each other, or ""."""
    # `check` lets an operand of no dimension lie elsewhere.
    if any(x.device != o.query.device for x in o.aux):
        return "operands on several devices"
    batch, heads, rows, cols = score_shape(o)
    if batch * heads * -(-max(rows, cols) // LEAST) >= MOST_TILES:
        return "too many tiles for the CuTe kernel, which numbers them in 32 bits"
    dtypes, dims = (o.query.dtype, o.value.dtype), (config.head_dim, config.value_dim)
    return unsupported(type(config), dtypes, dims, config.aux)


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def strides(matrix: Tensor) -> tuple[int, int, int]:
    """(batch, head, row), in elements. That of an extent of one may be anything; TMA wants
    multiples of 16 bytes."""
    known = matrix.stride()
    if 1 in matrix.shape:
        known = tuple(8 if n == 1 else s for n, s in zip(matrix.shape, known, strict=True))
    return (8, known[1], known[0]) if len(known) == 3 else (known[0], known[1], known[2])


def fits(matrix: Tensor) -> bool:
    """TMA can read the matrix as it lies. It cannot if that is expanded, for one."""
    unit = ALIGNMENT // matrix.element_size()
    in_place = matrix.stride(-1) == 1 and matrix.data_ptr() % ALIGNMENT == 0
    return in_place and all(step and step % unit == 0 for step in strides(matrix))


def aligned(matrix: Tensor) -> Tensor:
    """The matrix, or a copy of it that TMA can read."""
    return matrix if fits(matrix) else matrix.clone(memory_format=torch.contiguous_format)


def _vectors(aux: Sequence[Tensor], program: ScoreMod) -> frozenset[int]:
    """The operands that can be read 16 bytes at a time along the keys."""

    def side_by_side(tensor: Tensor, access: Sequence[str]) -> bool:
        unit = ALIGNMENT // tensor.element_size()
        steps = dict(zip(access, tensor.stride(), strict=True))
        return (
            steps.pop("kv_idx", 0) == 1
            and tensor.data_ptr() % ALIGNMENT == 0
            and all(step % unit == 0 for step in steps.values())
        )

    found = (side_by_side(x, spec.access) for x, spec in zip(aux, program.aux))
    return frozenset(number for number, fits in enumerate(found) if fits)


def _by_letter(tensor: Tensor, access: Sequence[str]) -> list[int]:
    """The strides of an operand of the program."""
    known = dict(zip(access, tensor.stride(), strict=True))
    return [known.get(letter, 0) for letter in LETTERS]
