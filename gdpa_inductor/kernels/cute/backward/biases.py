"""Gradients of biases: of operands that are added to the score, up to a constant factor (`roots`).

The kernel stores the gradient of one of them, a number for each score, in 16 bits. The gradient of
each is a sum of these. To bound their memory, a call is launched in parts: some batches, or some
heads, at a time. Every sum has one order. Host only.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ....operands import Operands, score_shape
from ....program.expr import AXES
from ....program.score_mod import Aux
from ....reference import aux_from_axes, reduce_to
from .roots import factor_of

ROOM = 256 << 20  # bytes of scores at a time, where a part has more than one batch or key head
GOOD = 0.95  # of the best use of the CTAs is good enough
ALIGNED = 8  # scores: TMA stores rows that begin at multiples of 16 bytes


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
        return tensor.narrow(dim, self.first * step, self.count * step)


def gradients(
    grad_out: Tensor,
    o: Operands[Tensor],
    needs: Sequence[bool],
    keys: int,
    ctas: int,
    launch: Callable[[Part], None],
) -> list[Tensor]:
    """The asked ones of dQ, dK, dV and those of the operands, contiguous. keys: of a tile."""
    given, o = o, _unshared(o)
    wanted = [number for number, need in enumerate(needs[3:]) if need]
    rooms = {x: y.new_empty(y.shape) for x, y in zip("qkv", (o.query, o.key, o.value))}
    shares = _shares(o, 0 if _has_batch(o, wanted) else 1, keys, ctas)
    sums = [BiasSum(o, number, wanted[0], shares) for number in wanted]
    direct = sums[0] if len(sums) == 1 and sums[0].is_the_scores else None
    for share, scores in _scores(o, shares, direct):
        own = {x: share.matrix(y, x) for x, y in rooms.items()}
        launch(Part(share.of(o), share.matrix(grad_out, "q"), own, wanted[0], scores))
        for each in sums if direct is None else []:
            each.add(share, scores)
    matrices = zip("qkv", (given.query, given.key, given.value), needs, strict=False)
    found = [reduce_to(rooms[letter], x) for letter, x, need in matrices if need]
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
        whole = self.spec.access == AXES and self.operand.dtype == o.query.dtype
        self.is_the_scores = whole and self.operand.shape[-1] % ALIGNED == 0

    def add(self, share: Share, scores: Tensor) -> None:
        exact = self.adds or self.factor != 1.0 or self.total.dtype != scores.dtype
        kind = torch.float32 if exact else scores.dtype
        if self.summed:
            scores = scores.sum(self.summed, keepdim=True, dtype=kind)
        if self.factor != 1.0:
            scores = scores.to(kind) * self.factor
        found, own = aux_from_axes(scores, self.spec), share.operand(self.total, self.spec)
        (own.add_ if self.adds else own.copy_)(found)

    def result(self) -> Tensor:
        return self.total.to(self.operand.dtype)


def _unshared(o: Operands[Tensor]) -> Operands[Tensor]:
    """Each batch has matrices of its own."""
    batch = score_shape(o)[0]
    matrices = (x.expand(batch, -1, -1, -1).contiguous() for x in (o.query, o.key, o.value))
    query, key, value = (
        x if x.shape[0] == batch else y for x, y in zip((o.query, o.key, o.value), matrices)
    )
    return replace(o, query=query, key=key, value=value)


def _has_batch(o: Operands[Tensor], wanted: Sequence[int]) -> bool:
    return any("b" in o.program.aux[number].axes for number in wanted)


def _shares(o: Operands[Tensor], axis: int, keys: int, ctas: int) -> list[Share]:
    """As few batches or heads at a time as keep the CTAs busy."""
    (batch, heads, rows, cols), key_heads = score_shape(o), o.key.shape[1]
    units = (batch, key_heads)[axis]
    tiles = batch * key_heads * -(-cols // keys) // max(units, 1)
    size = batch * heads * rows * _width(cols) * o.query.element_size() // max(units, 1)

    def use(count: int) -> float:
        """The share of the CTAs that work, until the last has ended."""
        return count * tiles / (max(1, -(-count * tiles // ctas)) * ctas)

    counts = [n for n in range(1, units + 1) if n == 1 or n * size <= ROOM]
    best = max(map(use, counts), default=0.0)
    count = next((n for n in counts if use(n) >= GOOD * best), 1)
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
            yield share, share.operand(direct.total, direct.spec)
            continue
        batch, heads = share.matrix(o.query, "q").shape[:2]
        if room is None or room.shape[:2] != (batch, heads):
            room = o.query.new_empty((batch, heads, rows, _width(cols)))
        yield share, room[..., :cols]


def _width(cols: int) -> int:
    return -(-cols // ALIGNED) * ALIGNED
