"""The user's own name or expression for a node, read from the source that its trace points to.

Dynamo's stack traces hold a line of source, and from torch 2.13 on they mark an expression in it.
An expression counts only if it is the only one there that calls what the node calls.
"""

from __future__ import annotations

import ast
import contextlib
import linecache
import re
from dataclasses import dataclass

from torch.fx import Node

from . import facts

_FRAME = re.compile(
    r' *File "(?P<file>[^"]+)", line (?P<line>\d+)[^\n]*'
    r"(?:\n    (?P<text>(?! *File )[^\n]*\S[^\n]*))?(?:\n    (?P<marks>[ ~^]*[~^][ ~^]*))?(?=\n|$)"
)
LONGEST = 60  # characters that are shown
_LINES = 20  # of a statement

_OPERATORS: dict[type[ast.AST], tuple[str, ...]] = {
    ast.Add: ("add",),
    ast.Sub: ("sub", "rsub"),
    ast.Mult: ("mul",),
    ast.Div: ("truediv", "div"),
    ast.FloorDiv: ("floordiv", "floor_divide"),
    ast.Mod: ("mod", "remainder"),
    ast.Pow: ("pow",),
    ast.MatMult: ("matmul",),
    ast.BitAnd: ("and_", "bitwise_and"),
    ast.BitOr: ("or_", "bitwise_or"),
    ast.BitXor: ("xor", "bitwise_xor"),
    ast.LShift: ("lshift",),
    ast.RShift: ("rshift",),
    ast.Invert: ("invert", "bitwise_not"),
    ast.USub: ("neg",),
    ast.Eq: ("eq",),
    ast.NotEq: ("ne",),
    ast.Lt: ("lt",),
    ast.LtE: ("le",),
    ast.Gt: ("gt",),
    ast.GtE: ("ge",),
}


@dataclass(frozen=True)
class Frame:
    """A frame of a stack trace. text: Its line of source; marks: ~ and ^ below an expression."""

    file: str
    line: str
    text: str
    marks: str


def frames(node: Node) -> list[Frame]:
    """The frames that a node was traced in, the outermost first."""
    matches = _FRAME.finditer(node.meta.get("stack_trace") or "")
    return [Frame(*((part or "").rstrip() for part in frame.groups())) for frame in matches]


def expression(node: Node, frame: Frame) -> str:
    """The variable that is assigned what `node` computes, else the expression for it, or ""."""
    text = _statement(frame)
    (statement,) = ast.parse(text).body or [ast.Pass()]
    parts = [part for part in ast.walk(statement) if isinstance(part, ast.expr)]
    called = {id(part.func) for part in parts if isinstance(part, ast.Call)}
    values = [
        part
        for part in parts
        if id(part) not in called and _is_marked(part, frame.marks) and _computes(part, node)
    ]
    if len(values) != 1:
        return ""
    if isinstance(statement, ast.Assign) and statement.value is values[0]:
        match statement.targets:
            case [ast.Name(id=name)]:
                return name
    shown = " ".join((ast.get_source_segment(text, values[0]) or "").split())
    return shown if len(shown) <= LONGEST else ""


def _statement(frame: Frame) -> str:
    """The line of a frame, with those that its statement goes on in; "" if it cannot be parsed."""
    number, lines = int(frame.line), linecache.getlines(frame.file)
    if not frame.text.isascii():  # marks are counted in columns, and Python's places in bytes
        return ""
    as_traced = lines[number - 1 : number] and lines[number - 1].strip() == frame.text
    following = lines[number : number + _LINES] if as_traced else []
    text = frame.text
    for line in ["", *following]:
        text = f"{text}\n{line.rstrip()}"
        with contextlib.suppress(SyntaxError, ValueError):
            if len(ast.parse(text).body) == 1:
                return text
    return ""


def _is_marked(part: ast.expr, marks: str) -> bool:
    """Whether an expression begins in the line, and at the mark if there is one.

    The end counts only if an operator is marked too: before torch 2.15 it may be too far.
    """
    start, end = len(marks) - len(marks.lstrip()), len(marks.rstrip())
    begins = part.lineno == 1 and (not marks or part.col_offset == start)
    return begins and ("~" not in marks or part.end_col_offset == end)


def _computes(part: ast.expr, node: Node) -> bool:
    """Whether an expression calls what a node calls."""
    called, is_method, module = facts.name(node), node.op == "call_method", _module(node)
    match part:
        case ast.Call(func=ast.Attribute(attr=name)) if module is not None:
            return module == (name, called.replace("_", ""))
        case _ if module is not None:
            return False
        case ast.BinOp(op=operator) | ast.UnaryOp(op=operator) | ast.Compare(ops=[operator]):
            return called in _OPERATORS.get(type(operator), ())
        case ast.Subscript():
            return called == "getitem"
        case ast.Attribute(attr=name) | ast.Call(func=ast.Name(id=name)):
            return called == name and not is_method
        case ast.Call(func=ast.Attribute(attr=name)):
            return called == name
    return False


def _module(node: Node) -> tuple[str, str] | None:
    """The attribute and the kind of torch's module that a node is computed in, else None.

    The frames of these modules are left out of a trace: a node may be a part of what they compute.
    It is all of it where it is called as the module is, as `linear` in nn.Linear.
    """
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    if not modules:
        return None
    path, kind = modules[-1]
    full = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
    place, _, name = full.rpartition(".")
    if not place.startswith("torch.nn."):
        return None
    return re.split(r"\W+", path.rstrip("']"))[-1], name.lower()
