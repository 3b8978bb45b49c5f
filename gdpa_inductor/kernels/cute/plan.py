"""Launch plans: the checks and the arguments of a launch, computed once for each form of a call.

Two calls have the same form if they agree in dtypes, sizes, strides, alignment, score program and
options. They may differ in four things: addresses, the values of scalars, the contents of tensors,
and the total rows of a jagged side, which vary from batch to batch.

`plan_of` takes a call and returns its `LaunchPlan`, new or from the cache. The key of the cache is
the `Form` of the call, and `build_plan` gets nothing else. It turns the form into operands on the
meta device, and checks and reads these. All that is computed later for a plan (`LaunchPlan.once`)
reads the same operands. So no answer of the cache depends on what the key lacks.
"""

import struct
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...operands import Operands, check, dtype_name, output_shape, score_shape
from ...program.score_mod import ScoreMod
from ...program.tile_classes import boundable
from ...rejection import GDPAError
from .certificates import trusted_config_of
from .config import (
    LETTERS,
    KernelConfig,
    TableLayout,
    no_sums,
    slice_of,
    strange_page,
    unsupported,
)
from .form import ALIGNMENT, JAGGED, Form, Kind, example_of, key_of

MOST = 512  # plans in the cache
MOST_TILES = 1 << 31  # kernels number tiles in signed 32-bit integers
LEAST = 64  # the fewest rows or keys that a tile has
FEW = 8  # entries of `LaunchPlan.words`

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class LaunchPlan:
    """All that a launch needs and that the form of a call decides."""

    config: KernelConfig  # the configuration of the kernels
    sizes: tuple[int, ...]  # B, H, Hk, Hv, M and N, which every kernel takes
    output: tuple[int, ...]  # the shape of O without its first dim
    empty: bool  # True if there is nothing to compute
    # For query, key and value: TMA cannot read this one in place, so it is copied.
    copied: tuple[bool, ...]
    # The strides of query, key and value, or of their copies: three each, in elements.
    strides: tuple[int, ...]
    aux_strides: tuple[int, ...]  # the strides of every aux operand, in the order of `LETTERS`
    widened: bool  # True if `cu_seqlens_q` is converted to the dtype of `cu_seqlens_k`
    gathered: bool  # True if offsets or a page table are copied
    scalars: int  # how many integers the score program reads
    aligned: bool  # True if every address of the first call was a multiple of 16 bytes
    # Operands of the form on the meta device: sizes, strides and dtypes, but no data.
    example: Operands[Tensor]
    words: dict[Hashable, bytes] = field(default_factory=dict)  # A cache of `form_words`
    # A cache of whatever else follows from the form. See `once`.
    cache: dict[Hashable, Any] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        return self.sizes[0]

    def once(self, build: Callable[..., T], *arguments: Hashable) -> T:
        """The result of `build(self, *arguments)`, computed once.

        It can depend on the form and on the arguments only. Launchers are cached here too: a lookup
        by their configuration would hash it, which takes microseconds.
        """
        key = (build, *arguments)
        if key not in self.cache:
            self.cache[key] = build(self, *arguments)
        value: T = self.cache[key]
        return value

    def backward_kernels(self, ordered: bool, stored: int | None) -> list[KernelConfig]:
        """The configurations of the kernels of a backward. ordered, stored: As the fields."""
        return self.config.backward_kernels(ordered, stored, (self.sizes[4], self.sizes[5]))

    @property
    def in_place(self) -> bool:
        return not (any(self.copied) or self.widened or self.gathered)

    @property
    def plain(self) -> bool:
        """A replay is possible: nothing is copied, at any aligned address, and O is not empty."""
        return self.aligned and self.in_place and not self.empty

    @property
    def leaves_rows(self) -> bool:
        """The host has to clear O first: it has rows that no sequence owns."""
        # No tile covers these rows of a jagged query. Kernels with `KernelConfig.clears` store
        # zeros there themselves.
        return self.config.jagged_q and not self.config.clears

    def output_of(self, o: Operands[Tensor]) -> tuple[int, ...]:
        return (o.query.shape[0] if self.config.jagged_q else self.batch, *self.output)

    @property
    def sums_rows(self) -> bool:
        return len(self.config.terms) > 1

    def slices(
        self, readable: Operands[Tensor], out: Tensor
    ) -> Iterator[tuple[Operands[Tensor], Tensor]]:
        """The operands and O of each launch of a forward. The first one stores row sums."""
        # There is one launch if the kernel has room for all channels of V. Otherwise there is one
        # for each slice of V and O (`slice_of`).
        width, channels = self.config.value_dim, out.shape[-1]
        if width == channels:
            yield readable, out
            return
        for first in range(0, channels, width):
            of = slice(first, first + width)
            yield replace(readable, value=readable.value[..., of]), out[..., of]

    def readable(self, operands: Operands[Tensor]) -> Operands[Tensor]:
        """The operands, copied where TMA needs it. The caller keeps copies until the launch."""
        if self.in_place:
            return operands
        o = operands
        cu_q, cu_k = (None if x is None else x.contiguous() for x in o.lengths[:2])
        if self.widened and cu_q is not None and cu_k is not None:
            cu_q = cu_q.to(cu_k.dtype)
        table = o.page_table
        if table is not None:
            table = table.to(getattr(torch, self.config.page_dtype)).contiguous()
        query, key, value = (
            x.clone(memory_format=torch.contiguous_format) if copied else x
            for x, copied in zip((o.query, o.key, o.value), self.copied, strict=True)
        )
        return replace(
            o,
            query=query,
            key=key,
            value=value,
            cu_seqlens_q=cu_q,
            cu_seqlens_k=cu_k,
            page_table=table,
        )

    def form_words(
        self, others: Sequence[Tensor], dealt: int | None = None, tables: Sequence[Any] = ()
    ) -> bytes:
        """The arguments of a `Launcher` that do not change from call to call, as bytes.

        others: The matrices beside query, key and value. Their shapes follow from the form, so the
        cache needs their strides only. dealt: How many sequences the launch computes, by default
        all.
        """
        known = (dealt, *[x.stride() for x in others], *[x.strides for x in tables])
        packed = self.words.get(known)
        if packed is None:  # another thread may clear the words at any time
            steps = [step for x in others for step in strides(x)]
            steps += [step for x in tables for step in x.strides]
            dealt = self.batch if dealt is None else dealt
            words = (*self.sizes, dealt, *self.strides, *steps, *self.aux_strides)
            if len(self.words) >= FEW:
                self.words.clear()
            packed = self.words[known] = struct.pack(f"{len(words)}q", *words)
        return packed

    def call_words(
        self,
        readable: Operands[Tensor],
        others: Sequence[Tensor],
        order: Tensor | None,
        ctas: int,
        stream: int,
        tables: Sequence[Any] = (),
    ) -> list[int]:
        """The arguments of a `Launcher` that change from call to call, in its order."""
        o = readable
        words = [x.data_ptr() for x in (o.query, o.key, o.value, *others)]
        rows, keys = totals(o.query, o.key)
        words += (rows, keys if o.page_table is None else o.key.shape[0])
        lists = (*o.indices, order if o.jagged else None)
        words += [x.data_ptr() for x in lists if x is not None]
        words += [x.room.data_ptr() for x in tables]
        words += [x.data_ptr() for x in o.aux]
        words += o.scalars[: self.scalars]
        words += (ctas, stream)
        return words


