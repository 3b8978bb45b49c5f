"""The report of a failing test, cut to what is read first: the reason and the seed.

A failure inside of torch.compile has dozens of torch's frames, and a compiler's output hundreds of
lines. A report keeps our own frames, the one that raised, and both ends of every long text: 40
lines at most. `pytest -v` prints all.
"""

from pathlib import Path

import pytest
import torch

TORCH = str(Path(torch.__file__).parent)
# A frame is two lines, an error has one cause at most: 40 lines with all that is around them.
MOST_FRAMES, MOST_REASON, MOST_CAPTURED = 3, 9, 6


def shorten(report: pytest.TestReport) -> None:
    """Cut what `report` will print."""
    chain = getattr(report.longrepr, "chain", None)
    if chain is None:  # an error outside of a test, in words of its own
        return
    _first_line_of_summary(report.longrepr.reprcrash)
    del chain[:-2]  # the last is what was raised, before it stands its cause
    for number, (trace, _, _) in enumerate(reversed(chain)):
        trace.reprentries = _frames(trace.reprentries, MOST_FRAMES if number == 0 else 1)
        for entry in trace.reprentries:
            lines = [line for line in entry.lines if set(line) - set(" ^~")]
            entry.lines = _ends(lines, MOST_REASON)
    captured = [(name, text.splitlines()) for name, text in report.sections if text.strip()]
    report.sections = [
        (name, "\n".join(_ends(lines, MOST_CAPTURED // len(captured)))) for name, lines in captured
    ]


def _first_line_of_summary(crash: object) -> None:
    """The summary names each failure in one line; where $CI is set, pytest itself would not cut."""
    if crash is not None:
        crash.message = crash.message.partition("\n")[0]


def _frames(entries: list, most: int) -> list:
    """The frame that raised; before it the test's own, and what is next to the error."""
    ours = [entry for entry in entries[:-1] if not _in_torch(entry)]
    if len(ours) >= most:
        ours = [ours[0], *ours[len(ours) - most + 2 :]] if most > 1 else []
    return [*ours, *entries[-1:]]


def _in_torch(entry: object) -> bool:
    place = getattr(entry, "reprfileloc", None)
    return place is not None and str(Path(place.path).absolute()).startswith(TORCH)


def _ends(lines: list[str], most: int) -> list[str]:
    """Both ends of a text of more than `most` lines, in so many."""
    if len(lines) <= most:
        return lines
    tail = (most - 1) // 2
    head = most - 1 - tail
    between = f"... {len(lines) - head - tail} lines more: pytest -v"
    return [*lines[:head], between, *lines[len(lines) - tail :]]
