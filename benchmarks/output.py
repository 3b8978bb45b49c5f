"""The output of a run: a CSV, a plot, and the table at the end.

In: measurements as dicts. Only the plot needs a library, matplotlib. Without matplotlib a message
on stderr takes its place.
"""

import csv
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from .cases import Case
from .peers import PEERS
from .worker import SKIPPED

Row = dict[str, Any]
Key = tuple[Case, str]


def flat(row: Row) -> Row:
    """A measurement as one flat row: the fields of its case, then its other fields."""
    own = {name: value for name, value in row.items() if name != "case"}
    return {**row["case"], **own}


def write_csv(rows: Sequence[Row], path: Path) -> None:
    if not rows:
        return
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(flat(rows[0])))
        writer.writeheader()
        writer.writerows(flat(row) for row in rows)


def gather(rows: Iterable[Row]) -> dict[Key, dict[str, Row]]:
    """The measurements by (case, measure), and then by the name of the contender."""
    groups: dict[Key, dict[str, Row]] = {}
    for row in rows:
        groups.setdefault((Case.parse(row["case"]), row["measure"]), {})[row["contender"]] = row
    return groups


def ratio(over: Row | None, under: Row | None, field: str) -> float | None:
    """over[field] / under[field]. It is None if one of them is missing or 0."""
    if not over or not under or not over.get(field) or not under.get(field):
        return None
    return float(over[field] / under[field])


def ours_of(rows: Iterable[Row]) -> str:
    """The contender that a table compares with the others.

    It is "gdpa" if that was measured, and else the first contender whose name begins with "gdpa".
    """
    names = [row["contender"] for row in rows if row["contender"].startswith("gdpa")]
    return "gdpa" if "gdpa" in names else next(iter(names), "gdpa")


def number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def table(rows: Sequence[Row], unit: str) -> str:
    """A table with a line for each case and measure, and a column for each contender.

    A cell is in `unit`, a field of measurements, or "failed". Further columns:

    speedup:  Time of stock Inductor over ours. It is the time of compiling if that is the unit.
    of NAME:  Our TFLOP/s as a share of those of a floor or of a public kernel.
    MiB:      Peak memory beyond that held before the call, ours and stock's.
    off:      Relative L2 distance of our results from eager's.
    """
    grouped, mine = gather(rows), ours_of(rows)
    names = list(dict.fromkeys(row["contender"] for row in rows))
    floors = [name for name in names if name.startswith("floor ") or name in PEERS]
    header = ["case", "measure", *names, "speedup", *(f"of {name}" for name in floors)]
    header += [f"MiB {mine}", "MiB inductor", "off"]
    lines = []
    for (case, measure), by_name in grouped.items():
        ours, stock = by_name.get(mine), by_name.get("inductor")
        line = [case.label(), measure, *(cell(by_name.get(name), unit) for name in names)]
        line.append(number(ratio(stock, ours, "ms" if unit == "tflops" else unit), ".2f"))
        line += [number(ratio(ours, by_name.get(name), "tflops"), ".1%") for name in floors]
        line += [number((row or {}).get("peak_mib"), ".1f") for row in (ours, stock)]
        lines.append([*line, number((ours or {}).get("off"), ".1e")])
    return align([header, *lines])


def cell(row: Row | None, unit: str) -> str:
    if row is None:
        return ""
    form = ".1f" if unit == "tflops" else ".2f"
    return failure(row) if row["error"] else number(row[unit], form)


def failure(row: Row) -> str:
    return "skipped" if row["error"] == SKIPPED else "failed"


def align(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    out = []
    for line in lines:
        left = [text.ljust(width) for text, width in zip(line[:2], widths, strict=False)]
        right = [text.rjust(width) for text, width in zip(line[2:], widths[2:], strict=True)]
        out.append("  ".join([*left, *right]).rstrip())
    return "\n".join(out)


def notes(rows: Iterable[Row]) -> list[str]:
    """The lines below the table: errors, refusals and fallbacks, with their cases. What the budget
    left no time for is one line.
    """
    rows, sentences = list(rows), []
    skipped = sum(row["error"] == SKIPPED for row in rows)
    if skipped:
        sentences.append(f"{skipped} of {len(rows)} {SKIPPED}; --budget SECONDS gives more time")
    for row in (row for row in rows if row["error"] != SKIPPED):
        where = f"{Case.parse(row['case']).label()} {row['measure']} {row['contender']}"
        if row["error"]:
            sentences.append(f"{where}: {row['error'].splitlines()[0]}")
        elif "rejected" in row["said"] or "fallback" in row["said"]:
            sentences.append(f"{where}: {row['said']}")
    return sentences


def plot(rows: Sequence[Row], path: Path, unit: str) -> None:
    """Write a plot of `unit` over length, with a line for each contender.

    Each activation, variant, dtype, head dim and measure has its own panel.
    """
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed (extra `bench`)", file=sys.stderr)
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels: dict[str, list[Row]] = {}
    for row in rows:
        if row[unit]:
            panels.setdefault(panel_of(row), []).append(row)
    if not panels:
        return
    columns = min(3, len(panels), len({row["measure"] for row in rows}))  # a row is a case
    size = (5 * columns, 3.5 * -(-len(panels) // columns))
    figure, axes = pyplot.subplots(
        -(-len(panels) // columns), columns, figsize=size, squeeze=False, layout="constrained"
    )
    for axis, (title, members) in zip(axes.flat, panels.items(), strict=False):
        draw(axis, title, members, unit)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_visible(False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def panel_of(row: Row) -> str:
    case = Case.parse(row["case"])
    return f"{case.activation}, {case.variant}, {case.dtype}, D={case.head_dim}: {row['measure']}"


def line_of(row: Row) -> str:
    """The label of a line in a plot: the contender, and for jagged cases their fill and keys."""
    case = Case.parse(row["case"])
    fill = f", fill {case.fill:g}" if case.fill else ""
    return row["contender"] + fill + (f", {case.keys} keys" if case.keys else "")


def plain_ticks(values: Sequence[float]) -> list[float]:
    """1, 2 and 5 times powers of ten, from the last below the values to the first above them."""
    low, high = min(values), max(values)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [float(f"{digit}e{decade}") for decade in decades for digit in (1, 2, 5)]
    first = max(i for i, tick in enumerate(ticks) if tick <= low)
    last = min(i for i, tick in enumerate(ticks) if tick >= high)
    return ticks[first : last + 1]


def draw(axis: Any, title: str, rows: Sequence[Row], unit: str) -> None:
    by_length: Callable[[Row], int] = lambda row: row["case"]["length"]
    mine = ours_of(rows)
    for name in dict.fromkeys(map(line_of, rows)):
        line = sorted((r for r in rows if line_of(r) == name), key=by_length)
        style = {"linewidth": 2.5} if line[0]["contender"] == mine else {"linewidth": 1}
        axis.plot([by_length(r) for r in line], [r[unit] for r in line], "o-", label=name, **style)
    axis.set_xscale("log", base=2)
    lengths = sorted({by_length(row) for row in rows})
    axis.set_xticks(lengths, [str(length) for length in lengths])
    axis.set_yscale("linear" if unit == "tflops" else "log")
    if unit == "tflops":
        axis.set_ylim(0, 1.3 * max(row[unit] for row in rows))
    else:
        ticks = plain_ticks([row[unit] for row in rows])
        axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.set_title(title, fontsize=9)
    axis.set_xlabel("length (tokens)")
    axis.set_ylabel("TFLOP/s" if unit == "tflops" else "time (ms)")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7, loc="upper left" if unit == "tflops" else "best")
