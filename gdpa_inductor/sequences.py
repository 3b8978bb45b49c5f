"""Convert jagged rows [L, …] to padded ones [B, N, …] and back, by index arithmetic in torch.

`pad` and `unpad` are each other's transpose, so each is the gradient of the other. Lengths stay on
the device, and no size depends on them. Some rows are never read: rows past a sequence's end or
past N, and rows that no sequence owns. They give zeros, whatever they hold.

As operators they have fbgemm's names. They run in CUDA graphs, and compile for all lengths at once:

    gdpa::jagged_to_padded_dense(values [L, …], offsets [B+1], max_length) -> [B, max_length, …]
    gdpa::dense_to_jagged(dense [B, N, …], offsets [B+1], total) -> [total, …]

Offsets may decrease or leave 0..L. A sequence that ends before it begins is empty, and a row
outside is zero. On a CPU a row may belong to several sequences. As in fbgemm, it is padded for each
of them, unpadded from the last one, and gets the gradient of the last one. On a GPU such offsets
read and write within bounds, and the result is undefined.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ._compat import operators
from .operands import Operands
from .program.score_mod import JAGGED, Aux, ScoreMod


@dataclass(frozen=True)
class Sequences:
    """A `JaggedRows` of tensors: L is `total`, N is `longest`."""

    cu_seqlens: Tensor
    total: Any
    longest: Any

    @functools.cached_property
    def offsets(self) -> Tensor:
        return self.cu_seqlens.to(torch.int64)

    def _arange(self, size: Any) -> Tensor:
        return torch.arange(size, device=self.offsets.device)

    @functools.cached_property
    def valid(self) -> Tensor:
        """[B, N]: is there such a row."""
        return self._arange(self.longest) < self.offsets.diff().unsqueeze(1)

    def pad(self, values: Tensor) -> Tensor:
        """[L, …] to [B, N, …]."""
        return _with_zero(values)[self._rows]

    @functools.cached_property
    def _rows(self) -> Tensor:
        """[B, N]: which row stands at each place, L for none."""
        rows = self.offsets[:-1].unsqueeze(1) + self._arange(self.longest)
        inside = self.valid & (rows >= 0) & (rows < self.total)
        return torch.where(inside, rows, self.total)

    def unpad(self, padded: Tensor) -> Tensor:
        """[B, N, …] to [L, …]."""
        batch = self.offsets.shape[0] - 1
        index = self._last() if self.offsets.device.type == "cpu" else self._searched()
        flat = padded.contiguous().view(batch * self.longest, *padded.shape[2:])
        return _with_zero(flat)[index]

    def _last(self) -> Tensor:
        """[L]: the last place of each row in the flat padded form, B·N for none."""
        count = (self.offsets.shape[0] - 1) * self.longest
        none = self.offsets.new_full((self.total + 1,), -1)
        places = none.scatter_reduce(0, self._rows.flatten(), self._arange(count), "amax")
        return torch.where(places < 0, count, places)[:-1]

    def _searched(self) -> Tensor:
        """The same by a search, for offsets that do not decrease."""
        batch, rows = self.offsets.shape[0] - 1, self._arange(self.total)
        ends = self.offsets[1:].clone()  # Inductor of torch 2.11 searches no view
        owner = torch.searchsorted(ends, rows, right=True)
        place = rows - self.offsets[owner]
        inside = (owner < batch) & (place >= 0) & (place < self.longest)
        return torch.where(inside, owner * self.longest + place, batch * self.longest)


def _with_zero(values: Tensor) -> Tensor:
    """One row of zeros at the end, for what takes no part."""
    return torch.cat([values, values.new_zeros(1, *values.shape[1:])])


@dataclass(frozen=True)
class Padding:
    """The jagged sides of a call, by letter. The methods leave a dense side as it is."""

    sides: dict[str, Sequences]

    @staticmethod
    def of(o: Operands[Tensor]) -> Padding:
        return Padding({letter: Sequences(*side) for letter, side in o.sides.items()})

    @property
    def valid(self) -> list[Tensor]:
        """For each side, [B, 1, M, 1] or [B, 1, 1, N]: is there such a row."""
        return [side.valid.unsqueeze(1).unsqueeze(_LAST[x]) for x, side in self.sides.items()]

    @property
    def mask(self) -> Tensor | None:
        """[B, 1, M|1, N|1]: is there such a score; None where all are."""
        return functools.reduce(torch.bitwise_and, self.valid) if self.sides else None

    def pad(self, o: Operands[Tensor]) -> Operands[Tensor]:
        """The same call on dense operands."""
        query, key, value = (
            self.heads(o.query, "q"),
            self.heads(o.key, "k"),
            self.heads(o.value, "k"),
        )
        aux = [self.pad_aux(t, spec) for t, spec in zip(o.aux, o.program.aux, strict=True)]
        return Operands(query, key, value, aux, o.scalars, padded_program(o.program))

    def heads(self, values: Tensor, side: str) -> Tensor:
        """[L,H,D] to [B,H,N,D]."""
        return self.sides[side].pad(values).transpose(1, 2) if side in self.sides else values

    def unpad_heads(self, padded: Tensor, side: str) -> Tensor:
        """[B,H,N,D] to [L,H,D], contiguous."""
        return self.sides[side].unpad(padded.transpose(1, 2)) if side in self.sides else padded

    def pad_aux(self, tensor: Tensor, spec: Aux) -> Tensor:
        """An aux operand as `padded_program` reads it."""
        for dim, letter in _jagged_dims(spec):
            return self.sides[letter].pad(tensor.movedim(dim, 0))
        return tensor

    def unpad_aux(self, grad: Tensor, spec: Aux) -> Tensor:
        """The gradient of the operand, from that of the padded one."""
        for dim, letter in _jagged_dims(spec):
            return self.sides[letter].unpad(grad).movedim(0, dim)
        return grad


_LAST = {"q": 3, "k": 2}  # the dim of the other side, in a mask of one


def _jagged_dims(spec: Aux) -> list[tuple[int, str]]:
    """The dimension of an aux operand that counts jagged rows, and of which side. One at most."""
    return [(dim, letter) for dim, letter in enumerate(spec.access) if letter in JAGGED]


@functools.lru_cache(maxsize=256)
def padded_program(program: ScoreMod) -> ScoreMod:
    """The program over operands that `Padding.pad` made."""
    return replace(program, aux=tuple(_padded_spec(spec) for spec in program.aux))


def _padded_spec(spec: Aux) -> Aux:
    axes: Sequence[str] = ()
    for letter, position in JAGGED.items():
        axes = ("b", position) if letter in spec.access else axes
    rest = tuple(entry for entry in spec.access if entry not in JAGGED)
    return Aux(spec.kind, (*axes, *rest))


def _pad_fake(values: Tensor, offsets: Tensor, max_length: int) -> Tensor:
    return values.new_empty(offsets.shape[0] - 1, max_length, *values.shape[1:])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    values, offsets, _ = inputs
    ctx.save_for_backward(offsets)
    ctx.sizes = values.shape


def _pad_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return torch.ops.gdpa.dense_to_jagged(grad, *ctx.saved_tensors, ctx.sizes[0]), None, None


def _unpad_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return torch.ops.gdpa.jagged_to_padded_dense(grad, *ctx.saved_tensors, ctx.sizes[1]), None, None


_LIBRARY = torch.library.Library("gdpa", "FRAGMENT")
operators.define(
    _LIBRARY,
    "jagged_to_padded_dense(Tensor values, Tensor offsets, SymInt max_length) -> Tensor",
    lambda values, offsets, longest: Sequences(offsets, values.shape[0], longest).pad(values),
    _pad_fake,
    backward=_pad_backward,
    save=_save,
)
operators.define(
    _LIBRARY,
    "dense_to_jagged(Tensor dense, Tensor offsets, SymInt total) -> Tensor",
    lambda dense, offsets, total: Sequences(offsets, total, dense.shape[1]).unpad(dense),
    lambda dense, offsets, total: dense.new_empty(total, *dense.shape[2:]),
    backward=_unpad_backward,
    save=_save,
)
