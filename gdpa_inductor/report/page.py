"""The report as HTML: the lists, the steps of every fused region, and each graph as a listing.

In a listing, the nodes of a region are coloured and named by its number. A product that is not
fused is marked with its code. Long stretches that belong to neither are folded. Pointing at a node
lights up what it reads. Light and dark follow the browser. No outside resource is used. Rules of
style apply below `.gdpa` only, so a notebook can show the fragment, in which graphs are folded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

from ..patterns import Match
from . import sections
from .sections import Entry, Line, Listing, shorten

if TYPE_CHECKING:
    from . import Report

_FOLD = 12  # a stretch of more unmarked nodes than this is folded

_STYLE = """
.gdpa { --ink: #1c2430; --paper: #fff; --soft: #f3f5f8; --rule: #d5dbe3; --dim: #5a6573;
  --good: #0a7d4f; --good-soft: #e0f4ea; --bad: #b3261e; --bad-soft: #fbe9e7; --light: #fff3bf;
  font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 75rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) { .gdpa { --ink: #e3e8ef; --paper: #14181f; --soft: #1d232c;
  --rule: #343d4a; --dim: #94a1b2; --good: #55d6a0; --good-soft: #123527; --bad: #ff8a80;
  --bad-soft: #3d1b19; --light: #4a4010; }
  body:has(> .gdpa) { background: #14181f; } }
.gdpa h1 { font-size: 1.3rem; margin: 0 0 1rem; }
.gdpa h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
.gdpa code, .gdpa .listing, .gdpa .box { font: 13px/1.6 ui-monospace, Menlo, Consolas, monospace;
  color: inherit; background: none; padding: 0; }
.gdpa article { border: 1px solid var(--rule); border-left-width: 4px; border-radius: 6px;
  padding: .5rem .9rem; margin: .5rem 0; }
.gdpa article.match { border-left-color: var(--good); }
.gdpa article.rejection { border-left-color: var(--bad); }
.gdpa .left { --bad: var(--dim); --bad-soft: var(--soft); }
.gdpa .place, .gdpa .value, .gdpa .below { color: var(--dim); }
.gdpa .advice { color: var(--good); }
.gdpa .steps { display: flex; flex-wrap: wrap; align-items: center; gap: .4rem; margin: .5rem 0; }
.gdpa .box { border: 1px solid var(--rule); border-radius: 6px; background: var(--good-soft);
  padding: .3rem .7rem; text-align: center; min-width: 0; }
.gdpa .below { display: block; font-size: 11px; }
.gdpa .listing { border: 1px solid var(--rule); border-radius: 6px; padding: .4rem 0; }
.gdpa .node { display: grid; column-gap: 1rem; padding: 0 .8rem; white-space: pre-wrap;
  grid-template-columns: 6rem minmax(0, 5fr) minmax(0, 2fr) minmax(0, 2fr); }
@media (max-width: 60rem) { .gdpa .node { grid-template-columns: 6rem minmax(0, 1fr); }
  .gdpa .node > .value, .gdpa .node > .place { grid-column: 2; } }
.gdpa .node > span { min-width: 0; } .gdpa .node:hover { background: var(--soft); }
.gdpa .node.match { background: var(--good-soft); }
.gdpa .node.rejection { background: var(--bad-soft); }
.gdpa .node.read { background: var(--light); }
.gdpa .mark { color: var(--good); } .gdpa .rejection > .mark { color: var(--bad); }
.gdpa summary { cursor: pointer; color: var(--dim); }
.gdpa .listing summary { padding: 0 .8rem; }
.gdpa summary h2 { display: inline-block; color: var(--ink); }
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
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(report.summary)}</title>\n</head>\n"
        f'<body style="margin: 0">\n{_report(report, " open")}\n<script>{_SCRIPT}</script>\n'
        "</body>\n</html>\n"
    )


def fragment(report: Report) -> str:
    """The report with its style, to be put into another page."""
    return _report(report, "")


def _report(report: Report, state: str) -> str:
    """state: ` open` shows the listings of the graphs."""
    body = [f"<h1>{escape(report.summary)}</h1>", *_lists(report)]
    body += [_graph(report, listing, state) for listing in report.graphs]
    return f'<div class="gdpa">\n<style>{_STYLE}</style>\n' + "\n".join(body) + "\n</div>"


def _lists(report: Report) -> Iterator[str]:
    for section in sections.sections(report):
        yield f"<h2>{escape(section.title)}</h2>"
        for entry in section.entries:
            yield _article(report, entry)


def _article(report: Report, entry: Entry) -> str:
    lines = "".join(f"<div><code>{escape(line)}</code></div>" for line in entry.lines)
    if entry.advice:
        advice = re.sub("`([^`]+)`", r"<code>\1</code>", escape(entry.advice))
        lines += f'<div class="advice">to change: {advice}</div>'
    steps = _steps(report.matches[entry.numbers[0] - 1]) if entry.kind == "match" else ""
    anchor = f' id="{entry.kind}-{entry.numbers[0]}"' if entry.kind else ""
    title = " ".join(filter(None, (mark(entry.kind, entry.numbers), entry.title)))
    kind = _tone(report, entry.numbers[0] - 1) if entry.kind == "rejection" else entry.kind
    return (
        f'<article class="{kind}"{anchor}><div class="place">{escape(title)}</div>'
        f"{steps}{lines}</article>"
    )


def _tone(report: Report, number: int) -> str:
    """Red is for what could be fused: not for another operator, or one that would not pay."""
    return f"rejection{'' if sections.could_be_fused(report.rejections[number]) else ' left'}"


def mark(kind: str, numbers: Sequence[int]) -> str:
    """`region 3`, `regions 1–12`, `not fused 2, 5`."""
    if not kind:
        return ""
    first, last = numbers[0], numbers[-1]
    joined = len(numbers) > 2 and last - first + 1 == len(numbers)
    shown = f"{first}–{last}" if joined else ", ".join(map(str, numbers))
    return f"not fused {shown}" if kind == "rejection" else f"region{'s'[: last != first]} {shown}"


# The steps of a region


def _steps(match: Match) -> str:
    """Q Kᵀ → program → V → O."""
    p = match.problem
    formula = p.program.formula
    formula = formula if len(formula) <= 60 else formula[:57] + "..."
    boxes = (
        ("s = Q Kᵀ", f"{p.batch}·{p.heads} × {p.rows} × {p.cols}"),
        (f"P = {formula}", f"one kernel: {getattr(match.choice, 'kernel', 'any')}"),
        ("O = P V", f"{p.batch}·{p.heads} × {p.rows} × {p.value_dim}"),
    )
    shown = (
        f'<span class="box">{escape(title)}<span class="below">{escape(below)}</span></span>'
        for title, below in boxes
    )
    return f'<div class="steps">{"<span>→</span>".join(shown)}</div>'


# The listing of a graph


def _graph(report: Report, listing: Listing, state: str) -> str:
    rows: list[str] = []
    for marked, group in groupby(
        listing.lines, lambda line: line.match is not None or line.rejection is not None
    ):
        lines = list(group)
        rows += [_row(report, line) for line in lines] if marked else _folded(report, lines)
    title = f"<summary><h2>{escape(listing.title)}</h2></summary>"
    shown = "\n".join(rows)
    return f'<details{state}>{title}\n<div class="listing">\n{shown}\n</div></details>'


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
        kind, mark = _tone(report, line.rejection), f"not fused {line.rejection + 1}"
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
