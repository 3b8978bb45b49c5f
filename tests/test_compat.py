"""Private torch symbols: those of the table exist, and nothing else is used, or used elsewhere."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import gdpa_inductor
from gdpa_inductor._compat.versions import TESTED

from .compat.symbols import SYMBOLS

PACKAGE = Path(gdpa_inductor.__file__).parent
COMPAT = PACKAGE / "_compat"
INSTALLED = ".".join(torch.__version__.split(".")[:2])

# Looks private, and may be used anywhere: name → why.
ALLOWED = {
    "torch._check": "documented for everyone",
    "_to_copy": "an operator of ATen: the name belongs to its schema",
    "_replace": "a public method of named tuples",
}
# Nodes of symbolic sizes have no underscore: `size.node.expr`.
SIZE_NODE = {name.split(".")[-1] for name in SYMBOLS if ".SymNode." in name}


def last(row: str) -> str:
    """The attribute, or the parameter in brackets, of a row of the table."""
    return row.rstrip(")").replace("(", ".").split(".")[-1]


LAST = set(map(last, SYMBOLS))


def is_private(part: str) -> bool:
    dunder = part.startswith("__") and part.endswith("__")
    return part.startswith("_") and part != "_" and not dunder


def is_hidden(name: str) -> bool:
    """Whether a dotted name of torch is private. What `torch.ops` holds are operators."""
    if name.split(".")[0] != "torch" or name.startswith("torch.ops."):
        return False
    return name.startswith("torch.fx.experimental") or any(map(is_private, name.split(".")))


class Uses(ast.NodeVisitor):
    """What a file uses of torch: dotted names, resolved through its imports; and, of objects that
    are not known, attributes, strings and keywords with an underscore in front.
    """

    def __init__(self, source: str, own: frozenset[str] = frozenset()) -> None:
        self.dotted: set[str] = set()
        self.unowned: set[str] = set()
        self.size_nodes: set[str] = set()
        self.words: set[str] = set()
        self.strings: set[str] = set()
        self._scopes: list[dict[str, str]] = [{}]
        self._own = own - LAST
        self.visit(ast.parse(source))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._scopes.append({})
        self.generic_visit(node)
        self._scopes.pop()

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._scopes[-1][alias.asname or alias.name.split(".")[0]] = (
                alias.name if alias.asname else alias.name.split(".")[0]
            )
            self.dotted.add(alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names if not node.level else []:
            self._scopes[-1][alias.asname or alias.name] = f"{node.module}.{alias.name}"
            self.dotted.add(f"{node.module}.{alias.name}")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        chain, value = [node.attr], node.value
        while isinstance(value, ast.Attribute):
            chain.insert(0, value.attr)
            value = value.value
        owner = None
        if isinstance(value, ast.Name):
            owner = next((s[value.id] for s in reversed(self._scopes) if value.id in s), None)
        else:
            self.visit(value)
        self.words.update(chain)
        if owner is not None:
            self.dotted.add(".".join([owner, *chain]))
            return
        of_self = isinstance(value, ast.Name) and value.id in ("self", "cls")
        self._note(*chain[of_self:])
        if "node" in chain[:-1] and isinstance(value, ast.Name):
            self.size_nodes.update({chain[chain.index("node") + 1]} & SIZE_NODE)
        self.size_nodes.update({"shape_env"} & set(chain))

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and node.value.isidentifier():
            self.words.add(node.value)
            self.strings.add(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        """`getattr(x, "_name")` is as good as `x._name`."""
        self.generic_visit(node)
        reads = isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr")
        if reads and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
            self._note(str(node.args[1].value))

    def visit_keyword(self, node: ast.keyword) -> None:
        self.generic_visit(node)
        if node.arg is not None:
            self.words.add(node.arg)
            self._note(node.arg)

    def _note(self, *names: str) -> None:
        self.unowned.update(name for name in names if is_private(name) and name not in self._own)

    @property
    def private(self) -> set[str]:
        return {name for name in self.dotted if is_hidden(name)} | self.unowned


def defined(path: Path) -> Iterator[str]:
    """The names that a file gives to things of its own."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


FILES = sorted(p for p in PACKAGE.rglob("*.py") if COMPAT not in p.parents)
WRAPPERS = sorted(p for p in COMPAT.glob("*.py") if p.stem != "versions")
OWN = frozenset(name for path in [*FILES, *WRAPPERS] for name in defined(path))


def uses(path: Path) -> Uses:
    return Uses(path.read_text(), OWN)


