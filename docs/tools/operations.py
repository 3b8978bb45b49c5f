"""The operations as a table of a page: `python -m docs.tools.operations PAGE`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from gdpa_inductor.program.expr import OPS

_TABLE = re.compile(r"^\| operation \|.*?(?=^[^|]|\Z)", flags=re.M | re.S)


def table() -> str:
    """A line per row of `OPS`: name, kinds, meaning."""
    lines = ["| operation | kinds | meaning |", "|---|---|---|"]
    for name, op in OPS.items():
        kinds = ", ".join(f"`{signature}`" for signature in op.kinds)
        says = op.says.replace("|", r"\|")  # a bar alone would end the cell
        lines.append(f"| `{name}` | {kinds} | {says} |")
    return "\n".join(lines) + "\n"


def renewed(page: str) -> str:
    """The page with its table as the rows have it."""
    return _TABLE.sub(lambda _: table(), page)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(renewed(path.read_text()))
