"""Which lines of a module of `_compat` a test has run.

The test `test_f` of a function `f` has to run every line of `f`, and of the private functions that
it calls. So it uses each symbol that `f` names, in the installed torch.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import gdpa_inductor._compat

Line = tuple[str, int]  # the name of the code, and the number


def modules() -> list[str]:
    """The modules of `_compat` that hold functions."""
    (folder,) = gdpa_inductor._compat.__path__
    return [module.name for module in pkgutil.iter_modules([folder])]


def load(name: str) -> ModuleType:
    return importlib.import_module(f"gdpa_inductor._compat.{name}")


def functions(module: ModuleType) -> dict[str, FunctionType]:
    """The functions that a module defines, below their decorators."""
    named = {name: inspect.unwrap(value) for name, value in vars(module).items() if callable(value)}
    return {
        name: value
        for name, value in named.items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    }


def private_below(name: str, module: ModuleType) -> set[str]:
    """The private functions of the module that a function calls, at any depth."""
    known, seen, left = functions(module), set(), [name]
    while left:
        for code in codes(known[left.pop()].__code__):
            new = {n for n in code.co_names if n.startswith("_") and n in known} - seen
            seen |= new
            left += new
    return seen


def codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and those inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def lines(name: str, module: ModuleType) -> set[Line]:
    """The lines of a function and of the private functions below it, but for their first."""
    known = functions(module)
    return {
        (code.co_name, line)
        for each in {name, *private_below(name, module)}
        for code in codes(known[each].__code__)
        for _, line in dis.findlinestarts(code)
        if line is not None and not _is_head(code, line)
    }


def _is_head(code: CodeType, line: int) -> bool:
    """Whether a line only begins a function; the body of a lambda begins there too."""
    return line == code.co_firstlineno and code.co_name != "<lambda>"


def forget(module: ModuleType) -> None:
    """Empty the caches of a module's functions, so that they run."""
    for value in vars(module).values():
        if isinstance(value, functools._lru_cache_wrapper):
            value.cache_clear()


@contextlib.contextmanager
def executed(module: ModuleType) -> Iterator[set[Line]]:
    """The lines of a module that run in this context."""
    places: set[Line] = set()

    def within(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            places.add((frame.f_code.co_name, frame.f_lineno))
        return within

    def entered(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != module.__file__:
            return None
        places.add((frame.f_code.co_name, frame.f_lineno))
        return within

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        yield places
    finally:
        sys.settrace(before)
