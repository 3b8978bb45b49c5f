"""Every function of `_compat` has a test that runs each of its lines.

`tests/test_compat.py` holds that each symbol of the table is named in `_compat`, and nothing else.
So each symbol of the table is used by a test here, in whatever torch is installed: by `test_f`, if
`f` or a private function below it names the symbol.
"""

import ast
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_compat import last

from . import lines
from .symbols import SYMBOLS

HERE = Path(__file__).parent


def with_tests(name: str) -> set[str]:
    """The functions whose names are those of tests, in the test modules of a module."""
    trees = [ast.parse(path.read_text()) for path in HERE.glob(f"test_{name}*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    return {test.removeprefix("test_") for test in names if test.startswith("test_")}


def offered(module: types.ModuleType) -> set[str]:
    """What other modules import from a module: its public functions, and names of torch's."""
    own = {name for name in lines.functions(module) if not name.startswith("_")}
    tree = ast.parse(Path(module.__file__ or "").read_text())
    assigned = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for part in node.targets
        for target in (part.elts if isinstance(part, ast.Tuple) else [part])
        if isinstance(target, ast.Name) and not target.id.startswith("_")
    }
    return own | assigned - {"log"} | set(getattr(module, "__all__", ()))


@pytest.mark.parametrize("name", lines.modules())
def test_each_function_has_a_test(name: str):
    assert offered(lines.load(name)) - with_tests(name) == set()


@pytest.mark.parametrize("name", lines.modules())
def test_each_private_function_is_below_a_public_one(name: str):
    """Else no test would have to run its lines."""
    module = lines.load(name)
    known = lines.functions(module)
    public = [each for each in known if not each.startswith("_")]
    reached = set().union(*(lines.private_below(each, module) for each in public))
    assert known.keys() - reached == set(public)


def test_each_symbol_is_on_a_line_that_a_test_runs():
    """Or on one that runs when a module is imported."""
    run = set()
    for name in lines.modules():
        module = lines.load(name)
        source = Path(module.__file__ or "").read_text()
        covered = {
            number for each in lines.functions(module) for _, number in lines.lines(each, module)
        }
        bodies = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)]
        inside = {n for body in bodies for n in range(body.body[0].lineno, body.end_lineno + 1)}
        run |= {word for number, word in words(source) if number in covered or number not in inside}
    assert {row for row in SYMBOLS if last(row) not in run} == set()


def words(source: str) -> Iterator[tuple[int, str]]:
    """The names, attributes, keywords and strings of a file, with the line of their code."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            yield node.end_lineno or 0, node.attr
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((node.lineno, word) for each in node.names for word in each.name.split("."))
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.lineno, node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.FunctionDef):
            yield node.lineno, node.name


SAMPLE = """
import functools

@functools.cache
def outer(x):
    result = _inner(x)
    if x:
        return result
    return (result or
            x)

def _inner(x):
    for each in map(lambda y:
                    y + 1, [1] if x else []):
        return each
    return 0
"""


def test_lines_that_do_not_run_are_told(tmp_path: Path):
    """A branch, a line of an expression, the body of a lambda, a function below, a cached result.

    The first branch of a conditional expression counts as run, whichever runs.
    """
    module = types.ModuleType("sample")
    module.__file__ = str(tmp_path / "sample.py")
    Path(module.__file__).write_text(SAMPLE)
    exec(compile(SAMPLE, module.__file__, "exec"), vars(module))
    wanted = lines.lines("outer", module)

    def missed(*values: int) -> list[int]:
        lines.forget(module)
        with lines.executed(module) as seen:
            for value in values:
                module.outer(value)
        return sorted({number for _, number in wanted - seen})

    assert missed(0, 1) == [] and missed() == sorted({number for _, number in wanted})
    assert missed(0) == [8, 13, 14, 15] and missed(1) == [9, 10, 16]
    with lines.executed(module) as seen:
        module.outer(1)
    assert seen == set()
