"""What a user is told: what was rewritten and on which kernel, what was refused and why, and what
Dynamo never handed over.

A `Report` is made by `explain` and by `rewrite`. It prints as text, `to_dict()` is for programs,
`to_html()` for a browser.
Result types only are imported here: a report finds, chooses and runs nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..patterns import Match
from ..problem import Problem, Size
from ..rejection import Rejection
from .entries import GraphBreak, Listing, SkippedFrame, shorten
from .page import page

CANDIDATE = (
    "A candidate is a product whose operand is made, by pointwise, view or reduction operations "
    "only, from another product of two activations: activation(Q @ K.T) @ V."
)


@dataclass(frozen=True)
class Report:
    """All that is known about one model: see the module."""

    matches: tuple[Match, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    graph_breaks: tuple[GraphBreak, ...] = ()
    skipped_frames: tuple[SkippedFrame, ...] = ()
    graphs: tuple[Listing, ...] = ()

    def __str__(self) -> str:
        lines = [self.summary]
        for title, entries in self._sections():
            lines += ["", title]
            for place, *rest in entries:
                lines += [f"  {place}", *(f"      {line}" for line in rest)]
        return "\n".join(lines)

    @property
    def summary(self) -> str:
        """One line: how many of each."""
        counts = [
            _count(len(self.matches), "region") + " rewritten",
            _count(len(self.rejections), "candidate") + " refused",
            _count(len(self.graph_breaks), "graph break"),
            _count(len(self.skipped_frames), "skipped frame"),
        ]
        where = f" in {_count(len(self.graphs), 'graph')}" if self.graphs else ""
        return f"gdpa: {', '.join(counts)}{where}"

    def _sections(self) -> list[tuple[str, list[list[str]]]]:
        """Titles with their entries: a place, then lines below it. Empty sections are left out."""
        sections = [
            ("Rewritten", [[shorten(m.location), *match_lines(m)] for m in self.matches]),
            ("Refused", [[shorten(r.location), *rejection_lines(r)] for r in self.rejections]),
            ("Graph breaks", [[shorten(b.location), *_advised(b)] for b in self.graph_breaks]),
            (
                "Skipped by Dynamo",
                [[f"{shorten(f.location)} {f.name}()", *_advised(f)] for f in self.skipped_frames],
            ),
        ]
        if not self.matches and not self.rejections:
            sections.insert(0, ("No candidate", [[CANDIDATE]]))
        return [(title, entries) for title, entries in sections if entries]

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers; symbolic sizes as text."""
        return {
            "matches": [match_dict(m) for m in self.matches],
            "rejections": [rejection_dict(r) for r in self.rejections],
            "graph_breaks": [b.to_dict() for b in self.graph_breaks],
            "skipped_frames": [f.to_dict() for f in self.skipped_frames],
            "graphs": [
                {"title": g.title, "nodes": [line.name for line in g.lines]} for g in self.graphs
            ],
        }

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """A page in one file, without outside resources: the lists above, and each graph. Written
        to `path` if given.
        """
        text = page(self)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text


def match_lines(match: Match) -> list[str]:
    """Formula, shapes, operands between the products, kernel."""
    problem = match.problem
    lines = [f"O = ({problem.program.formula}) V, s = Q Kᵀ", shapes(problem)]
    if problem.jagged:
        lines.append(jagged(problem))
    between = operands(problem)
    if between:
        lines.append(f"between the products: {between}")
    lines.append(f"kernel: {match.choice if match.choice is not True else 'any'}")
    return [*lines, *(f"stays padded: {rejection_lines(note)[0]}" for note in match.notes)]


def rejection_lines(rejection: Rejection) -> list[str]:
    """CLASS/CODE, then the sentence."""
    return [f"{rejection.code.category.value}/{rejection.code.name}: {rejection.reason}"]


def shapes(problem: Problem) -> str:
    """`Q [2, 4, 64, 32]  K ...  V ...  float32, training`."""
    p = problem
    rows = (p.total_rows,) if p.jagged_query else (p.batch, p.rows)
    cols = (p.total_cols,) if p.jagged_key else (p.batch, p.cols)
    sizes = {
        "Q": _placed(rows, p.heads, p.head_dim),
        "K": _placed(cols, p.key_heads, p.head_dim),
        "V": _placed(cols, p.value_heads, p.value_dim),
    }
    text = "  ".join(f"{name} [{', '.join(map(str, size))}]" for name, size in sizes.items())
    dtype = (
        _dtype(p.dtype)
        if p.dtype == p.value_dtype
        else f"{_dtype(p.dtype)}, V {_dtype(p.value_dtype)}"
    )
    return f"{text}  {dtype}, {'training' if p.training else 'inference'}"


def _placed(lengths: tuple[Size, ...], heads: Size, width: Size) -> tuple[Size, ...]:
    """[B, H, N, D], or [L, H, D] of jagged values."""
    return (
        (*lengths[:-1], heads, *lengths[-1:], width)
        if len(lengths) > 1
        else (*lengths, heads, width)
    )


def jagged(problem: Problem) -> str:
    """`8 sequences, rows up to 512, keys up to 512`, of the sides that are jagged."""
    p = problem
    sides = [("rows", p.rows)] * p.jagged_query + [("keys", p.cols)] * p.jagged_key
    return f"jagged: {p.batch} sequences, " + ", ".join(f"{side} up to {n}" for side, n in sides)


def operands(problem: Problem) -> str:
    """`a0 bool [n, m], a1 float32 [h, n, m]`: what is read for each score, and by which of its
    indices.
    """
    pairs = zip(problem.aux_dtypes, problem.program.aux, strict=True)
    return ", ".join(
        f"a{i} {_dtype(dtype)} [{', '.join(spec.access)}]" for i, (dtype, spec) in enumerate(pairs)
    )


def match_dict(match: Match) -> dict[str, Any]:
    p = match.problem
    return {
        "location": match.location,
        "formula": p.program.formula,
        "score_mod": str(p.program),
        "query": _sizes(p.batch, p.heads, p.rows, p.head_dim),
        "key": _sizes(p.batch, p.key_heads, p.cols, p.head_dim),
        "value": _sizes(p.batch, p.value_heads, p.cols, p.value_dim),
        "dtype": _dtype(p.dtype),
        "value_dtype": _dtype(p.value_dtype),
        "operands": [
            {"dtype": _dtype(dtype), "access": list(spec.access)}
            for dtype, spec in zip(p.aux_dtypes, p.program.aux, strict=True)
        ],
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
        "class": rejection.code.category.value,
        "code": rejection.code.name,
        "meaning": rejection.code.meaning,
        "reason": rejection.reason,
        "node": rejection.node,
    }


def _advised(entry: GraphBreak | SkippedFrame) -> list[str]:
    return [entry.reason, *([f"to change: {entry.advice}"] if entry.advice else [])]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _dtype(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def _sizes(*sizes: object) -> list[int | str]:
    return [size if isinstance(size, int) else str(size) for size in sizes]
