"""Softmax-free attention, found by the compiler: `torch.compile(model, backend="gdpa")`.

The public names are `gdpa_backend`, `GDPAPass`, `attention`, `explain`, `rewrite`, `regions`,
`Report`, `Options`, `OptionValues` and `GDPAError`. What needs the compiler is loaded at first use,
so importing this package costs little over torch.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any


def _only_help() -> bool:
    """Whether this is `gdpa [TOOL] --help`, which is answered without torch."""
    name, *arguments = sys.argv or [""]
    module = name == "-m" and sys.orig_argv[-len(sys.argv)] == __name__
    script = Path(name).name == "gdpa"
    return (module or script) and not {"-h", "--help", "--version"}.isdisjoint(arguments)


if TYPE_CHECKING or not _only_help():
    from . import ops as ops
    from .functional import attention
    from .options import Options, OptionValues
    from .rejection import Category, Code, GDPAError, Rejection

if TYPE_CHECKING:
    from .backend import gdpa_backend
    from .compiles import regions
    from .explaining import explain
    from .export import rewrite
    from .inductor_pass import GDPAPass
    from .report import Report

__version__ = "0.1.0"
__all__ = [
    "Category",
    "Code",
    "GDPAError",
    "GDPAPass",
    "OptionValues",
    "Options",
    "Rejection",
    "Report",
    "attention",
    "explain",
    "gdpa_backend",
    "regions",
    "rewrite",
]

_LAZY = {
    "Category": "rejection",
    "Code": "rejection",
    "GDPAError": "rejection",
    "OptionValues": "options",
    "Options": "options",
    "Rejection": "rejection",
    "attention": "functional",
    "gdpa_backend": "backend",
    "GDPAPass": "inductor_pass",
    "Report": "report",
    "explain": "explaining",
    "regions": "compiles",
    "rewrite": "export",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names too that are not loaded yet."""
    return sorted({*globals(), *__all__})
