"""The lists of a report: regions, fused or not, graph breaks and skipped functions.

In: a `Report`. Out: `Section`s of `Entry`s, which the text and the page print. Equal entries, such
as the layers of one model, become one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..operands import Size, dtype_name
from ..patterns import Match
from ..problem import Problem
from ..rejection import Category, Code, Rejection

if TYPE_CHECKING:
    from . import Report

CANDIDATE = (
    "A candidate is a product whose operand is made, by pointwise, view or reduction operations "
    "only, from another product of two activations: activation(Q @ K.T) @ V."
)
FUSED, COULD_BE, LEFT = "Fused", "Not fused, but could be", "Not fused"
_LEFT = (Category.NOT_GDPA, Category.NOT_PROFITABLE)
STORED = "compute a bias from positions or lengths, or store it in 16 bits (docs/masks.md)"
_LARGE = 8  # a stored operand is worth a word from this fraction of the scores' bytes on


@dataclass(frozen=True)
class GraphBreak:
    """A graph break of Dynamo. location: The user's "file:line". advice: What to change."""

    location: str
    reason: str
    advice: str


@dataclass(frozen=True)
class SkippedFrame:
    """A function that Dynamo ran without capturing it. So nothing in it can be fused."""

    name: str
    location: str
    reason: str
    advice: str


@dataclass(frozen=True)
class Line:
    """One node of a captured graph.

    match, rejection: The index in the report of the match or rejection that it belongs to, or None.
    """

    name: str
    code: str
    value: str
    location: str
    inputs: tuple[str, ...] = ()
    match: int | None = None
    rejection: int | None = None


@dataclass(frozen=True)
class Listing:
    """One graph as it was captured, before the rewrite."""

    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Entry:
    """One item of a list, or several equal ones.

    kind:     "match", "rejection" or "".
    numbers:  Their numbers in the report, from 1.
    modules:  Their modules.
    advice:   What to change, or "".
    same:     The key by which items are equal.
    """

    place: str
    lines: tuple[str, ...]
    advice: str = ""
    kind: str = ""
    numbers: tuple[int, ...] = ()
    modules: tuple[str, ...] = ()
    same: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """`model.py:12 in layers.0 … layers.11 (×12)`."""
        shown = list(dict.fromkeys(filter(None, self.modules)))
        if len(shown) > 3:
            shown = [f"{shown[0]} … {shown[-1]}"]
        where = f" in {', '.join(shown)}" if shown else ""
        count = f" (×{len(self.numbers)})" if len(self.numbers) > 1 else ""
        return f"{self.place}{where}{count}"


@dataclass(frozen=True)
class Section:
    title: str
    entries: tuple[Entry, ...]


def sections(report: Report) -> list[Section]:
    """All that is not empty, in the order in which it is printed."""
    rejections = list(enumerate(report.rejections, 1))
    all_sections = [
        Section(FUSED, _grouped(_match(m, i) for i, m in enumerate(report.matches, 1))),
        Section(COULD_BE, _grouped(_rejection(r, i) for i, r in rejections if could_be_fused(r))),
        Section(LEFT, _grouped(_rejection(r, i) for i, r in rejections if not could_be_fused(r))),
        Section("Graph breaks", tuple(map(_break, report.graph_breaks))),
        Section("Skipped by Dynamo", tuple(map(_skipped, report.skipped_frames))),
    ]
    if not report.matches and not report.rejections:
        all_sections.insert(0, Section("No candidate", (Entry(CANDIDATE, ()),)))
    return [section for section in all_sections if section.entries]


def could_be_fused(rejection: Rejection) -> bool:
    """Whether it is GDPA, or may be, and would pay."""
    return rejection.code.category not in _LEFT


def summary(report: Report) -> str:
    """The totals: how many of each, what their scores take, and stored biases and masks."""
    could = [r.score_bytes for r in report.rejections if could_be_fused(r)]
    left = [r.score_bytes for r in report.rejections]
    fused = [m.problem.score_bytes for m in report.matches]
    counts = [f"{_count(len(fused), 'region')} fused{_total(fused, ' of scores')}"]
    if stored := _stored(report):
        counts.append(f"{mebibytes(stored)} of biases and masks stored")
    counts.append(f"{len(left)} not fused{_total(left)}")
    if could:
        counts.append(f"of which {len(could)} could be")
    others = (("graph break", report.graph_breaks), ("skipped frame", report.skipped_frames))
    counts += [_count(len(entries), noun) for noun, entries in others if entries]
    where = f", in {_count(len(report.graphs), 'graph')}" if report.graphs else ""
    return f"gdpa: {', '.join(counts)}{where}"


def _stored(report: Report) -> int:
    """The bytes of all stored operands. One that several regions of a graph read counts once."""
    graphs = {line.match: listing.title for listing in report.graphs for line in listing.lines}
    sizes: dict[tuple[object, ...], int] = {}
    for number, match in enumerate(report.matches):
        for i in match.problem.stored_aux():
            node = match.origins[i].node if i < len(match.origins) else ""
            known = (graphs.get(number), match.body, node) if node else (number, i)
            sizes[known] = match.problem.aux_bytes(i) or 0
    return sum(sizes.values())