def totals(query: Tensor, key: Tensor) -> tuple[int, int]:
    """The rows of query and of key: L where jagged, else M and N."""
    return query.shape[0 if query.dim() == JAGGED else 2], key.shape[
        0 if key.dim() == JAGGED else 2
    ]


def offsets_of(o: Operands[Tensor]) -> Tensor | None:
    """The offsets that tell how much work a sequence is: of the keys, if these are jagged."""
    return o.cu_seqlens_q if o.cu_seqlens_k is None else o.cu_seqlens_k


PLANS: dict[Hashable, LaunchPlan] = {}  # the keys are forms
_LOCK = threading.Lock()


def plan_of(operands: Operands[Tensor], fast: bool, skip: bool, kind: Kind | None) -> LaunchPlan:
    """The plan of a call, from the cache if a call of this form came before. Raises a GDPAError."""
    key = key_of(operands, fast, skip, kind)
    plan = PLANS.get(key)
    if plan is None:
        try:
            plan = build_plan(Form(*key))
        except GDPAError:
            check(operands)  # if it is what complains, its message has the sizes of this call
            raise
        # Only writers take the lock. A reader sees the old plan or the new one, and both are right.
        with _LOCK:
            while len(PLANS) >= MOST:
                del PLANS[next(iter(PLANS))]  # the oldest
            PLANS[key] = plan
    return plan


def build_plan(form: Form) -> LaunchPlan:
    o = example_of(form)
    check(o)
    devices = form.devices
    kind = form.kind or trusted_config_of(devices[0])
    if kind is None:
        raise GDPAError(f"there is no CuTe kernel for {devices[0]}")
    config = config_for(o, kind, form.fast, form.skip)
    if len(set(devices)) > 1:
        raise GDPAError("operands on several devices")
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
        gathered=not all(x.is_contiguous() for x in o.indices if x is not None)
        or (o.page_table is not None and dtype_name(o.page_table.dtype) != config.page_dtype),
        scalars=o.program.num_scalars,
        aligned=False not in form.tensors[2::3],
        example=o,
    )