def of_package(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", FILES, ids=of_package)
def test_private_torch_comes_through_compat(path: Path):
    file_uses = uses(path)
    assert file_uses.private - ALLOWED.keys() == set()
    assert file_uses.size_nodes == set(), "sizes are read through `_compat.shapes`"


@pytest.mark.parametrize("path", WRAPPERS, ids=of_package)
def test_what_the_wrappers_use_is_in_the_table(path: Path):
    file_uses = uses(path)
    dotted = {name for name in file_uses.dotted if is_hidden(name) and not listed(name)}
    assert dotted - ALLOWED.keys() == set()
    named = file_uses.unowned | {name for name in file_uses.strings if is_private(name)}
    assert named - LAST == set()


def listed(name: str) -> bool:
    """A symbol of the table, something of one, or a module that holds one."""
    return any(
        name == row or name.startswith(f"{row}.") or row.startswith(f"{name}.") for row in SYMBOLS
    )


def test_every_row_of_the_table_is_used():
    all_uses = [uses(path) for path in WRAPPERS]
    words = {part for use in all_uses for name in use.dotted for part in name.split(".")}
    words = words.union(*(use.words for use in all_uses))
    assert {row for row in SYMBOLS if last(row) not in words} == set()


def test_every_exception_is_needed():
    all_uses = [uses(path) for path in [*FILES, *WRAPPERS]]
    assert ALLOWED.keys() - set().union(*(use.private for use in all_uses)) == set()


@pytest.mark.parametrize("name", SYMBOLS)
def test_it_exists(name: str):
    """In a torch that is tested, exactly as the table says. In another, what all of them have."""
    versions, reason = SYMBOLS[name]
    assert versions and set(versions) <= set(TESTED) and reason
    if INSTALLED in versions or versions == TESTED:
        assert exists(name)
    elif INSTALLED in TESTED:
        assert not exists(name)


def exists(name: str) -> bool:
    """Whether torch has it: an attribute, a parameter in brackets; or, of instances alone, a name
    in the source of their class.
    """
    name, _, parameter = name.rstrip(")").partition("(")
    *path, attribute = name.split(".")
    owner = resolved(path)
    if parameter:
        return parameter in inspect.signature(getattr(owner, attribute)).parameters
    return hasattr(owner, attribute) or any(
        attribute in source(base) for base in getattr(owner, "__mro__", ())
    )


def resolved(path: list[str]) -> object:
    """The module, or the class in a module, that a path names."""
    owner: object = importlib.import_module(path[0])
    for end, part in enumerate(path[1:], 2):
        if not hasattr(owner, part):
            importlib.import_module(".".join(path[:end]))
        owner = getattr(owner, part)
    return owner


def source(owner: type) -> set[str]:
    try:
        text = textwrap.dedent(inspect.getsource(owner))
    except (TypeError, OSError):  # written in C++
        return set()
    return set(re.findall(r"\w+", text))


PRIVATE = {
    "from torch._dynamo import config": "torch._dynamo.config",
    "import torch._inductor.ir": "torch._inductor.ir",
    "from torch.fx.experimental.proxy_tensor import make_fx": (
        "torch.fx.experimental.proxy_tensor.make_fx"
    ),
    "import torch\ntorch._C._set_grad_enabled(False)": "torch._C._set_grad_enabled",
    "import torch as t\nt.amp.autocast_mode._enter_autocast": (
        "torch.amp.autocast_mode._enter_autocast"
    ),
    "def f(x):\n    from torch import _guards as g\n    return g.tracing": "torch._guards.tracing",
    "address = lambda storage: storage._cdata": "_cdata",
    "version = lambda x: getattr(x, '_version')": "_version",
    "trace(f, _allow_non_fake_inputs=True)": "_allow_non_fake_inputs",
}


@pytest.mark.parametrize("text", PRIVATE)
def test_a_private_symbol_is_seen(text: str):
    assert PRIVATE[text] in Uses(text, OWN).private


@pytest.mark.parametrize("text", ["size.node.expr", "x.fake_mode.shape_env", "f(x.node.hint)"])
def test_the_node_of_a_size_is_seen(text: str):
    assert Uses(text).size_nodes


@pytest.mark.parametrize("text", ["self._values", "torch.Tensor", "claim.node.name", "a.__name__"])
def test_what_is_public_or_its_own_is_not(text: str):
    file_uses = Uses(f"import torch\n{text}", OWN)
    assert not file_uses.private and not file_uses.size_nodes
