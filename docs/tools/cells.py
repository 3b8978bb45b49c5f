"""What stands in the tables of docs/benchmarks.md: rows of a run to a header and lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks.cases import Case
from benchmarks.models import summary
from benchmarks.output import number, ratio
from benchmarks.worker import SKIPPED

Row = dict[str, Any]
Key = tuple[str, str]  # measure, contender
OURS = ("gdpa", "gdpa-always", "gdpa-chunked")
WORDS = {
    "gdpa": "gdpa", "gdpa-always": "gdpa", "gdpa-chunked": "in chunks",
    "gdpa-triton": "Triton", "inductor": "Inductor", "eager": "eager",
    "meta": "`meta`", "hstu": "`hstu`",
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One file: header and rows."""

    machine: Row
    command: str
    note: str
    rows: list[Row]


def length(row: Row) -> int:
    return int(row["case"]["length"] if "case" in row else row["shape"][2])


def grouped(rows: Iterable[Row], label: Callable[[Row], str]) -> dict[str, dict[Key, Row]]:
    """By label, then by measure and contender."""
    groups: dict[str, dict[Key, Row]] = {}
    for row in rows:
        groups.setdefault(label(row), {})[row["measure"], row["contender"]] = row
    return groups


def case_label(row: Row) -> str:
    """Such as `silu, N = 1024`."""
    case = row["case"]
    said = {"bias": "[H, N, N]", "scores": "[B, H, N, N]"}
    first = said.get(case["variant"], case["activation"].replace("gelu_tanh", "tanh-gelu"))
    if case["variant"] == "model":
        return f"{first}, {'×'.join(str(case[k]) for k in ('batch', 'heads', 'length'))}"
    if case.get("value_dim"):
        first += f", {case['dtype']}, D = {case['head_dim']}, values {case['value_dim']}"
    fill = f", fill {case['fill']:g}" if case["fill"] else ""
    keys = f", {case['keys']} keys" if case["keys"] else ""
    return f"{first}, N = {case['length']}{fill}{keys}"


def refused(row: Row) -> bool:
    """Ours did not fuse the case."""
    return row["contender"] in OURS and "rejected=" in row["said"] and "matched=" not in row["said"]


def figure(row: Row | None, unit: str) -> str:
    if row is None:
        return "–"
    if row["error"]:
        words = {"OutOfMemory": "out of memory", SKIPPED: "skipped"}
        return next((word for sign, word in words.items() if sign in row["error"]), "failed")
    if refused(row) and unit != "peak_mib":
        return "not fused"
    forms = {"ms": ".2f", "compile_s": ".2f"}
    return format(row[unit], forms.get(unit, ".0f")) if row[unit] is not None else "–"


def compared(unit: str, *measures: str, ratios: bool = True) -> Callable[[Run], list[list[str]]]:
    """A line per case; a column per measure and contender. ratios: of their time to ours."""

    def cells(run: Run) -> list[list[str]]:
        names = list(dict.fromkeys(row["contender"] for row in run.rows))
        wanted = [(m, n) for m in measures for n in names
                  if any(r["measure"] == m and r["contender"] == n for r in run.rows)]  # fmt: skip
        header = [""]
        for measure, name in wanted:
            first = name == next(n for m, n in wanted if m == measure)
            header.append(f"{measure}: {WORDS[name]}" if first else WORDS[name])
        lines = []
        for label, by_key in grouped(run.rows, case_label).items():
            line = [label]
            for measure, name in wanted:
                row = by_key.get((measure, name))
                own = next((by_key[measure, n] for n in OURS if (measure, n) in by_key), None)
                times = faster(row, own) if ratios and name not in OURS else ""
                line.append(figure(row, unit) + times)
            lines.append(line)
        return [header, *lines]

    return cells


def modelled(measure: str, *columns: str) -> Callable[[Run], list[list[str]]]:
    """Some columns of what `bench models` prints: a line for each model."""

    def cells(run: Run) -> list[list[str]]:
        header, *lines = summary.lines(run.rows)
        places = [header.index(name) for name in ("row", *columns)]
        rows = [header, *(line for line in lines if line[1] == measure)]
        return [[line[place] or "–" for place in places] for line in rows]

    return cells


def first_calls(run: Run) -> list[list[str]]:
    """A line for each case; seconds of both processes, and by how much ours are more."""
    lines = []
    for label, by_key in grouped(run.rows, compile_label).items():
        line = [label]
        for measure in ("cold", "warm"):
            ours, stock = by_key.get((measure, "gdpa")), by_key.get((measure, "inductor"))
            line += [figure(ours, "compile_s"), figure(stock, "compile_s")]
            line.append(number(ratio(ours, stock, "compile_s"), ".2f") or "–")
        lines.append(line)
    header = ["", "cold: gdpa", "Inductor", "ratio", "warm: gdpa", "Inductor", "ratio"]
    return [header, *lines]


def compile_label(row: Row) -> str:
    """Such as `silu, causal, 32×4×1024×128`."""
    case = row["case"]
    sizes = "×".join(str(case[name]) for name in ("batch", "heads", "length", "head_dim"))
    kind = {"none": "", "model": ""}.get(case["variant"], f", {case['variant']}")
    return f"{case['activation']}{kind}, {sizes}"


