"""The structure of the code in figures, by folder: `python -m docs.tools.structure [FOLDER ...]`.

Lines are all lines of `.py` files and templates. Tokens are counted on lines of code, which hold no
docstring or comment alone; comments and docstrings in percent of all lines. `words` are the names,
for each 1000 lines, that have one of WORDS as a part: participles that do not say what a value is.
"""

from __future__ import annotations

import ast
import io
import re
import statistics
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORDS = frozenset(["found", "given", "made", "told", "kept", "asked", "taken", "held"])
_LAYOUT = frozenset(
    [tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER]
)


@dataclass
class Figures:
    """Counts over some files. functions: The lines of each, without its docstring."""

    lines: int = 0
    code: int = 0
    tokens: int = 0
    comments: int = 0
    docstrings: int = 0
    words: int = 0
    skips: int = 0
    functions: list[int] = field(default_factory=list)

    def __iadd__(self, other: Figures) -> Figures:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self


def figures(path: Path) -> Figures:
    """The counts of one file. A template has lines only."""
    text = path.read_text()
    counts = Figures(lines=text.count("\n"))
    if path.suffix != ".py":
        return counts
    tree = ast.parse(text)
    docstrings = set[int]()
    for node in ast.walk(tree):
        lines = _docstring(node)
        docstrings.update(lines)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            counts.functions.append(len(range(node.lineno, node.end_lineno + 1)) - len(lines))
    code, comments = set[int](), set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
            counts.skips += bool(re.match(r"# fmt: (skip|off)", token.string))
        elif token.type not in _LAYOUT and token.start[0] not in docstrings:
            code.update(range(token.start[0], token.end[0] + 1))
            counts.tokens += 1
            if token.type == tokenize.NAME:
                counts.words += not WORDS.isdisjoint(token.string.lower().split("_"))
    counts.code, counts.comments = len(code), len(comments)
    counts.docstrings = len(docstrings)
    return counts


def _docstring(node: ast.AST) -> range:
    """The lines of the docstring of a module, class or function."""
    body = getattr(node, "body", None)
    if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
        value = body[0].value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return range(value.lineno, value.end_lineno + 1)
    return range(0)


def files(folder: Path) -> Iterator[Path]:
    """The sources in a folder, templates among them."""
    for path in sorted(folder.rglob("*")):
        if path.suffix in {".py", ".jinja"} and "__pycache__" not in path.parts:
            yield path


def by_folder(folder: Path) -> dict[str, Figures]:
    """The counts of each folder that holds sources, and of all as the last row."""
    rows: dict[str, Figures] = defaultdict(Figures)
    total = Figures()
    for path in files(folder):
        counts = figures(path)
        rows[str(path.parent.relative_to(ROOT))] += counts
        total += counts
    return {**rows, f"{folder.relative_to(ROOT)}, all": total}


def row(name: str, counts: Figures) -> str:
    """A row of the table."""
    sizes = sorted(counts.functions) or [0]
    cells = [
        name,
        f"{counts.lines:,}",
        f"{counts.tokens / max(counts.code, 1):.1f}",
        f"{100 * counts.comments / max(counts.lines, 1):.1f}",
        f"{100 * counts.docstrings / max(counts.lines, 1):.1f}",
        f"{1000 * counts.words / max(counts.lines, 1):.1f}",
        f"{statistics.median(sizes):.0f}/{sizes[len(sizes) * 9 // 10]}/{sizes[-1]}",
        str(counts.skips),
    ]
    return f"| {' | '.join(cells)} |"


def table(folder: Path) -> str:
    """The figures of a folder as a Markdown table."""
    names = "folder, lines, tokens a line, comments %, docstrings %, words, functions, fmt: skip"
    rows = [row(name, counts) for name, counts in by_folder(folder).items()]
    return "\n".join([f"| {names.replace(', ', ' | ')} |", "|---" * 8 + "|", *rows])


if __name__ == "__main__":
    for name in sys.argv[1:] or ["gdpa_inductor", "tests"]:
        print(table(ROOT / name), end="\n\n")
