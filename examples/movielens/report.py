"""The output of the demo: a progress bar, loss curves in characters, and a table.

It needs no library.
"""

import itertools
import sys
from collections.abc import Sequence
from typing import TextIO

from .worker import Run

MARKS = {"eager": "e", "inductor": "i", "gdpa": "g"}


class Progress:
    """The progress of a run: a bar on a terminal, and elsewhere a line for every tenth part."""

    def __init__(self, label: str, total: int, stream: TextIO = sys.stderr) -> None:
        self.label, self.total, self.stream = label, total, stream
        self.tenth = -1

    def update(self, done: int, note: str = "") -> None:
        if self.stream.isatty():
            filled = 30 * done // self.total
            bar = "█" * filled + "·" * (30 - filled)
            self.stream.write(f"\r{self.label:>9} {bar} {done}/{self.total}  {note:<20}")
            if done == self.total:
                self.stream.write("\n")
        elif 10 * done // self.total > self.tenth:
            self.tenth = 10 * done // self.total
            self.stream.write(f"{self.label:>9} {done}/{self.total}  {note}\n")
        self.stream.flush()


def smooth(values: Sequence[float], columns: int) -> list[float]:
    """The means of `columns` equal parts of a curve."""
    edges = [len(values) * c // columns for c in range(columns + 1)]
    pairs = [(a, b) for a, b in itertools.pairwise(edges) if b > a]
    return [sum(values[a:b]) / (b - a) for a, b in pairs]


def plot(curves: dict[str, Sequence[float]], columns: int = 60, rows: int = 12) -> str:
    """A plot of curves in characters. A curve has its mark, and `*` is for several curves."""
    smoothed = {name: smooth(values, columns) for name, values in curves.items()}
    low = min(min(values) for values in smoothed.values())
    high = max(max(values) for values in smoothed.values())
    step = (high - low) / (rows - 1) or 1.0
    grid = [[" "] * columns for _ in range(rows)]
    for name, values in smoothed.items():
        for column, value in enumerate(values):
            row = rows - 1 - round((value - low) / step)
            occupied = grid[row][column] != " "
            grid[row][column] = "*" if occupied else MARKS.get(name, name[0])
    lines = [f"{high - i * step:7.3f} │{''.join(row).rstrip()}" for i, row in enumerate(grid)]
    legend = ", ".join(f"{MARKS.get(name, name[0])} {name}" for name in curves)
    return "\n".join([*lines, " " * 8 + "└" + "─" * columns, " " * 9 + f"{legend}, * several"])


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in characters. The first column is aligned left, and the others right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, ["-" * width for width in widths], *rows]:
        first = row[0].ljust(widths[0])
        lines.append("  ".join([first, *(c.rjust(w) for c, w in zip(row[1:], widths[1:]))]))
    return "\n".join(lines)


def difference(a: Run, b: Run) -> float:
    """The largest relative difference of two loss curves, over the steps that both have."""
    return max(abs(x - y) / abs(y) for x, y in zip(a.losses, b.losses))


def summary(results: Sequence[Run]) -> str:
    """A table with a row for each contender. Loss curves are compared with the first one's."""
    names = list(next((result.metrics for result in results if result.metrics), ()))
    header = ["", "compile s", "step ms", "peak MiB", *names]
    header += ["loss error", "grad error", f"curve from {results[0].contender}"]
    rows = []
    for result in results:
        peak = "n/a" if result.peak_bytes is None else f"{result.peak_bytes / 2**20:.1f}"
        row = [result.contender, f"{result.compile_s:.1f}", f"{result.step_ms:.1f}", peak]
        row += [f"{result.metrics[name]:.4f}" if result.metrics else "n/a" for name in names]
        row += [f"{result.loss_error:.1e}", f"{result.grad_error:.1e}"]
        rows.append([*row, f"{difference(result, results[0]):.1e}"])
    return table(header, rows)
