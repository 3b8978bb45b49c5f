"""Bar charts as SVG text, without a library.

In: panels of numbers. Out: one SVG, the same bytes for the same numbers. Text and grid have a
middle grey and there is no background, so that a chart is legible on light pages and dark ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

GREY, FAINT = "#7d8590", "#7d859055"
COLOURS = ("#2f81f7", "#d4881c", "#8b949e", "#3fa45b", "#a371f7", "#db6d6d", "#39a0a0", "#b58900")
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
WIDTH = 760
TOP, BOTTOM, LEFT, GAP, PLOT = 64, 46, 8, 40, 180


@dataclass(frozen=True)
class Panel:
    """`values[group][series]`; None leaves a bar out. A group is a label on the axis."""

    title: str
    axis: str
    values: Mapping[str, Mapping[str, float | None]]


def chart(panels: Sequence[Panel], label: str) -> str:
    """Panels side by side, with one legend. label: what a screen reader says."""
    names = list(dict.fromkeys(name for panel in panels for group in panel.values.values()
                               for name in group))  # fmt: skip
    colours = dict(zip(names, COLOURS, strict=False))
    each = (WIDTH - 2 * LEFT - GAP * (len(panels) - 1)) / len(panels)
    height = TOP + PLOT + BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'font-family="{FONT}" font-size="12" fill="{GREY}">',
        f"<title>{escape(label)}</title>",
        *legend(colours),
    ]
    for index, panel in enumerate(panels):
        lines += draw(panel, colours, LEFT + index * (each + GAP), each)
    return "\n".join([*lines, "</svg>", ""])


def legend(colours: Mapping[str, str]) -> Iterator[str]:
    x = float(LEFT)
    for name, colour in colours.items():
        yield f'<rect x="{x:.0f}" y="8" width="12" height="12" rx="2" fill="{colour}"/>'
        yield text(x + 18, 18, name)
        x += 18 + 7.2 * len(name) + 20


def draw(panel: Panel, colours: Mapping[str, str], x: float, width: float) -> Iterator[str]:
    """Title, a line at each tick, bars in groups, their values above them."""
    yield text(x, 44, panel.title, weight="600")
    values = [value for group in panel.values.values() for value in group.values() if value]
    ceiling = nice(max(values))
    base = TOP + PLOT
    for tick in range(3):
        y = base - PLOT * tick / 2
        yield f'<path d="M{x:.1f} {y:.1f}h{width:.1f}" stroke="{FAINT}"/>'
    slot = width / len(panel.values)
    for index, (name, group) in enumerate(panel.values.items()):
        left = x + index * slot
        bar = min((slot - 12) / len(colours), 46)
        first = left + (slot - bar * len(colours)) / 2
        for place, series in enumerate(colours):
            value = group.get(series)
            if value is not None:
                tall = PLOT * value / ceiling
                at = first + place * bar
                yield (
                    f'<rect x="{at + 1:.1f}" y="{base - tall:.1f}" width="{bar - 2:.1f}" '
                    f'height="{tall:.1f}" rx="2" fill="{colours[series]}"/>'
                )
                yield text(at + bar / 2, base - tall - 4, short(value), "middle", size=10)
        yield text(left + slot / 2, base + 17, name, "middle")
    yield text(x + width / 2, base + 36, panel.axis, "middle", size=11)


def text(
    x: float, y: float, words: str, anchor: str = "start", size: int = 12, weight: str = "400"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'font-weight="{weight}">{escape(words)}</text>'
    )


def short(value: float) -> str:
    """Three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def nice(value: float) -> float:
    """The end of an axis: 1, 2, 3, 4, 5, 6 or 8 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 3, 4, 5, 6, 8, 10) if step * power >= value)
