"""Gradients of biases: of operands that are added to the score, up to a constant factor (`roots`).

The kernel stores the gradient of one of them, a number for each score, in 16 bits. The gradient of
each is a sum of these. To bound their memory, a call is launched in parts: some batches, or some
heads, at a time. Every sum has one order. Host only.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ....operands import Operands, aux_on_axes, score_shape
from ....program.expr import AXES
from ....program.score_mod import Aux
from .roots import factor_of

ROOM = 256 << 20  # bytes of scores at a time, where a part has more than one batch or key head
GOOD = 0.95  # of the best use of the CTAs is as good
ALIGNED = 8  # scores: TMA stores rows that begin at multiples of 16 bytes

# Stores factor · the sum of scores, if it can: see `totals`.
Total = Callable[[Tensor, Tensor, float], bool]


@dataclass(frozen=True)
class Part:
    """One launch. rooms: for dQ, dK, dV, by letter. stored: the operand of the program whose
    gradient goes to `scores` [B, H, M, N]."""

    operands: Operands[Tensor]
    grad_out: Tensor
    rooms: dict[str, Tensor]
    stored: int
    scores: Tensor


@dataclass(frozen=True)
class Share:
    """`count` batches from `first` on (axis 0), or key heads (axis 1), each with `group` query
    heads."""

    axis: int
    first: int
    count: int
    group: int

    def matrix(self, matrix: Tensor, letter: str) -> Tensor:
        """Of a matrix with the heads of "q", "k" or "v"."""
        return self._narrowed(matrix, self.axis, 1 if letter in "kv" else self.group)

    def operand(self, tensor: Tensor, spec: Aux) -> Tensor:
        """Of an operand of the program, or of its gradient."""
        letter = AXES[self.axis]
        if letter not in spec.access:
            return tensor
        return self._narrowed(tensor, spec.access.index(letter), self.group)

    def of(self, o: Operands[Tensor]) -> Operands[Tensor]:
        aux = [self.operand(x, spec) for x, spec in zip(o.aux, o.program.aux, strict=True)]
        query, key, value = (self.matrix(x, y) for x, y in zip((o.query, o.key, o.value), "qkv"))
        return replace(o, query=query, key=key, value=value, aux=aux)

    def _narrowed(self, tensor: Tensor, dim: int, group: int) -> Tensor:
        step = group if self.axis else 1
        whole = tensor.shape[dim] == self.count * step
        return tensor if whole else tensor.narrow(dim, self.first * step, self.count * step)


def gradients(
    grad_out: Tensor,
    o: Operands[Tensor],
    needs: Sequence[bool],
    keys: int,
    ctas: int,
    launch: Callable[[Part], None],
    fast_total: Total,
) -> list[Tensor]:
    """The asked ones of dQ, dK, dV and those of the operands, contiguous. keys: of a tile."""
    given, o = o, _unshared(o)
    wanted = [number for number, need in enumerate(needs[3:]) if need]
    rooms = {x: y.new_empty(y.shape) for x, y in zip("qkv", (o.query, o.key, o.value))}
    direct = len(wanted) == 1 and _is_the_scores(o, wanted[0])
    axis = 0 if any("b" in o.program.aux[number].axes for number in wanted) else 1
    shares = _shares(o, axis, keys, ctas, None if direct else ROOM)
    sums = [BiasSum(o, number, wanted[0], shares) for number in wanted]
    for share, scores in _scores(o, shares, sums[0] if direct else None):
        own = {x: share.matrix(y, x) for x, y in rooms.items()}
        launch(Part(share.of(o), share.matrix(grad_out, "q"), own, wanted[0], scores))
        for each in [] if direct else sums:
            each.add(share, scores, fast_total)
    matrices = zip("qkv", (given.query, given.key, given.value), needs, strict=False)
    found = [_like(rooms[letter], x) for letter, x, need in matrices if need]
    return found + [each.result() for each in sums]


class BiasSum:
    """The gradient of operand `number`, from that of operand `stored`."""

    def __init__(
        self, o: Operands[Tensor], number: int, stored: int, shares: Sequence[Share]
    ) -> None:
        self.spec, self.operand = o.program.aux[number], o.aux[number]
        program = str(o.program)
        self.factor = factor_of(program, stored) / factor_of(program, number)
        self.summed = [d for d, letter in enumerate(AXES) if letter not in self.spec.axes]
        self.adds = shares[0].axis in self.summed and len(shares) > 1
        kind = torch.float32 if self.adds else self.operand.dtype
        make = torch.zeros if self.adds else torch.empty
        self.total = make(self.operand.shape, dtype=kind, device=self.operand.device)

    def add(self, share: Share, scores: Tensor, fast_total: Total) -> None:
        own = aux_on_axes(share.operand(self.total, self.spec), self.spec)
        if self.summed and not self.adds and fast_total(scores, own, self.factor):
            return
        if self.summed:
            scores = scores.sum(self.summed, keepdim=True, dtype=torch.float32)
        if self.factor != 1.0:
            scores = scores.float() * self.factor
        (own.add_ if self.adds else own.copy_)(scores)

    def result(self) -> Tensor:
        return self.total.to(self.operand.dtype)


def _unshared(o: Operands[Tensor]) -> Operands[Tensor]:
    """Each batch has matrices of its own."""
    batch, matrices = score_shape(o)[0], (o.query, o.key, o.value)
    if all(x.shape[0] == batch for x in matrices):
        return o
    query, key, value = (
        x if x.shape[0] == batch else x.expand(batch, -1, -1, -1).contiguous() for x in matrices
    )
    return replace(o, query=query, key=key, value=value)


def _like(grad: Tensor, operand: Tensor) -> Tensor:
    """Summed over the batch where that shares the operand."""
    if grad.shape == operand.shape:
        return grad
    return grad.sum(0, keepdim=True, dtype=torch.float32).to(operand.dtype)


def _is_the_scores(o: Operands[Tensor], number: int) -> bool:
    """Whether the gradient of an operand is what the kernel stores, as it lies."""
    operand, shape = o.aux[number], score_shape(o)
    on_axes = aux_on_axes(operand.new_empty(operand.shape, device="meta"), o.program.aux[number])
    alike = operand.dtype == o.query.dtype and on_axes.shape == shape and on_axes.is_contiguous()
    return alike and shape[-1] % ALIGNED == 0


def _shares(o: Operands[Tensor], axis: int, keys: int, ctas: int, room: int | None) -> list[Share]:
    """As many batches or heads at a time as there is room for, if that keeps the CTAs busy."""
    (batch, heads, rows, cols), key_heads = score_shape(o), o.key.shape[1]
    units = (batch, key_heads)[axis]
    tiles = batch * key_heads * -(-cols // keys) // max(units, 1)
    size = batch * heads * rows * _width(cols) * o.query.element_size() // max(units, 1)

    def use(count: int) -> float:
        """The share of the CTAs that work, until the last has ended."""
        return count * tiles / (max(1, -(-count * tiles // ctas)) * ctas)

    if room is None:
        return [Share(axis, 0, units, heads // max(key_heads, 1))]
    counts = [n for n in range(1, units + 1) if n == 1 or n * size <= room]
    best = max(map(use, counts), default=0.0)
    count = max((n for n in counts if use(n) >= GOOD * best), default=1)
    group = heads // max(key_heads, 1)
    return [Share(axis, i, min(count, units - i), group) for i in range(0, max(units, 1), count)]


def _scores(
    o: Operands[Tensor], shares: Sequence[Share], direct: BiasSum | None
) -> Iterator[tuple[Share, Tensor]]:
    """For each share, where the scores' gradient goes. direct: it is what is asked for."""
    *_, rows, cols = score_shape(o)
    room: Tensor | None = None
    for share in shares:
        if direct is not None:
            yield share, aux_on_axes(direct.total, direct.spec)
            continue
        batch, heads = share.matrix(o.query, "q").shape[:2]
        if room is None or room.shape[:2] != (batch, heads):
            room = o.query.new_empty((batch, heads, rows, _width(cols)))
        yield share, room[..., :cols]


def _width(cols: int) -> int:
    return -(-cols // ALIGNED) * ALIGNED