def recommender(run: Run) -> list[list[str]]:
    """What `bench models --train` prints, a line a run."""
    header, *lines = summary.trained(run.rows)
    return [header, *([WORDS[name], *(cell or "–" for cell in rest)] for name, *rest in lines)]


def demonstrated(run: Run) -> list[list[str]]:
    """A line for each contender of the demo; times where the machine was quiet."""
    header = ["", "steps", "ms a step", "MiB", "HR@10", "NDCG@10", "loss curve from eager's"]
    lines = []
    for row in run.rows:
        cells = (("steps", "d"), ("step_ms", ".1f"), ("peak_mib", ".0f"))
        quality = [f"{row['metrics'][name]:.4f}" for name in ("HR@10", "NDCG@10")]
        lines.append(
            [
                WORDS.get(row["contender"], row["contender"]),
                *(number(row.get(name), form) or "–" for name, form in cells), *quality,
                number(row.get("curve") or None, ".0e") or "–",
            ]
        )  # fmt: skip
    columns = [place for place, name in enumerate(header) if name != "ms a step" or timed(run)]
    return [[line[place] for place in columns] for line in (header, *lines)]


def timed(run: Run) -> bool:
    return any(row.get("step_ms") for row in run.rows)


def cached(run: Run) -> list[list[str]]:
    """A line for each cache: times, and how fast keys and values are read beside a copy of them."""
    header = ["", "ms: gdpa", "Inductor", "GB/s", "of a copy", "TFLOP/s"]
    lines = []
    for label, by_key in grouped(run.rows, cache_label).items():
        by_name = {name: row for (_, name), row in by_key.items()}
        own = next((by_name[name] for name in OURS if name in by_name), None)
        stock, copy = by_name.get("inductor"), by_name.get("copy")
        line = [label, figure(own, "ms"), figure(stock, "ms") + faster(stock, own), "–", "–", "–"]
        if own and own["ms"]:
            line[3] = f"{Case.parse(own['case']).cache_bytes / own['ms'] / 1e6:.0f}"
            line[4] = f"{copy['ms'] / own['ms']:.0%}" if copy and copy["ms"] else "–"
            line[5] = figure(own, "tflops")
        lines.append(line)
    return [header, *lines]


def cache_label(row: Row) -> str:
    """Such as `16 queries, 256 sequences, jagged`."""
    case = row["case"]
    queries = "1 query" if case["length"] == 1 else f"{case['length']} queries"
    kind = {0.0: "dense", 1.0: "jagged"}.get(case["fill"], f"jagged, fill {case['fill']:g}")
    return f"{queries}, {case['batch']} sequences, {kind}"


def faster(row: Row | None, own: Row | None) -> str:
    """How much faster ours is than a row: ` (2.25×)`."""
    if not row or not own or not row["ms"] or not own["ms"] or refused(own):
        return ""
    return f" ({row['ms'] / own['ms']:.2f}×)"


def grid(measure: str) -> Callable[[Run], list[list[str]]]:
    """Types and head dims × lengths; a cell is stock Inductor's time over ours."""
    types = {"bfloat16": "bf16", "float32": "TF32"}

    def label(row: Row) -> str:
        return f"{types[row['case']['dtype']]}, D = {row['case']['head_dim']}"

    def cells(run: Run) -> list[list[str]]:
        rows = [row for row in run.rows if row["measure"] == measure]
        lengths = sorted({length(row) for row in rows})
        lines = []
        for name in dict.fromkeys(map(label, rows)):
            line = [name]
            for n in lengths:
                here = {r["contender"]: r for r in rows if label(r) == name and length(r) == n}
                ours, stock = here.get("gdpa"), here.get("inductor")
                unfused = ours is not None and refused(ours)
                line.append("left" if unfused else faster(stock, ours).strip(" ()") or "–")
            lines.append(line)
        return [["", *map(str, lengths)], *lines]

    return cells


# Contenders of `bench ceiling`, in the order of the table; what is not here is not shown.
CEILING = {
    "products": "the products alone (bound)",
    "products, 80": "the products alone (bound)",
    "products and silu": "the products and silu (bound)",
    "products and silu, 80, ordered": "the products and silu, fixed order (bound)",
    "gdpa silu cute": "gdpa, silu, CuTe",
    "gdpa gelu_tanh cute": "gdpa, tanh-gelu, CuTe",
    "gdpa silu triton": "gdpa, silu, Triton",
    "gdpa gelu_tanh triton": "gdpa, tanh-gelu, Triton",
    "cudnn": "cuDNN, softmax",
    "fa3": "FlashAttention-3, softmax",
    "fa4": "FlashAttention-4, softmax",
    "fa4 deterministic": "FlashAttention-4, softmax, deterministic",
}
CHARTED = ("gdpa silu cute", "gdpa silu triton", "cudnn", "fa4")


def ceiling(measure: str) -> Callable[[Run], list[list[str]]]:
    def cells(run: Run) -> list[list[str]]:
        rows = [row for row in run.rows if row["measure"] == measure]
        lengths = sorted({length(row) for row in rows})
        row_of = {(row["contender"], length(row)): row for row in rows}
        lines = [
            [
                words,
                *(
                    f"{row_of[name, n]['tflops']:.0f}" if (name, n) in row_of else "–"
                    for n in lengths
                ),
            ]
            for name, words in CEILING.items()
            if any(row["contender"] == name for row in rows)
        ]
        return [["", *(f"N = {n}" for n in lengths)], *lines]

    return cells
