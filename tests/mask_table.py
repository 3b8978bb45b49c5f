"""The masks of recommenders and of attention in general, by name: what `docs/masks.md` lists.

`python -m tests.mask_table` prints the table of the docs: the share of the tiles of 128 rows and 64
columns that are left out, full and mixed at 2048 rows and columns, over a batch of lengths.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from gdpa_inductor.program.expr import AXES, INDEX, SCORE, Expr, aux, call
from gdpa_inductor.program.score_mod import Aux, ScoreMod
from gdpa_inductor.program.simplify import TRUE
from gdpa_inductor.program.tile_classes import TileClasses, classify
from tests._tiles import Grid

SIZES, TILE = (8, 4, 2048, 2048), (128, 64)
B, H, M, N = (INDEX[name] for name in AXES)
LENGTHS = torch.tensor([2048, 1792, 1537, 1280, 1000, 640, 333, 64])
TARGETS = torch.tensor([20, 16, 1, 50, 0, 64, 8, 3])
# Four segments of a row, of other lengths in each sample; the first and last key of each head.
SEGMENTS = torch.stack([torch.arange(2048) * (3 + i) // 2048 for i in range(8)])
FIRST, LAST = torch.tensor([0, 256, 700, 1024]), torch.tensor([2048, 1024, 1300, 2048])


def both(*terms: Expr) -> Expr:
    result = terms[0]
    for term in terms[1:]:
        result = call("and", result, term)
    return result


def either(x: Expr, y: Expr) -> Expr:
    return call("or", x, y)


def hstu(
    causal: bool = True, targets: bool = False, window: int = 0, context: int = 0, tail: int = 0
) -> Expr:
    """The mask of HSTU's reference. a0 [b]: lengths, a1 [b]: numbers of targets.

    window: the longest distance (max_attn_len). context: the length of the prefix that is seen by
    itself in full. tail: how many of the last rows ignore the window (min_full_attn_seq_len).
    """
    rows, cols, last = M, N, aux(0, "i")
    if context:
        rows, cols = (call("maximum", x - (context - 1), 0) for x in (rows, cols))
        last = last - (context - 1)
    if targets:
        last = last - aux(1, "i")
        rows, cols = (call("minimum", x, last) for x in (rows, cols))
    apart = rows - cols
    if not causal:
        apart = call("where", call("gt", apart, 0), apart, -apart)
    valid = either(call("eq", M, N), call("gt", apart, 0))
    if window:
        near = call("le", apart, window)
        valid = both(valid, either(near, call("ge", rows, last - tail)) if tail else near)
    if context:
        valid = either(valid, both(call("eq", rows, 0), call("lt", cols, last)))
    return valid


@dataclass(frozen=True)
class Mask:
    """condition: which scores count. aux: operands on their axes, with their declarations.

    bounded: the numbers of operands whose bounds a kernel would have to give.
    """

    name: str
    condition: Callable[[], Expr]
    aux: tuple[tuple[Aux, torch.Tensor], ...] = ()
    bounded: tuple[int, ...] = ()

    def classified(self) -> TileClasses:
        weight = call("where", self.condition(), call("silu", SCORE), 0.0)
        program = ScoreMod(weight, tuple(spec for spec, _ in self.aux))
        return classify([weight, program.gradients.score], program.aux, self.bounded)

    def grid(self) -> Grid:
        return Grid(SIZES, TILE, [tensor for _, tensor in self.aux])


def per_sample(values: torch.Tensor) -> tuple[Aux, torch.Tensor]:
    return Aux("i", ("b",)), values.view(-1, 1, 1, 1)


def per_head(values: torch.Tensor) -> tuple[Aux, torch.Tensor]:
    return Aux("i", ("h",)), values.view(1, -1, 1, 1)


OF_HSTU = (per_sample(LENGTHS), per_sample(TARGETS))
PADDED = (torch.arange(2048) < LENGTHS[:, None]).view(8, 1, 1, 2048)
ROWS, COLUMNS = SEGMENTS.view(8, 1, -1, 1), SEGMENTS.view(8, 1, 1, -1)

# fmt: off
MASKS = [
    Mask("causal", lambda: call("ge", M, N)),
    Mask("strictly causal", lambda: call("gt", M, N)),
    Mask("sliding window, 256 back", lambda: both(call("ge", M, N), call("le", M - N, 256))),
    Mask("window, 128 to both sides", lambda: call("le", call("abs", M - N), 128)),
    Mask("window and 64 global columns",
         lambda: both(call("ge", M, N), either(call("le", M - N, 256), call("lt", N, 64)))),
    Mask("blocks of 256, diagonal",
         lambda: call("eq", call("floordiv", M, 256), call("floordiv", N, 256))),
    Mask("blocks of 256, causal",
         lambda: call("ge", call("floordiv", M, 256), call("floordiv", N, 256))),
    Mask("every 4th column", lambda: call("eq", call("mod", N, 4), 0)),
    Mask("lengths of keys", lambda: call("lt", N, aux(0, "i")), OF_HSTU[:1]),
    Mask("lengths of both, causal",
         lambda: both(call("ge", M, N), call("lt", M, aux(0, "i")), call("lt", N, aux(0, "i"))),
         OF_HSTU[:1]),
    Mask("an interval of keys per head",
         lambda: both(call("ge", N, aux(0, "i")), call("lt", N, aux(1, "i"))),
         (per_head(FIRST), per_head(LAST))),
    Mask("HSTU", hstu, OF_HSTU[:1]),
    Mask("HSTU, not causal", lambda: hstu(causal=False), OF_HSTU[:1]),
    Mask("HSTU, targets", lambda: hstu(targets=True), OF_HSTU),
    Mask("HSTU, targets, not causal", lambda: hstu(causal=False, targets=True), OF_HSTU),
    Mask("HSTU, window", lambda: hstu(window=256), OF_HSTU[:1]),
    Mask("HSTU, window, full tail", lambda: hstu(window=256, tail=128), OF_HSTU[:1]),
    Mask("HSTU, context", lambda: hstu(context=10), OF_HSTU[:1]),
    Mask("HSTU, targets, context", lambda: hstu(targets=True, context=10), OF_HSTU),
    Mask("HSTU, targets, window, full tail",
         lambda: hstu(targets=True, window=256, tail=128), OF_HSTU),
    Mask("HSTU, all of it",
         lambda: hstu(targets=True, window=256, context=10, tail=128), OF_HSTU),
    Mask("padding, an operand [B, N]", lambda: aux(0, "b"), ((Aux("b", ("b", "kv_idx")), PADDED),)),
    Mask("padding, with bounds", lambda: aux(0, "b"), ((Aux("b", ("b", "kv_idx")), PADDED),), (0,)),
    Mask("segments, operands [B, M]", lambda: call("eq", aux(0, "i"), aux(1, "i")),
         ((Aux("i", ("b", "q_idx")), ROWS), (Aux("i", ("b", "kv_idx")), COLUMNS))),
    Mask("segments, with bounds", lambda: call("eq", aux(0, "i"), aux(1, "i")),
         ((Aux("i", ("b", "q_idx")), ROWS), (Aux("i", ("b", "kv_idx")), COLUMNS)), (0, 1)),
]
# fmt: on


@dataclass(frozen=True)
class Shares:
    """Of all tiles: what the classification finds, and what is there to be found."""

    zero: float
    full: float
    all_masked: float
    all_open: float

    def row(self, name: str) -> str:
        columns = (self.zero, self.full, 1 - self.zero - self.full, self.all_masked, self.all_open)
        return f"| {name} | " + " | ".join(f"{100 * x:.1f} %" for x in columns) + " |"


def shares(mask: Mask) -> Shares:
    """Measure one mask; raises AssertionError where a verdict is wrong."""
    grid = mask.grid()
    classes = mask.classified()
    zero, full = grid.verdicts(classes)
    if classes.full is TRUE:  # no condition to drop
        full = torch.zeros_like(full)
    (elements,) = grid.elements([mask.condition()])
    masked, opened = ~grid.tiles(elements, "any"), grid.tiles(elements, "all")
    assert not (zero & ~masked).any() and not (full & ~opened).any(), mask.name
    return Shares(*(float(x.expand_as(zero).float().mean()) for x in (zero, full, masked, opened)))


def table() -> list[str]:
    head = "| mask | left out | full | mixed | all masked | all open |"
    return [head, "|---|---|---|---|---|---|", *(shares(mask).row(mask.name) for mask in MASKS)]


if __name__ == "__main__":
    print("\n".join(table()))
