"""The report for the user: regions with their kernels, candidates that are not fused, graph breaks.

`explain` and `rewrite` return a `Report`. It prints as text, in the characters that standard
output can encode, and a notebook shows it as a page.
`to_dict()` is for programs, and `to_html()` for a browser. This module imports result types only: a
report finds, chooses and runs nothing.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, overload

from ..operands import dtype_name
from ..patterns import Match
from ..rejection import Rejection
from ..terminal import printable
from . import sections
from .page import fragment, page
from .sections import GraphBreak, Listing, SkippedFrame


@dataclass(frozen=True, repr=False)
class Report:
    """The report of one model: see the module."""

    matches: tuple[Match, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    graph_breaks: tuple[GraphBreak, ...] = ()
    skipped_frames: tuple[SkippedFrame, ...] = ()
    graphs: tuple[Listing, ...] = ()

    def __repr__(self) -> str:
        return printable(f"<{self.summary}; print() lists them>")

    def __str__(self) -> str:
        lines = [self.summary]
        for section in sections.sections(self):
            lines += ["", section.title]
            for entry in section.entries:
                advised = [f"to change: {entry.advice}"] if entry.advice else []
                lines += [f"  {entry.title}"]
                lines += [f"      {line}" for line in (*entry.lines, *advised)]
        return printable("\n".join(lines))

    def _repr_html_(self) -> str:
        """The fragment that a notebook shows."""
        return fragment(self)

    @property
    def summary(self) -> str:
        """One line: how many of each, and how much memory their scores take."""
        return sections.summary(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers; symbolic sizes as text."""
        return {
            "matches": [match_dict(m) for m in self.matches],
            "rejections": [rejection_dict(r) for r in self.rejections],
            "graph_breaks": [asdict(b) for b in self.graph_breaks],
            "skipped_frames": [asdict(f) for f in self.skipped_frames],
            "graphs": [
                {"title": g.title, "nodes": [line.name for line in g.lines]} for g in self.graphs
            ],
        }

    @overload
    def to_html(self, path: None = None) -> str: ...
    @overload
    def to_html(self, path: str | os.PathLike[str]) -> Path: ...
    def to_html(self, path: str | os.PathLike[str] | None = None) -> str | Path:
        """A page in one file, without outside resources: the lists above, and each graph.

        Returns the text; with a `path`, the text is written there and the path returned.
        """
        text = page(self)
        if path is None:
            return text
        written = Path(path)
        written.write_text(text, encoding="utf-8")
        return written


def match_dict(match: Match) -> dict[str, Any]:
    p = match.problem
    return {
        "location": match.location,
        "module": match.module,
        "formula": p.program.formula,
        "score_mod": str(p.program),
        "query": _sizes(p.batch, p.heads, p.rows, p.head_dim),
        "key": _sizes(p.batch, p.key_heads, p.cols, p.head_dim),
        "value": _sizes(p.batch, p.value_heads, p.cols, p.value_dim),
        "dtype": dtype_name(p.dtype),
        "value_dtype": dtype_name(p.value_dtype),
        "operands": [
            {
                "dtype": dtype_name(dtype),
                "access": list(spec.access),
                "bytes": p.aux_bytes(i),
            }
            for i, (dtype, spec) in enumerate(zip(p.aux_dtypes, p.program.aux, strict=True))
        ],
        "operand_names": [origin.name or origin.line for origin in match.origins],
        "score_bytes": p.score_bytes,
        "stored_bytes": sections.stored_bytes(p),
        "jagged": [side for side, on in (("q", p.jagged_query), ("k", p.jagged_key)) if on],
        "notes": [rejection_dict(note) for note in match.notes],
        "device": str(p.device),
        "training": p.training,
        "kernel": getattr(match.choice, "kernel", None),
        "why": getattr(match.choice, "reason", ""),
        "node": match.node,
        "replaced": list(match.replaced),
    }


def rejection_dict(rejection: Rejection) -> dict[str, Any]:
    return {
        "location": rejection.location,
        "module": rejection.module,
        "class": rejection.code.category.value,
        "code": rejection.code.name,
        "meaning": rejection.code.meaning,
        "reason": rejection.reason,
        "advice": rejection.advice,
        "formula": rejection.formula,
        "score_bytes": rejection.score_bytes,
        "node": rejection.node,
    }


def _sizes(*sizes: object) -> list[int | str]:
    return [size if isinstance(size, int) else str(size) for size in sizes]