def stored_bytes(problem: Problem) -> int:
    """The bytes of aux operands with an element for each query and key, as far as known."""
    return sum(problem.aux_bytes(i) or 0 for i in problem.stored_aux())


def shorten(location: str) -> str:
    """A path below the working directory is written from there."""
    path, colon, line = location.rpartition(":")
    if not location:
        return "(no source line)"
    try:
        return f"{Path(path).relative_to(Path.cwd())}{colon}{line}"
    except ValueError:
        return location


def _total(sizes: Iterable[int | None], what: str = "") -> str:
    known = sum(size or 0 for size in sizes)
    return f" ({mebibytes(known)}{what})" if known else ""


def _grouped(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Equal ones as one; the first says what they are."""
    groups: dict[tuple[object, ...], Entry] = {}
    for entry in entries:
        key = (entry.place, entry.same)
        first = groups.get(key, replace(entry, numbers=(), modules=()))
        groups[key] = replace(
            first,
            numbers=(*first.numbers, *entry.numbers),
            modules=(*first.modules, *entry.modules),
        )
    return tuple(groups.values())


def _match(match: Match, number: int) -> Entry:
    place, nameless = shorten(match.location), replace(match, origins=())
    lines, same = tuple(match_lines(match)), tuple(match_lines(nameless))
    large = _LARGE * stored_bytes(match.problem) >= (match.problem.score_bytes or 1)
    advice = STORED if match.problem.stored_biases() and large else ""
    return Entry(place, lines, advice, "match", (number,), (match.module,), same)


def _rejection(rejection: Rejection, number: int) -> Entry:
    lines, advice = tuple(rejection_lines(rejection)), rejection.advice
    place, modules = shorten(rejection.location), (rejection.module,)
    return Entry(place, lines, advice, "rejection", (number,), modules, lines)


def _break(graph_break: GraphBreak) -> Entry:
    return Entry(shorten(graph_break.location), (graph_break.reason,), graph_break.advice)


def _skipped(frame: SkippedFrame) -> Entry:
    return Entry(f"{shorten(frame.location)} {frame.name}()", (frame.reason,), frame.advice)


def match_lines(match: Match) -> Iterator[str]:
    """Formula, shapes, operands between the products, kernel."""
    problem = match.problem
    yield f"O = ({problem.program.formula}) V, s = Q Kᵀ"
    yield shapes(problem)
    if problem.jagged:
        yield jagged(problem)
    if problem.page is not None:
        yield f"K and V are read in pages of {problem.page} rows"
    if problem.score_bytes is not None:
        yield f"scores: {mebibytes(problem.score_bytes)}, never stored"
    yield from operands(match)
    if match.also:
        yield f"{1 + len(match.also)} products with these weights in one, their values side by side"
    yield f"kernel: {match.choice if match.choice is not True else 'any'}"
    for note in match.notes:
        stays = _STAYS.get(note.code, "stays padded")
        yield f"{stays}: {rejection_text(note)}"
        yield f"    to change: {note.advice}"


_STAYS = {
    Code.TABLE_GRADIENT: "table stays",
    Code.TABLE_STORED: "bias stays",
    Code.PAGES_COPIED: "copy stays",
}


def rejection_lines(rejection: Rejection) -> Iterator[str]:
    """CLASS/CODE and the sentence, then what is known of the region."""
    yield rejection_text(rejection)
    if rejection.formula:
        yield f"O = ({rejection.formula}) V, s = Q Kᵀ"
    if rejection.score_bytes is not None:
        yield f"scores: {mebibytes(rejection.score_bytes)}"


def rejection_text(rejection: Rejection) -> str:
    return f"{rejection.code.category.value}/{rejection.code.name}: {rejection.reason}"


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
        dtype_name(p.dtype)
        if p.dtype == p.value_dtype
        else f"{dtype_name(p.dtype)}, V {dtype_name(p.value_dtype)}"
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


def operands(match: Match) -> Iterator[str]:
    """`a0 = bias, model.py:12, float32 [h, q_idx, kv_idx], stored: 2 MiB`: each tensor that is read
    for a score, by which of its indices, and its size if it has an element for each query and key.
    """
    problem = match.problem
    pairs = zip(problem.aux_dtypes, problem.program.aux, strict=True)
    for number, (dtype, spec) in enumerate(pairs):
        named = ""
        if number < len(match.origins):
            origin = match.origins[number]
            place = f", {Path(origin.location).name}" if origin.location else ""
            named = f" = {origin.name}{place}" if origin.name else f" in `{origin.line}`{place}"
        size = problem.aux_bytes(number) if number in problem.stored_aux() else None
        stored = f", stored: {mebibytes(size)}" if size else ""
        stored = ", looked up in the kernel" if spec.is_table else stored
        yield f"a{number}{named}, {dtype_name(dtype)} [{', '.join(spec.access)}]{stored}"


def mebibytes(size: int) -> str:
    """`0.035 MiB`, `2 MiB`, `12,288 MiB`."""
    value = size / 2**20
    return f"{value:,.0f} MiB" if value >= 10 else f"{value:.2g} MiB"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
