"""docs/gallery.md and its pictures: `python -m docs.tools.gallery`.

A mask is a function of plain torch. `explain` reads it, and the classification that the kernels use
(`classify_by_tables`) says of each tile whether it is skipped, computed without the mask, or
computed with it. An activation is drawn from its score program.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import gdpa_inductor
from gdpa_inductor.program.expr import AXES
from gdpa_inductor.program.score_mod import Aux, ScoreMod
from gdpa_inductor.program.simplify import TRUE
from gdpa_inductor.program.tile_classes import boundable, classify_by_tables
from tests._tiles import Grid

from .svg import COLOURS, FAINT, FONT, GREY, text

ROOT = Path(__file__).parents[2]
PAGE, PICTURES = ROOT / "docs" / "gallery.md", ROOT / "docs" / "gallery"
N, TILE, CELL = 1024, 64, 9
BLUE, AMBER = COLOURS[:2]
STATES = {"computed whole": BLUE, "computed with the mask": AMBER, "skipped": FAINT}
LENGTHS = torch.tensor([700, 300])
SEGMENTS = (torch.arange(N) * torch.tensor([[3], [6]])).div(N, rounding_mode="floor")
TIMES = (torch.arange(N) ** 2 // N).expand(2, N)


def causal(i, j):
    return i >= j


def window(i, j):
    return (i >= j) & (i - j < 256)


def both_sides(i, j):
    return (i - j).abs() <= 128


def sinks(i, j):
    return (i >= j) & ((i - j < 256) | (j < 64))


def prefix(i, j):
    return (i >= j) | (j < 200)


def context(i, j):
    return (i >= j) | ((i < 128) & (j < 640))


def blocks(i, j):
    return i // 256 == j // 256


def dilated(i, j):
    return (i >= j) & ((i - j) % 4 == 0)


def dilated_blocks(i, j):
    return (i >= j) & ((i // 64 - j // 64) % 3 == 0)


def key_lengths(i, j, lengths):  # [B]
    return j < lengths[:, None, None, None]


def candidates(i, j, history):  # [B]
    history = history[:, None, None, None]
    return (torch.minimum(i, history) > torch.minimum(j, history)) | (i == j)


def segments(i, j, segment):  # [B, N]
    return segment[:, None, :, None] == segment[:, None, None, :]


def recent(i, j, seconds):  # [B, N], integers
    age = seconds[:, None, :, None] - seconds[:, None, None, :]
    return (i >= j) & (age < 300)


def per_head(i, j, size):  # [H]
    return (i - j).abs() < size[:, None, None]


@dataclass(frozen=True)
class Mask:
    """keep: the mask in torch, of `i` [N, 1], `j` [N] and perhaps one operand.

    shown: the words, sample and head of each picture.
    """

    name: str
    words: str
    keep: Callable[..., Tensor]
    operand: Tensor | None = None
    shown: Sequence[tuple[str, int, int]] = (("", 0, 0),)


TWO = (("700", 0, 0), ("300", 1, 0))
MASKS = (
    Mask("Causal", "A query sees itself and everything before.", causal),
    Mask("Sliding window", "A query sees the latest 256 keys.", window),
    Mask("Window to both sides", "An encoder looks 128 places to the left and right.", both_sides),
    Mask("Window with global keys", "A window, and 64 first keys that all queries see.", sinks),
    Mask("Prefix", "All queries see the first 200 keys, as in a prefix language model.", prefix),
    Mask("Contextual rows", "The first 128 rows see the history; the others are causal.", context),
    Mask("Blocks", "Queries see the keys of their own block of 256.", blocks),
    Mask("Dilated", "Every fourth key. Each tile has some, so only the upper half is skipped.",
         dilated),
    Mask("Dilated by blocks", "Every third block: nearly as sparse, and most tiles are skipped.",
         dilated_blocks),
    Mask("Lengths", "Padded keys do not count. Kernels read the lengths, the host never does.",
         key_lengths, LENGTHS, TWO),
    Mask("HSTU's candidates", "Causal; the rows past the history see it, and themselves.",
         candidates, LENGTHS, TWO),
    Mask("Segments", "Several documents are packed into one row.", segments, SEGMENTS,
         (("3 documents", 0, 0), ("6 documents", 1, 0))),
    Mask("Time window", "Events of the last 300 seconds.", recent, TIMES),
    Mask("A window per head", "Heads look less far or farther.", per_head,
         torch.tensor([64, 384]), (("64", 0, 0), ("384", 0, 1))),
)  # fmt: skip


def program_of(weights: Callable[..., Tensor], *operands: Tensor) -> ScoreMod:
    """What the backend reads in `weights(s) @ v`.

    Raises:
        ValueError: it is not fused.
    """
    q, k, v = torch.zeros(3, 2, 2, N, 16)

    def attend(q, k, v, *operands):
        return weights(q @ k.mT, *operands) @ v

    torch._dynamo.reset()
    report = gdpa_inductor.explain(attend, profit=False)(q, k, v, *operands)
    if len(report.matches) != 1:
        raise ValueError(str(report))
    return report.matches[0].problem.program


def states(mask: Mask) -> tuple[Tensor, str]:
    """[B, H, tiles, tiles] of indices into STATES; and the formula."""

    def weights(s, *operands):
        i, j = torch.arange(N)[:, None], torch.arange(N)
        return torch.where(mask.keep(i, j, *operands), F.silu(s), 0.0)

    operands = () if mask.operand is None else (mask.operand,)
    program = program_of(weights, *operands)
    assert all(spec.axes for spec in program.aux), "a mask that stays a tensor"
    terms = [program.weight, program.gradients.score]
    classes = classify_by_tables(terms, program.aux, boundable(program.aux))
    grid = Grid((2, 2, N, N), (TILE, TILE), [placed(spec, *operands) for spec in program.aux])
    empty, whole = grid.verdicts(classes)
    if classes.full is TRUE:
        raise ValueError(f"{mask.name}: no condition was found")
    return torch.where(empty, 2, torch.where(whole, 0, 1)), program.formula


def placed(spec: Aux, operand: Tensor) -> Tensor:
    """An operand along the axes of its access map, [B|1, H|1, M|1, N|1]."""
    named = [axis for axis in spec.access if axis != "-"]
    return operand.view([operand.shape[named.index(axis)] if axis in named else 1 for axis in AXES])


def picture(mask: Mask, classes: Tensor) -> str:
    """The tiles of each of `shown`, side by side: queries downward, keys to the right."""
    side = N // TILE * CELL
    top = 20 if mask.shown[0][0] else 2
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {len(mask.shown) * (side + 24)} '
        f'{side + top + 2}" width="{len(mask.shown) * (side + 24)}" role="img" '
        f'font-family="{FONT}" font-size="12" fill="{GREY}">',
        f"<title>{escape(mask.name)}: {escape(shares(classes))}</title>",
    ]
    for place, (words, b, h) in enumerate(mask.shown):
        left = place * (side + 24) + 2
        lines += [text(left, 12, words)] if words else []
        for number, colour in enumerate(STATES.values()):
            cells = (classes[b, h] == number).nonzero().tolist()
            path = "".join(
                f"M{left + x * CELL} {top + y * CELL}h{CELL - 1}v{CELL - 1}h-{CELL - 1}z"
                for y, x in cells
            )
            lines += [f'<path d="{path}" fill="{colour}"/>'] if path else []
    return "\n".join([*lines, "</svg>", ""])


def shares(classes: Tensor) -> str:
    """Of all tiles: `47 % skipped, 47 % computed whole, 6 % computed with the mask`."""
    parts = {name: (classes == number).float().mean().item() for number, name in enumerate(STATES)}
    ordered = sorted(parts, key=lambda name: name != "skipped")
    return ", ".join(f"{parts[name]:.0%} {name}" for name in ordered).replace("%", " %")


@dataclass(frozen=True)
class Activation:
    """spelling: the weights of scores s [.., N, N] in torch; n is the number of keys."""

    name: str
    words: str
    spelling: str


ACTIVATIONS = (
    Activation("SiLU over the length", "HSTU", "F.silu(s) / n"),
    Activation("GELU", "PFFN, InterFormer", "F.gelu(s)"),
    Activation("tanh-GELU", "the fast form", 'F.gelu(s, approximate="tanh")'),
    Activation("Squared ReLU", "GAU, Primer", "F.relu(s / 2) ** 2"),
    Activation("ReLU over the length", "ReLU attention in ViT", "F.relu(s) / n"),
    Activation("Sigmoid with a bias", "sigmoid attention", "torch.sigmoid(s - math.log(n))"),
    Activation("Laplace", "MEGA, GAU", "(1 + torch.erf((s - 0.707) / 0.4)) / 2"),
    Activation("Tanh", "signed weights", "torch.tanh(s)"),
    Activation("Softplus", "smooth and positive", "F.softplus(s)"),
    Activation("ELU + 1", "as in linear attention", "F.elu(s) + 1"),
    Activation("Shifted exponential", "softmax without its sum", "torch.exp(s - 4)"),
    Activation("Your own", "any element-wise function", "torch.where(s > 0, s * s, s.sin())"),
)


def curve(program: ScoreMod) -> list[tuple[float, float]]:
    """41 points of the weight over scores from -4 to 4."""
    s = torch.linspace(-4, 4, 41, dtype=torch.float64)
    grid = Grid((1, 1, 1, 41), (1, 1), scores={"s": s}, dtype=torch.float64)
    (weights,) = grid.elements([program.weight])
    return list(zip(s.tolist(), weights.flatten().tolist(), strict=True))


def plot(points: Sequence[tuple[float, float]], label: str) -> str:
    """A small curve on its own scale, with both axes."""
    wide, high, pad = 150, 84, 6
    low, top = min(0.0, *(y for _, y in points)), max(y for _, y in points)
    across = lambda x: pad + (x + 4) / 8 * (wide - 2 * pad)
    down = lambda y: high - pad - (y - low) / (top - low) * (high - 2 * pad)
    path = "L".join(f"{across(x):.1f} {down(y):.1f}" for x, y in points)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" '
        f'role="img" fill="none"><title>{escape(label)}</title>'
        f'<path d="M{pad} {down(0):.1f}H{wide - pad}M{across(0)} {pad}V{high - pad}" '
        f'stroke="{FAINT}"/><path d="M{path}" stroke="{BLUE}" stroke-width="2"/></svg>\n'
    )


def activation(one: Activation) -> ScoreMod:
    return program_of(
        eval(f"lambda s: {one.spelling}", {"F": F, "torch": torch, "math": math, "n": N})
    )


HEAD = """<!-- generated: python -m docs.tools.gallery -->

