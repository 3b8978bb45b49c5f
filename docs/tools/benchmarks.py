"""`make benchmarks`: docs/benchmarks.md, its charts and README's from docs/measurements/*.jsonl.

A file holds the output of one command of `python -m gdpa_inductor bench`, so each table has one
machine and one date. Its first line is the header (benchmarks/machine.py). A table whose
file is missing is left out. The prose of the page is benchmarks.md.in beside this file.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

from .cells import Row, Run, length
from .svg import chart
from .tables import (
    HEADLINES,
    TABLES,
    TRAINED,
    Table,
    end_to_end,
    other_seeds,
    ranked,
    readme_panels,
)

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MEASUREMENTS = DOCS / "measurements"
PLACE, TOP = "<!-- tables -->\n", "<!-- headline -->\n"
BEGIN, END = "<!-- chart: make benchmarks -->\n", "<!-- end of chart -->\n"
FIRST, LAST = "<!-- table: make benchmarks -->\n", "<!-- end of table -->\n"
# README's chart is of the first of these that was measured.
SHOWN = ("dense", "bias")


def read(path: Path) -> Run:
    """The JSON lines of a run; what else the command printed is left out.

    Raises:
        ValueError: the first line is no header.
    """
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]
    if not lines or "machine" not in lines[0]:
        raise ValueError(f"{path.name}: the first line has to be the machine and the command")
    note = lines[0].get("note", "")
    return Run(lines[0]["machine"], lines[0]["command"], note, by_length(lines[1:]))


def by_length(rows: list[Row]) -> list[Row]:
    """Rows come as they are measured, and `--at-once` measures what is compiled first."""
    if any("case" not in row or row["case"]["variant"] in ("model", "cache") for row in rows):
        return rows
    kinds = list(dict.fromkeys(_kind(row) for row in rows))
    return sorted(rows, key=lambda row: (kinds.index(_kind(row)), length(row), row["case"]["fill"]))


def _kind(row: Row) -> tuple[str, ...]:
    return tuple(str(row["case"][name]) for name in ("activation", "variant", "keys"))


def runs(folder: Path = MEASUREMENTS) -> dict[str, Run]:
    """By the name of the file.

    Raises:
        ValueError: a file of no table.
    """
    runs_by_file = {path.stem: read(path) for path in sorted(folder.glob("*.jsonl"))}
    if unknown := set(runs_by_file) - {table.file for table in TABLES}:
        raise ValueError(f"no table is made from {', '.join(sorted(unknown))}")
    return runs_by_file


def fill(words: str) -> str:
    return textwrap.fill(words, 100, break_long_words=False, break_on_hyphens=False)


def machine(run: Run) -> str:
    """One sentence: where, with which versions, when, how steady."""
    m = run.machine
    place = m.get("gpu") or f"{m['cpu']} ({m['capability']})"
    names = {"driver": "driver", "torch": "torch", "triton": "Triton", "cutlass_dsl": "CuTe DSL"}
    versions = [f"{word} {m[key]}" for key, word in names.items() if m.get(key, "none") != "none"]
    return f"{place}, {', '.join(versions)}, Python {m['python']}, {m['date']}."


def steadiness(run: Run) -> str:
    """How far the runs of a figure are apart, over all figures of the file."""
    spreads = sorted(row["spread"] - 1 for row in run.rows if row.get("spread"))
    if not spreads:
        return "The spread of the runs was not recorded."
    half, most = (spreads[int(share * (len(spreads) - 1))] for share in (0.5, 0.9))
    return f"Spread: half of the figures within {half:.1%}, nine of ten within {most:.0%}."


def section(table: Table, run: Run, same: bool) -> str:
    """Heading, what it shows, the table, its chart; machine and command, unless the section before
    is of the same run.
    """
    parts = [f"## {table.question}", fill(table.about(run)), table.markdown(run)]
    if table.panels:
        parts.append(f"![{table.question}](charts/{table.name}.svg)")
    if not same:
        parts.append(fill(" ".join(filter(None, [machine(run), steadiness(run), run.note]))))
        parts.append(f"```\n{wrapped(run.command)}\n```")
    return "\n\n".join(parts)


def headline(by_file: Mapping[str, Run]) -> str:
    """The results in a few lines, of the files that there are."""
    said = [line(by_file[name]) for name, line in HEADLINES.items() if name in by_file]
    cards = {by_file[name].machine.get("gpu") or "a CPU" for name in HEADLINES if name in by_file}
    return f"On {' and '.join(sorted(cards))}:\n\n" + "".join(f"{bulleted(one)}\n" for one in said)


def bulleted(words: str) -> str:
    return textwrap.fill(f"- {words}", 100, subsequent_indent="  ", break_on_hyphens=False)


def wrapped(command: str) -> str:
    """A shell line that a narrow page need not cut off."""
    first, *options = re.split(r" (?=--)", command)
    lines = [first]
    for option in options:
        joined = f"{lines[-1]} {option}"
        lines = [*lines[:-1], joined] if len(joined) < 74 else [*lines, option]
    return " \\\n    ".join(lines)


def pages(by_file: Mapping[str, Run]) -> dict[Path, str]:
    """Every file that is generated, with its text."""
    named = [table for table in TABLES if table.file in by_file]
    present = [table for table in named if len(table.cells(by_file[table.file])) > 1]
    befores: list[Table | None] = [None, *present]
    body = "\n\n".join(
        section(table, by_file[table.file], same=before is not None and before.file == table.file)
        for table, before in zip(present, befores, strict=False)
    )
    template = (Path(__file__).parent / "benchmarks.md.in").read_text()
    template = template.replace(TOP, headline(by_file)).replace(PLACE, body + "\n")
    texts = {DOCS / "benchmarks.md": template}
    for table in present:
        if table.panels:
            svg = chart(table.panels(by_file[table.file]), table.question)
            texts[DOCS / "charts" / f"{table.name}.svg"] = svg
    return texts | readme(by_file)


def readme(by_file: Mapping[str, Run]) -> dict[Path, str]:
    """README with its chart, which shows a training step."""
    name = next(name for name in SHOWN if name in by_file)
    run = by_file[name]
    panels, words = readme_panels(name, run)
    label = "Speed and memory of a training step"
    shown = f"![{label}](docs/charts/readme.svg)\n\n{fill(f'{words} {machine(run)}')}\n\n"
    shown += f"```\n{wrapped(run.command)}\n```\n\n"
    text = between((ROOT / "README.md").read_text(), BEGIN, shown, END)
    if "recommender" in by_file:
        shown = whole_model(by_file["recommender"])
        shown += f"{fill(ranked(by_file['demo']))}\n\n" if "demo" in by_file else ""
        text = between(text, FIRST, shown, LAST)
    return {DOCS / "charts" / "readme.svg": chart(panels, label), ROOT / "README.md": text}


def between(text: str, first: str, shown: str, last: str) -> str:
    before, _, rest = text.partition(first)
    return f"{before}{first}\n{shown}{last}{rest.partition(last)[2]}"


def whole_model(run: Run) -> str:
    """README's table: a recommender in training, with its machine and command."""
    title = f"Training a recommender of 8 HSTU layers on an {run.machine['gpu']}:"
    words = fill(f"{TRAINED} {other_seeds(run)} {machine(run)}")
    command = f"```\n{wrapped(run.command)}\n```"
    return f"{title}\n\n{end_to_end(run)}\n\n{words}\n\n{command}\n\n"


def main() -> int:
    texts = pages(runs())
    for stale in set((DOCS / "charts").glob("*.svg")) - set(texts):
        stale.unlink()
    for path, words in texts.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(words)
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
