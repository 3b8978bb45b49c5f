"""The code blocks of a page, run as a reader would: pasted into one file, in order.

A block of ```text behind a block of ```python, with one line that ends in a colon between them at
most, is what it prints. A block behind the comment `<!-- not run: why -->` is left out, and one
behind `<!-- needs MODULE -->` where the module is not installed.
`python -m docs.tools.blocks PAGE` writes the outputs anew.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
# A block in a list is indented; the comment stands on the line before the fence.
BLOCK = re.compile(
    r"(?P<skip><!-- (?:not run: [^>]+|needs (?P<needs>\w+) )-->\n)?"
    r"^(?P<indent> *)```python\n(?P<code>.*?)^ *```\n"
    r"(?:\n(?:[^\n`]+:\n\n)? *```text\n(?P<output>.*?)^ *```\n)?",
    re.M | re.S,
)
MARK = "=== end of block ==="


@dataclass(frozen=True)
class Block:
    """code: without indentation. output: as the page shows it, or None. place: where it stands."""

    code: str
    output: str | None
    place: tuple[int, int] = (0, 0)


def blocks(text: str) -> list[Block]:
    """Those that are run."""
    examples = []
    for match in BLOCK.finditer(text):
        needs = match["needs"]
        if not match["skip"] or (needs and importlib.util.find_spec(needs)):
            width = len(match["indent"])
            code = "".join(line[width:] for line in match["code"].splitlines(keepends=True))
            place = match.span("output") if match["output"] is not None else (0, 0)
            examples.append(Block(code, match["output"], place))
    return examples


def run(examples: list[Block], name: str = "example.py", seconds: float = 600) -> list[str]:
    """What each block prints, on the CPU, in a process of its own.

    Raises:
        RuntimeError: a block failed; with the last lines of what it said.
    """
    source = "".join(f"{block.code}print({MARK!r})\n\n" for block in examples)
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES="")
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_text(source)
        done = subprocess.run(
            [sys.executable, name], cwd=folder, env=environment, capture_output=True, text=True,
            timeout=seconds, check=False,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError("\n".join(done.stderr.splitlines()[-30:]))
    return [part.lstrip("\n") for part in done.stdout.split(f"{MARK}\n")[: len(examples)]]


def renewed(text: str) -> str:
    """The page with the outputs that its blocks have now."""
    examples = blocks(text)
    for block, printed in reversed(list(zip(examples, run(examples), strict=True))):
        if block.output is not None:
            start, end = block.place
            text = text[:start] + printed + text[end:]
    return text


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        page = Path(argument)
        page.write_text(renewed(page.read_text()))
