"""The report as one HTML page: the lists, a drawing of every rewritten region, and each graph as a
listing.

In a listing, the nodes of a region are coloured and named by its number. A refused product is
marked with its code. Long stretches that belong to neither are folded. Pointing at a node lights up
what it reads. Light and dark follow the browser. No outside resource is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

from ..patterns import Match
from .entries import Line, Listing, shorten

if TYPE_CHECKING:
    from . import Report

_FOLD = 12  # a stretch of more unmarked nodes than this is folded

_STYLE = """
:root { --ink: #1c2430; --paper: #fff; --soft: #f3f5f8; --rule: #d5dbe3; --dim: #64707f;
  --good: #0a7d4f; --good-soft: #e0f4ea; --bad: #b3261e; --bad-soft: #fbe9e7; --light: #fff3bf; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e8ef; --paper: #14181f; --soft: #1d232c;
  --rule: #343d4a; --dim: #94a1b2; --good: #55d6a0; --good-soft: #123527; --bad: #ff8a80;
  --bad-soft: #3d1b19; --light: #4a4010; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
code, .listing { font: 13px/1.6 ui-monospace, Menlo, Consolas, monospace; }
article { border: 1px solid var(--rule); border-left-width: 4px; border-radius: 6px;
  padding: .5rem .9rem; margin: .5rem 0; }
article.match { border-left-color: var(--good); }
article.rejection { border-left-color: var(--bad); }
.place, .value, .advice { color: var(--dim); } .code { color: var(--bad); font-weight: 600; }
svg { display: block; max-width: 100%; height: auto; margin: .4rem 0; }
svg rect { fill: var(--soft); stroke: var(--rule); } svg rect.op { fill: var(--good-soft); }
svg text { fill: var(--ink); font: 12px ui-monospace, Menlo, monospace; text-anchor: middle; }
svg text.small { fill: var(--dim); font-size: 11px; } svg path { stroke: var(--dim); fill: none; }
.listing { overflow-x: auto; border: 1px solid var(--rule); border-radius: 6px; padding: .4rem 0; }
.node { display: grid; grid-template-columns: 6rem minmax(28rem, 2fr) minmax(11rem, 1fr) 14rem;
  column-gap: 1rem; padding: 0 .8rem; white-space: pre; }
.node:hover { background: var(--soft); } .node.read { background: var(--light); }
.node.match { background: var(--good-soft); } .node.rejection { background: var(--bad-soft); }
.node.match.read, .node.rejection.read { background: var(--light); }
.mark { color: var(--good); } .rejection > .mark { color: var(--bad); }
summary { cursor: pointer; color: var(--dim); padding: 0 .8rem; }
"""

_SCRIPT = """
for (const listing of document.querySelectorAll(".listing")) {
  const light = (event, on) => {
    const node = event.target.closest(".node");
    for (const name of (node?.dataset.reads || "").split(" ").filter(Boolean))
      listing.querySelector(`[data-name="${CSS.escape(name)}"]`)?.classList.toggle("read", on);
  };
  listing.addEventListener("mouseover", event => light(event, true));
  listing.addEventListener("mouseout", event => light(event, false));
}
"""


def page(report: Report) -> str:
    """The whole document."""
    body = [f"<h1>{escape(report.summary)}</h1>", *_lists(report)]
    body += [_graph(report, listing) for listing in report.graphs]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(report.summary)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + f"\n<script>{_SCRIPT}</script>\n</body>\n</html>\n"
    )


def _lists(report: Report) -> Iterator[str]:
    drawings = iter([_drawing(match) for match in report.matches])
    for title, entries in report._sections():
        yield f"<h2>{escape(title)}</h2>"
        for number, (place, *lines) in enumerate(entries, 1):
            kind = {"Rewritten": "match", "Refused": "rejection"}.get(title, "")
            drawing = next(drawings) if kind == "match" else ""
            anchor = f' id="{kind}-{number}"' if kind else ""
            code = "".join(f"<div><code>{escape(line)}</code></div>" for line in lines)
            yield (
                f'<article class="{kind}"{anchor}><div class="place">{_mark(kind, number)} '
                f"{escape(place)}</div>{drawing}{code}</article>"
            )


def _mark(kind: str, number: int) -> str:
    return {"match": f"region {number}", "rejection": f"refused {number}"}.get(kind, "")


# The drawing of a region


def _drawing(match: Match) -> str:
    """Q Kᵀ → program → V → O, as inline SVG."""
    p = match.problem
    formula = p.program.formula
    formula = formula if len(formula) <= 60 else formula[:57] + "..."
    boxes = [
        ("s = Q Kᵀ", f"{p.batch}·{p.heads} × {p.rows} × {p.cols}", 150),
        (f"P = {formula}", _kernel(match), max(170, 8 * len(formula) + 50)),
        ("O = P V", f"{p.batch}·{p.heads} × {p.rows} × {p.value_dim}", 150),
    ]
    parts, x = [], 4
    for position, (title, below, width) in enumerate(boxes):
        middle = x + width / 2
        parts.append(f'<rect class="op" x="{x}" y="4" width="{width}" height="46" rx="6"/>')
        parts.append(f'<text x="{middle}" y="23">{escape(title)}</text>')
        parts.append(f'<text class="small" x="{middle}" y="40">{escape(below)}</text>')
        if position < 2:
            end = x + width + 34
            parts.append(f'<path d="M{x + width} 27 H{end} m-6 -4 l6 4 l-6 4"/>')
        x += width + 34
    width = x - 30
    return (
        f'<svg viewBox="0 0 {width} 54" width="{width}" height="54" role="img" '
        f'aria-label="{escape(formula)}">{"".join(parts)}</svg>'
    )


def _kernel(match: Match) -> str:
    return f"one kernel: {getattr(match.choice, 'kernel', 'any')}"


# The listing of a graph


def _graph(report: Report, listing: Listing) -> str:
    rows: list[str] = []
    for marked, group in groupby(
        listing.lines, lambda line: line.match is not None or line.rejection is not None
    ):
        lines = list(group)
        rows += [_row(report, line) for line in lines] if marked else _folded(report, lines)
    return (
        f'<h2>{escape(listing.title)}</h2>\n<div class="listing">\n' + "\n".join(rows) + "\n</div>"
    )


def _folded(report: Report, lines: Sequence[Line]) -> list[str]:
    rows = [_row(report, line) for line in lines]
    if len(rows) <= _FOLD:
        return rows
    return [f"<details><summary>{len(rows)} more nodes</summary>", *rows, "</details>"]


def _row(report: Report, line: Line) -> str:
    kind, mark, hint = "", "", ""
    if line.match is not None:
        kind, mark = "match", f"region {line.match + 1}"
        hint = report.matches[line.match].problem.program.formula
    elif line.rejection is not None:
        kind, mark = "rejection", f"refused {line.rejection + 1}"
        hint = str(report.rejections[line.rejection])
    place = shorten(line.location) if line.location else ""
    reads = escape(" ".join(line.inputs))
    cells = (("mark", mark), ("code-text", line.code), ("value", line.value), ("place", place))
    return (
        f'<div class="node {kind}" data-name="{escape(line.name)}" data-reads="{reads}" '
        f'title="{escape(hint)}">'
        + "".join(f'<span class="{name}">{escape(text)}</span>' for name, text in cells)
        + "</div>"
    )