# Gallery

Write the mask and the activation you need in plain torch. Where a mask empties a tile of the
scores, the kernels skip the tile: a sliding window over a long history costs no more than the
window.

Pictures and formulas on this page are the package's own: `python -m docs.tools.gallery` gives each
function to `explain` and asks the classification that the kernels use.

## Masks

Queries run downward and keys to the right, {n} of each, in tiles of {tile} × {tile}. Blue tiles are
computed whole, amber ones with the mask, and faint ones are skipped.

In each example `i` is `torch.arange({n})[:, None]` and `j` is `torch.arange({n})`. The weights are
`torch.where(mask, F.silu(s), 0.0)`. The line below the picture shows what the report prints.
"""
MIDDLE = """## Activations

The weights are a function of the score `s`, drawn from -4 to 4; `n` is the number of keys. The
formula is what the report prints.

| activation | in torch | formula | |
|---|---|---|---|
"""
TAIL = """
[Masks](masks.md) says how tiles are found, and [score programs](score_programs.md) lists every
operation that a function may use.
"""


def slug(name: str) -> str:
    return re.sub(r"\W+", "_", name.lower())


def pages() -> dict[Path, str]:
    """Every file that is generated, with its text."""
    texts: dict[Path, str] = {}
    parts = [HEAD.format(n=N, tile=TILE)]
    for mask in MASKS:
        classes, formula = states(mask)
        texts[PICTURES / f"{slug(mask.name)}.svg"] = picture(mask, classes)
        parts.append(masked(mask, classes, formula))
    rows = []
    for one in ACTIVATIONS:
        program = activation(one)
        name = slug(one.name)
        texts[PICTURES / f"{name}.svg"] = plot(curve(program), one.name)
        cells = (f"{one.name}: {one.words}", f"`{one.spelling}`", f"`{program.formula}`",
                 f"![{one.name}](gallery/{name}.svg)")  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    texts[PAGE] = "\n".join([*parts, MIDDLE + "\n".join(rows), TAIL])
    return texts


def masked(mask: Mask, classes: Tensor, formula: str) -> str:
    code = inspect.getsource(mask.keep)
    return (
        f"### {mask.name}\n\n{mask.words}\n\n```python\n{code}```\n\n"
        f"![{mask.name}](gallery/{slug(mask.name)}.svg)\n\n{shares(classes)}:\n\n`{formula}`\n"
    )


def main() -> None:
    texts = pages()
    for stale in set(PICTURES.glob("*.svg")) - set(texts):
        stale.unlink()
    for path, words in texts.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(words)


if __name__ == "__main__":
    main()