def config_for(o: Operands[Tensor], kind: Kind, fast: bool, skip: bool) -> KernelConfig:
    batch, offsets = score_shape(o)[0], offsets_of(o)
    matrices, table = {"q": o.query, "k": o.key, "v": o.value}, o.page_table
    if table is not None:
        matrices = {"q": o.query, "t": table}
    return kind(
        dtype=dtype_name(o.query.dtype),
        head_dim=o.query.shape[-1],
        value_dim=slice_of(kind, o.value.shape[-1]),
        program=str(o.program),
        aux=tuple(dtype_name(x.dtype) for x in o.aux),
        jagged_q=o.cu_seqlens_q is not None,
        jagged_k=o.cu_seqlens_k is not None,
        offsets="int32" if offsets is None else dtype_name(offsets.dtype),
        shared=frozenset(
            letter
            for letter, x in matrices.items()
            if x.dim() != JAGGED and x.shape[0] == 1 != batch
        ),
        page=0 if table is None else o.key.shape[2],
        page_dtype="int64" if table is not None and table.dtype == torch.int64 else "int32",
        fast=fast,
        skip=skip,
        vectors=_vectors(o.aux, o.program),
        lookups=_lookups(o.aux, o.program),
        expanded=frozenset(number for number, x in enumerate(o.aux) if 0 in x.stride()),
        bounded=frozenset(boundable(o.program.aux) if skip else ()),
    )


def _complaint(config: KernelConfig, o: Operands[Tensor]) -> str:
    batch, heads, rows, cols = score_shape(o)
    if batch * heads * -(-max(rows, cols) // LEAST) >= MOST_TILES:
        return "too many tiles for the CuTe kernel, which numbers them in 32 bits"
    dtypes, dims = (o.query.dtype, o.value.dtype), (config.head_dim, config.value_dim)
    kind = type(config)
    page = strange_page(kind, config.page, config.cols) if config.page else ""
    return unsupported(kind, dtypes, dims, config.aux) or no_sums(kind, o.program) or page


def strides(matrix: Tensor) -> tuple[int, int, int]:
    """The strides of (batch, head, row), in elements."""
    # A dim of size 1 may have any stride. It gets 8 here, because TMA wants multiples of 16 bytes.
    known = matrix.stride()
    if 1 in matrix.shape:
        known = tuple(8 if n == 1 else s for n, s in zip(matrix.shape, known, strict=True))
    return (8, known[1], known[0]) if len(known) == 3 else (known[0], known[1], known[2])


def fits(matrix: Tensor) -> bool:
    """TMA can read the matrix in place. It cannot read an expanded one, for example."""
    unit = ALIGNMENT // matrix.element_size()
    in_place = matrix.stride(-1) == 1 and matrix.data_ptr() % ALIGNMENT == 0
    return in_place and all(step and step % unit == 0 for step in strides(matrix))


def aligned(matrix: Tensor) -> Tensor:
    return matrix if fits(matrix) else matrix.clone(memory_format=torch.contiguous_format)


def _vectors(aux: Sequence[Tensor], program: ScoreMod) -> frozenset[int]:
    """The aux operands that a thread can read 16 bytes at a time along the keys."""

    def side_by_side(tensor: Tensor, access: Sequence[str]) -> bool:
        unit = ALIGNMENT // tensor.element_size()
        steps = dict(zip(access, tensor.stride(), strict=True))
        return (
            "t" not in steps
            and steps.pop("kv_idx", 0) == 1
            and tensor.data_ptr() % ALIGNMENT == 0
            and all(step % unit == 0 for step in steps.values())
        )

    suitable = (side_by_side(x, spec.access) for x, spec in zip(aux, program.aux))
    return frozenset(number for number, fits in enumerate(suitable) if fits)


def _lookups(aux: Sequence[Tensor], program: ScoreMod) -> tuple[TableLayout, ...]:
    dims = {n: spec.access.index("t") for n, spec in enumerate(program.aux) if spec.is_table}
    return tuple(TableLayout(n, aux[n].shape[dim], aux[n].stride(dim)) for n, dim in dims.items())


def _by_letter(tensor: Tensor, access: Sequence[str]) -> list[int]:
    """The strides of an aux operand, in the order of `LETTERS`; 0 where it lacks a dim."""
    known = dict(zip(access, tensor.stride(), strict=True))
    return [known.get(letter, 0) for letter in LETTERS]
