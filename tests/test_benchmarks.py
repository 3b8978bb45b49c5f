"""docs/benchmarks.md, README's chart and the others are those that `make benchmarks` writes."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cases import Case
from benchmarks.machine import header
from benchmarks.worker import Measurement, off_this_machine
from docs.tools import benchmarks, svg
from docs.tools.cells import Run, case_label, demonstrated
from docs.tools.tables import TABLES, trained

CASE = Case("silu", "none", 32, 4, 1024, 128, "bfloat16", "cuda")


def row(contender: str, measure: str = "step", case: Case = CASE, **fields: Any) -> dict[str, Any]:
    measured = Measurement(dataclasses.asdict(case), contender, measure, **fields)
    return dataclasses.asdict(measured)


def dense(*rows: dict[str, Any]) -> str:
    """The first table of such a run."""
    return of_file("dense", *rows)["dense"]


def of_file(file: str, *rows: dict[str, Any]) -> dict[str, str]:
    """The tables of such a run, by name."""
    run = Run({}, "", "", list(rows))
    return {table.name: table.markdown(run) for table in TABLES if table.file == file}


def test_generated_pages_are_those_of_the_measurements():
    texts = benchmarks.pages(benchmarks.runs())
    assert len(texts) > 4
    for path, words in texts.items():
        assert path.read_text() == words, f"{path.name}: make benchmarks"
    assert set((benchmarks.DOCS / "charts").glob("*.svg")) <= set(texts)


def test_the_page_begins_with_its_results():
    runs = benchmarks.runs()
    page = benchmarks.headline(runs)
    assert page.count("- **") == 3 and "NVIDIA H200" in page
    (eager, stock, ours) = (trained(runs["recommender"], n) for n in ("eager", "inductor", "gdpa"))
    assert f"{stock['ms'] / ours['ms']:.1f} times as fast" in page and eager["largest"] is None
    text = (benchmarks.DOCS / "benchmarks.md").read_text()
    assert text.index("**A whole recommender**") < text.index("How it is measured")
    assert benchmarks.headline({"models": runs["models"]}).count("- **") == 1


def test_the_demo_stands_with_times_only_where_it_was_quiet():
    rows = [
        {"contender": "eager", "measure": "demo", "steps": 3, "step_ms": 7.0, "peak_mib": 9.0,
         "metrics": {"HR@10": 0.5, "NDCG@10": 0.25}, "curve": 0.0},
        {"contender": "popularity alone", "metrics": {"HR@10": 0.1, "NDCG@10": 0.05}},
    ]  # fmt: skip
    header, eager, popular = demonstrated(Run({}, "", "", rows))
    assert header[2] == "ms a step" and eager == ["eager", "3", "7.0", "9", "0.5000", "0.2500", "–"]
    assert popular == ["popularity alone", "–", "–", "–", "0.1000", "0.0500", "–"]
    header, eager, _ = demonstrated(Run({}, "", "", [{**rows[0], "step_ms": None}, rows[1]]))
    assert "ms a step" not in header and eager == ["eager", "3", "9", "0.5000", "0.2500", "–"]


def test_measurements_do_not_say_where_files_lay():
    said = [row["said"] for run in benchmarks.runs().values() for row in run.rows if "said" in row]
    assert any(said) and said == [*map(off_this_machine, said)]


def test_a_file_begins_with_its_machine(tmp_path: Path):
    good = [header("cpu", ("cpu",)), row("gdpa", ms=1.0)]
    (tmp_path / "dense.jsonl").write_text("\n".join(map(json.dumps, good)) + "\n\na table\n")
    assert len(benchmarks.runs(tmp_path)["dense"].rows) == 1
    (tmp_path / "dense.jsonl").write_text(json.dumps(good[1]))
    with pytest.raises(ValueError, match="the machine and the command"):
        benchmarks.runs(tmp_path)


def test_a_file_of_no_table_is_an_error(tmp_path: Path):
    (tmp_path / "other.jsonl").write_text(json.dumps(header("cpu", ())))
    with pytest.raises(ValueError, match="other"):
        benchmarks.runs(tmp_path)


def test_lengths_stand_in_order_within_a_kind():
    """With --at-once a row comes as it is measured."""
    kinds = [("bias", 2048), ("scores", 1024), ("bias", 512), ("scores", 512)]
    cases = [dataclasses.replace(CASE, variant=name, length=n) for name, n in kinds]
    ordered_rows = benchmarks.by_length([row("gdpa", case=case) for case in cases])
    ordered = [(r["case"]["variant"], r["case"]["length"]) for r in ordered_rows]
    assert ordered == [("bias", 512), ("bias", 2048), ("scores", 512), ("scores", 1024)]


def test_others_stand_with_their_time_over_ours():
    text = dense(row("gdpa", ms=1.0, tflops=400.0), row("inductor", ms=2.25, tflops=178.0))
    assert "| silu, N = 1024 | 400 | 178 (2.25×) |" in text


def test_cells_without_a_figure_say_why():
    ours = row("gdpa", ms=1.0, tflops=1.0, said="rejected=1; SLOWER")
    assert "| not fused |" in dense(ours)
    lost = row("inductor", error="OutOfMemoryError: CUDA")
    assert "| out of memory |" in dense(lost) and "| failed |" in dense(row("eager", error="x"))


def test_a_model_stands_with_what_limits_it():
    case = Case("pffn", "model", 128, 4, 1024, 128, "autocast", "cuda")
    rows = [row("gdpa", case=case, ms=2.0), row("inductor", case=case, ms=3.0, share=0.5)]
    tables = of_file("models", *rows)
    assert "| pffn | – | 3.00 | 2.00 | 1.50 | 50% | – |" in tables["models"]
    assert "pffn" not in tables["models_forward"] and "pffn" in tables["models_memory"]


def test_a_cache_is_compared_with_a_copy_of_it():
    case = Case("silu", "cache", 256, 4, 1, 128, "bfloat16", "cuda", keys=4096)
    both = {"case": case, "measure": "forward"}
    rows = [row("gdpa", ms=2.0, tflops=1.0, **both), row("copy", ms=1.5, **both)]
    rows.append(row("inductor", ms=3.0, tflops=0.7, **both))
    text = of_file("serving", *rows)["serving"]
    assert "| 1 query, 256 sequences, dense | 2.00 | 3.00 (1.50×) | 1074 | 75% | 1 |" in text


def test_a_recommender_stands_with_its_curve():
    case = Case("recommender", "model", 128, 4, 1024, 64, "autocast", "cuda")
    trained = {"case": case, "measure": "train", "tokens": 5e5, "losses": [7.0] * 20}
    other = dataclasses.replace(case, seed=1)
    rows = [
        row("gdpa", ms=30.0, **trained), row("inductor", ms=90.0, **trained),
        row("inductor", ms=91.0, **{**trained, "case": other, "losses": [6.0] * 20}),
        row("gdpa", "largest", case, largest_batch=4096),
    ]  # fmt: skip
    text = of_file("recommender", *rows)["recommender"]
    assert "| gdpa | 0 | 30.00 | 500000 | – | 4096 | 7.0000 | 7.0000 | 0.00 |" in text
    assert "| Inductor | 1 | 91.00 | 500000 | – | – | 6.0000 | 6.0000 | – |" in text


def test_a_compile_stands_with_its_second_process():
    causal = dataclasses.replace(CASE, variant="causal")
    model = Case("hstu-padded", "model", 16, 4, 2048, 128, "bfloat16", "cuda")
    rows = [
        row("gdpa", "cold", compile_s=12.0), row("gdpa", "warm", compile_s=0.5),
        row("inductor", "cold", compile_s=2.0), row("inductor", "warm", compile_s=0.4),
        row("gdpa", "cold", causal, compile_s=9.0), row("gdpa", "warm", model, compile_s=1.0),
        row("inductor", "warm", model, error="skipped: budget"),
    ]  # fmt: skip
    text = of_file("compile", *rows)["compile"]
    assert "| silu, 32×4×1024×128 | 12.00 | 2.00 | 6.00 | 0.50 | 0.40 | 1.25 |" in text
    assert "| silu, causal, 32×4×1024×128 | 9.00 | – | – | – | – | – |" in text
    assert "| hstu-padded, 16×4×2048×128 | – | – | – | 1.00 | skipped | – |" in text


def test_chunks_stand_with_time_and_memory():
    case = Case("laplace", "none", 32, 1, 1024, 128, "bfloat16", "cuda", value_dim=1024)
    both = ("gdpa-chunked", 1.0, 100.0), ("inductor", 1.5, 300.0)
    rows = [
        row(name, measure, case, ms=ms, peak_mib=mib)
        for measure in ("forward", "step")
        for name, ms, mib in both
    ]
    markdown = of_file("wide", *rows)
    label = "laplace, bfloat16, D = 128, values 1024, N = 1024"
    for table in ("wide", "wide_step"):
        assert f"| {label} | 1.00 | 1.50 (1.50×) |" in markdown[table]
    assert f"| {label} | 100 | 300 |" in markdown["wide_memory"]


def test_labels_tell_jagged_cases_apart():
    jagged = dataclasses.replace(CASE, activation="gelu_tanh", fill=0.5, keys=256)
    assert case_label(row("gdpa", case=jagged)) == "tanh-gelu, N = 1024, fill 0.5, 256 keys"


def test_bars_are_as_long_as_their_values():
    panel = svg.Panel("speed", "length", {"512": {"gdpa": 400.0, "other": 100.0, "none": None}})
    text = svg.chart([panel], "a < b")
    tall = [float(part.split('"')[0]) for part in text.split('height="')[1:]]
    bars = [height for height in tall if height != 12]  # of the legend
    assert bars == [svg.PLOT, svg.PLOT / 4] and "a &lt; b" in text
