"""The place of a node in the user's source and modules, and its name in a report."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

from torch.fx import Node

from ..._compat import dynamo
from ..result import Origin
from . import facts, written

_LIBRARY = re.compile(r"[/\\\\](site-packages|dist-packages|torch)[/\\\\]")
_PACKAGE = os.path.join(Path(__file__).absolute().parents[2], "")


def location(node: Node) -> str:
    """`file:line` of the innermost frame of the user's own code, else of the innermost frame."""
    frame = _frame(node)
    return f"{frame.file}:{frame.line}" if frame else ""


def _frame(node: Node) -> written.Frame | None:
    """The innermost frame of the user's own code, else the innermost one."""
    frames = written.frames(node)
    own = [frame for frame in frames if not _LIBRARY.search(frame.file)]
    own = [frame for frame in own if not frame.file.startswith(_PACKAGE)]
    return [None, *frames, *own][-1]


def describe(node: Node) -> str:
    """The name of a node in a reason, such as `softmax (line 12)`."""
    line = location(node).rpartition(":")[2]
    return f"`{facts.name(node) or node.name}`" + (f" (line {line})" if line else "")


_ROOT = re.compile(r"^L\['(\w+)'\]")
# Of `L['self']._modules['layers']._parameters['bias']`, the way that a user writes `.bias`.
_MEMBER = re.compile(r"\._(?:modules|parameters|buffers)\['([^']*)'\]")

_GETATTR = re.compile(r"^getattr\((.*), '(\w+)'\)")
_GLOBAL = re.compile(r"^G\['(\w+)'\]")


def module(*nodes: Node) -> str:
    """The path of the innermost module that runs all of `nodes`, such as "layers.0", or ""."""
    paths = [_within(_modules(node)[-1]).split(".") for node in nodes]
    levels = itertools.takewhile(lambda level: len(set(level)) == 1, zip(*paths, strict=False))
    return ".".join(level[0] for level in levels)


def _modules(node: Node) -> list[str]:
    """The modules that a node was called in, the outermost first, as torch names them."""
    called = node.meta.get("nn_module_stack") or {}
    return [_written(str(path)) for path, *_ in called.values()] or [""]


def _written(path: str) -> str:
    """A path of torch's as a user writes it, but for its root."""
    path, count = _MEMBER.sub(r".\1", path), 1
    while count:
        path, count = _GETATTR.subn(r"\1.\2", path)
    return _GLOBAL.sub(r"\1", path)


def _within(path: str) -> str:
    return _ROOT.sub("", path).lstrip(".")


def stored_from(node: Node) -> str:
    """The attribute that keeps a node, or what is made from it (`self.weights = w`), or ""."""
    stored = dynamo.stored_attributes()
    for user in facts.walk([node] if stored else [], lambda n: n.users):
        if id(facts.value(user)) in stored:
            return stored[id(facts.value(user))]
    return ""


def origin(leaf: Node, user: Node) -> Origin:
    """Where a tensor that a region reads comes from.

    Its name is that of an input as the module of `user` sees it, or the user's expression for it.
    """
    source, modules = _written(dynamo.source_name(leaf)), _modules(user)
    root, frame = _ROOT.match(source), _frame(leaf)
    if root is None:
        innermost = written.frames(leaf)[-1:]  # of a library's frame the user has written nothing
        name = written.expression(leaf, frame) if frame and innermost == [frame] else ""
    elif modules[0].startswith(root[0]):
        own = _within(modules[-1])
        name = _within(source).removeprefix(f"{own}." if own else "")
    else:
        name = root[1] + source[root.end() :]
    line = "" if name or frame is None else frame.text.strip()
    if len(line) > written.LONGEST:
        line = f"{line[: written.LONGEST - 3]}..."
    return Origin(name or ("" if line else leaf.name), location(leaf), leaf.name, line)
