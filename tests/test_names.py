"""One word for one thing: names of classes, and the words of docs/terms.md."""

import ast
import re
from collections import defaultdict
from pathlib import Path

from docs.tools import structure

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "gdpa_inductor"
TERMS = ROOT / "docs" / "terms.md"


def classes() -> dict[str, list[str]]:
    """The modules of each class of the package that stands at the top of its module."""
    modules: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                modules[node.name].append(str(path.relative_to(ROOT)))
    return modules


def test_no_two_classes_have_one_name():
    modules = classes()
    assert len(modules) > 100
    assert {name: where for name, where in modules.items() if len(where) > 1} == {}


NOT_FUSED = re.compile(r"\b(refus|reject(?!ion)|left (unfused|to (Inductor|PyTorch)))", re.I)


def messages(path: Path) -> list[str]:
    """The texts of a module that are no docstrings."""
    tree = ast.parse(path.read_text())
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
    values = (node.value for node in constants if id(node) not in docs)
    return [text for text in values if isinstance(text, str) and " " in text]


def test_what_is_not_fused_has_one_word():
    """In messages, and on the pages for users. Names in code, such as `Rejection`, stay."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/recipes").glob("*")]
    prose = {page: re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.S) for page in pages}
    prose[TERMS] = "\n".join(x for x in prose[TERMS].splitlines() if "| not fused |" not in x)
    assert [(page.name, word) for page in prose for word in NOT_FUSED.findall(prose[page])] == []
    modules = [*PACKAGE.rglob("*.py")]
    assert sum(len(messages(path)) for path in modules) > 500
    assert [m for path in modules for m in messages(path) if NOT_FUSED.search(m)] == []


def avoided() -> list[str]:
    """The last column of the table: words that the package does not use for these things."""
    rows = [line.split("|")[1:-1] for line in TERMS.read_text().splitlines() if line[:2] == "| "]
    return [word for row in rows[1:] for word in re.findall(r"`([^`]+)`", row[-1])]


def test_words_that_are_avoided_are_no_names():
    """As names of modules, classes and functions."""
    words = {word.lower() for word in avoided()}
    assert len(words) > 6
    names = set()
    for path in PACKAGE.rglob("*.py"):
        names.add(path.stem)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                names.add(node.name)
    assert sorted(name for name in names if name.lower().strip("_") in words) == []


def test_names_say_what_a_value_is():
    """Participles such as `found` and `given` do not; the table lists all of them."""
    *folders, (_, all_of_it) = structure.by_folder(PACKAGE).items()
    assert len(folders) > 20 and all_of_it.lines > 20_000
    rows = [structure.row(*folder) for folder in folders if folder[1].words]
    assert 1000 * all_of_it.words / all_of_it.lines <= 1, "\n".join(rows)


def test_the_figures_of_a_file(tmp_path: Path):
    path = tmp_path / "module.py"
    path.write_text('"""One\n\nthree."""\n\n\ndef made(x):  # found\n    """x."""\n    return x\n')
    figures = structure.figures(path)
    assert (figures.lines, figures.code, figures.docstrings, figures.comments) == (8, 2, 4, 1)
    assert (figures.words, figures.functions, figures.tokens) == (1, [2], 8)
