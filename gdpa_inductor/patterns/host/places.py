"""Where a node stands in the user's source, and how a reason names it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from torch.fx import Node

from . import facts

_LIBRARY = re.compile(r"[/\\\\](site-packages|dist-packages|torch)[/\\\\]")
_PACKAGE = os.path.join(Path(__file__).absolute().parents[2], "")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


def location(node: Node) -> str:
    """`file:line` of the innermost frame of the user's own code, else of the innermost frame."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [
        frame
        for frame in frames
        if not _LIBRARY.search(frame[0]) and not frame[0].startswith(_PACKAGE)
    ]
    chosen = own or frames
    return f"{chosen[-1][0]}:{chosen[-1][1]}" if chosen else ""


def describe(node: Node) -> str:
    """How a reason names a node: `softmax (line 12)`."""
    line = location(node).rpartition(":")[2]
    return f"`{facts.name(node) or node.name}`" + (f" (line {line})" if line else "")
