"""report: text, dict and page of a report that is made by hand; completeness of docs/reasons.md."""

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from expecttest import assert_expected_inline

import gdpa_inductor
from gdpa_inductor import Code, Rejection, Report
from gdpa_inductor.lowerings import Choice
from gdpa_inductor.patterns import Match
from gdpa_inductor.patterns.result import Origin
from gdpa_inductor.problem import Problem
from gdpa_inductor.program.score_mod import ScoreMod
from gdpa_inductor.report.page import mark
from gdpa_inductor.report.sections import (
    STORED,
    GraphBreak,
    Line,
    Listing,
    SkippedFrame,
    mebibytes,
    sections,
    shorten,
)

DOCS = Path(__file__).parent.parent / "docs"

PROGRAM = ScoreMod.parse(
    "a0:f[h,q_idx,kv_idx]; a1:b[b,-,q_idx,kv_idx]; where(a1,div(silu(add(s,a0)),float(i0)),0.0)"
)
PROBLEM = Problem(
    program=PROGRAM,
    device=torch.device("cpu"),
    dtype=torch.bfloat16,
    value_dtype=torch.float32,
    aux_dtypes=(torch.float32, torch.bool),
    batch=2,
    heads=4,
    key_heads=2,
    value_heads=1,
    rows=64,
    cols=128,
    head_dim=32,
    value_dim=16,
    training=True,
)
MATCH = Match(
    PROBLEM,
    "model.py:12",
    "attention",
    Choice("cpu", "a reason"),
    ("matmul", "silu", "o"),
    module="layers.0",
    origins=(Origin("bias", "/there/model.py:9"), Origin("mask", "")),
)
REPORT = Report(
    matches=(MATCH,),
    rejections=(
        Rejection(Code.NORMALISED, "`softmax` normalises", "/elsewhere/m.py:3", "matmul_3"),
    ),
    graph_breaks=(GraphBreak("model.py:20", "a Python `if`", "use torch.where"),),
    skipped_frames=(SkippedFrame("loop", "model.py:30", "Tensor.item()", ""),),
    graphs=(
        Listing(
            "Graph 0",
            (
                *(Line(f"x{i}", f"x{i} = <f>()", "float32 [2]", "") for i in range(20)),
                Line("matmul", "matmul = matmul(x0, x1)", "", "model.py:10", ("x0", "x1"), match=0),
                Line("silu", "silu = silu(matmul)", "", "model.py:11", ("matmul",), match=0),
                Line("matmul_3", "matmul_3 = matmul(x2, x3)", "", "", ("x2", "x3"), rejection=0),
            ),
        ),
    ),
)


def test_text() -> None:
    assert_expected_inline(
        str(REPORT),
        """\
gdpa: 1 region fused (0.12 MiB of scores), 0.14 MiB of biases and masks stored, 1 not fused, 1 graph break, 1 skipped frame, in 1 graph

Fused
  model.py:12 in layers.0
      O = (where(a1, silu(s + a0)/float(i0), 0.0)) V, s = Q Kᵀ
      Q [2, 4, 64, 32]  K [2, 2, 128, 32]  V [2, 1, 128, 16]  bfloat16, V float32, training
      scores: 0.12 MiB, never stored
      a0 = bias, model.py:9, float32 [h, q_idx, kv_idx], stored: 0.12 MiB
      a1 = mask, bool [b, -, q_idx, kv_idx], stored: 0.016 MiB
      kernel: cpu (a reason)
      to change: compute a bias from positions or lengths, or store it in 16 bits (docs/masks.md)

Not fused
  /elsewhere/m.py:3
      NOT_GDPA/NORMALISED: `softmax` normalises

Graph breaks
  model.py:20
      a Python `if`
      to change: use torch.where

Skipped by Dynamo
  model.py:30 loop()
      Tensor.item()""",  # noqa: E501
    )


LAYERS = Report(
    matches=tuple(
        dataclasses.replace(
            MATCH, module=f"layers.{i}", origins=(Origin(f"getitem_{i}", "model.py:9"),)
        )
        for i in range(12)
    ),
    rejections=(
        *(
            Rejection(
                Code.SCORES_ESCAPE,
                "`mean` (line 8) uses the scores besides the second product",
                "model.py:7",
                "matmul",
                f"heads.{i}",
                "silu(s)",
                3 << 20,
            )
            for i in (0, 1)
        ),
        Rejection(Code.TOO_SMALL, "64 rows and 8 keys", "model.py:30", score_bytes=1 << 14),
    ),
)


def test_equal_regions_are_one_entry_under_their_modules() -> None:
    """Names that Dynamo gave to operands differ from layer to layer: the first one's are shown."""
    assert_expected_inline(
        str(LAYERS),
        """\
gdpa: 12 regions fused (1.5 MiB of scores), 1.7 MiB of biases and masks stored, 3 not fused (6 MiB), of which 2 could be

Fused
  model.py:12 in layers.0 … layers.11 (×12)
      O = (where(a1, silu(s + a0)/float(i0), 0.0)) V, s = Q Kᵀ
      Q [2, 4, 64, 32]  K [2, 2, 128, 32]  V [2, 1, 128, 16]  bfloat16, V float32, training
      scores: 0.12 MiB, never stored
      a0 = getitem_0, model.py:9, float32 [h, q_idx, kv_idx], stored: 0.12 MiB
      a1, bool [b, -, q_idx, kv_idx], stored: 0.016 MiB
      kernel: cpu (a reason)
      to change: compute a bias from positions or lengths, or store it in 16 bits (docs/masks.md)

Not fused, but could be
  model.py:7 in heads.0, heads.1 (×2)
      UNSUPPORTED/SCORES_ESCAPE: `mean` (line 8) uses the scores besides the second product
      O = (silu(s)) V, s = Q Kᵀ
      scores: 3 MiB
      to change: do not return or reuse the scores (`output_attentions=False`)

Not fused
  model.py:30
      NOT_PROFITABLE/TOO_SMALL: 64 rows and 8 keys
      scores: 0.016 MiB
      to change: force it with `options={'gdpa.profit': False}`""",  # noqa: E501
    )


def test_only_equal_regions_are_one_entry() -> None:
    other = dataclasses.replace(MATCH, problem=dataclasses.replace(PROBLEM, rows=65))
    (section,) = sections(Report(matches=(MATCH, other, MATCH)))
    assert [entry.numbers for entry in section.entries] == [(1, 3), (2,)]


def test_a_refusal_says_what_would_be_fused_and_how_to_force_it() -> None:
    """In the user's words, with the formula and what the scores take."""
    report = gdpa_inductor.explain(lambda q, k, v: F.silu(q @ k.mT) @ v)(
        *torch.zeros(3, 1, 8, 256, 64)
    )
    assert_expected_inline(
        re.sub(r"\S*test_report\.py:\d+", "FILE:LINE", str(report)),
        """\
gdpa: 0 regions fused, 1 not fused (2 MiB), in 1 graph

Not fused
  FILE:LINE
      NOT_PROFITABLE/SLOWER: the scores are 2 MiB; on a CPU fusing inference in float32 pays from 16 MiB
      O = (silu(s)) V, s = Q Kᵀ
      scores: 2 MiB
      to change: force it with `options={'gdpa.profit': False}`""",  # noqa: E501
    )


def test_a_bias_that_regions_share_is_stored_once() -> None:
    """By the name of a node, which is one of its graph alone."""
    origins = tuple(dataclasses.replace(x, node=x.name) for x in MATCH.origins)
    match = dataclasses.replace(MATCH, origins=origins)
    shared = tuple(dataclasses.replace(match, module=f"layers.{i}") for i in range(4))
    lines = [Line(f"o{i}", "", "", "", match=i) for i in range(4)]
    graphs = tuple(Listing(f"Graph {i}", tuple(lines[2 * i : 2 * i + 2])) for i in range(2))
    one = PROBLEM.aux_bytes(0) + PROBLEM.aux_bytes(1)
    stored = "{:.2g} MiB of biases and masks stored"
    assert stored.format(one / 2**20) in Report(shared).summary
    assert stored.format(2 * one / 2**20) in Report(shared, graphs=graphs).summary


def test_small_operands_and_vectors_are_no_matter_of_storage() -> None:
    def entry(program: str, batch: int) -> tuple[str, str]:
        parsed = ScoreMod.parse(program)
        problem = dataclasses.replace(
            PROBLEM, program=parsed, aux_dtypes=(torch.float32,), batch=batch
        )
        report = Report((dataclasses.replace(MATCH, problem=problem, origins=()),))
        ((only,),) = (section.entries for section in sections(report))
        return only.advice, next(line for line in only.lines if line.startswith("a0"))

    bias, vector = "a0:f[h,q_idx,kv_idx]; silu(add(s,a0))", "a0:f[h,kv_idx]; silu(add(s,a0))"
    assert entry(bias, 16) == (STORED, "a0, float32 [h, q_idx, kv_idx], stored: 0.12 MiB")
    assert entry(bias, 32) == ("", "a0, float32 [h, q_idx, kv_idx], stored: 0.12 MiB")
    assert entry(vector, 1) == ("", "a0, float32 [h, kv_idx]")


def test_repr_is_one_line() -> None:
    assert_expected_inline(
        repr(REPORT),
        """<gdpa: 1 region fused (0.12 MiB of scores), 0.14 MiB of biases and masks stored, 1 not fused, 1 graph break, 1 skipped frame, in 1 graph; print() lists them>""",  # noqa: E501
    )


def test_an_empty_report_says_what_a_candidate_is() -> None:
    assert_expected_inline(
        str(Report()),
        """\
gdpa: 0 regions fused, 0 not fused

No candidate
  A candidate is a product whose operand is made, by pointwise, view or reduction operations only, from another product of two activations: activation(Q @ K.T) @ V.""",  # noqa: E501
    )


def test_dict_survives_json() -> None:
    content = json.loads(json.dumps(REPORT.to_dict()))
    (match,) = content["matches"]
    assert match["query"] == [2, 4, 64, 32] and match["value"] == [2, 1, 128, 16]
    assert match["kernel"] == "cpu" and match["why"] == "a reason"
    assert ScoreMod.parse(match["score_mod"]) == PROGRAM
    assert match["operands"][1] == {
        "dtype": "bool",
        "access": ["b", "-", "q_idx", "kv_idx"],
        "bytes": 2 * 64 * 128,
    }
    assert match["stored_bytes"] == 2 * 64 * 128 + 4 * 64 * 128 * 4
    (rejection,) = content["rejections"]
    assert (rejection["class"], rejection["code"]) == ("NOT_GDPA", "NORMALISED")
    assert match["module"] == "layers.0" and match["operand_names"] == ["bias", "mask"]
    assert match["score_bytes"] == 2 * 4 * 64 * 128 * 2
    assert content["graph_breaks"] == [dataclasses.asdict(REPORT.graph_breaks[0])]
    assert content["skipped_frames"] == [dataclasses.asdict(REPORT.skipped_frames[0])]


class Page(HTMLParser):
    """Collects elements, checks that tags close."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.nodes: list[dict[str, str | None]] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.links += [attributes[name] for name in ("src", "href") if attributes.get(name)]
        if "data-name" in attributes:
            self.nodes.append(attributes)
        if tag not in ("meta", "rect", "path"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page() -> None:
    text = REPORT.to_html()
    page = Page()
    page.feed(text)
    assert page.open == [] and page.links == [] and "://" not in text
    assert "<f>" not in text and "&lt;f&gt;" in text
    kinds = {node["data-name"]: node["class"] for node in page.nodes}
    assert kinds["matmul"] == kinds["silu"] == "node match"
    assert kinds["matmul_3"] == "node rejection left" and kinds["x0"].strip() == "node"
    assert len(page.nodes) == 23 and "20 more nodes" in text
    assert "where(a1, silu(s + a0)/float(i0), 0.0)" in text and text.count('class="steps"') == 1
    assert "prefers-color-scheme: dark" in text
    assert text.count("<details open>") == len(REPORT.graphs)


def test_red_is_for_what_could_be_fused() -> None:
    """That a region would not pay, or is another operator, is no fault of the model."""
    first = REPORT.rejections[0]
    codes = (Code.NORMALISED, Code.SLOWER, Code.DROPOUT, Code.MUTATED_OPERAND)
    refused = tuple(dataclasses.replace(first, code=code, location=code.name) for code in codes)
    text = dataclasses.replace(REPORT, rejections=refused).to_html()
    tones = re.findall(r'<article class="(rejection[^"]*)" id="rejection-(\d)"', text)
    left = dict.fromkeys("12", "rejection left")
    assert {number: tone for tone, number in tones} == {**left, **dict.fromkeys("34", "rejection")}
    (rule,) = re.findall(r"\.gdpa \.left {([^}]*)}", text)
    assert "--bad: var(--dim)" in rule


def test_a_page_that_was_written_returns_its_path(tmp_path: Path) -> None:
    path = REPORT.to_html(str(tmp_path / "report.html"))
    assert path == tmp_path / "report.html"
    assert path.read_text(encoding="utf-8") == REPORT.to_html()


def test_a_notebook_gets_a_part_of_a_page_with_style_of_its_own() -> None:
    text = REPORT._repr_html_()
    page = Page()
    page.feed(text)
    assert page.open == [] and len(page.nodes) == 23
    assert text.startswith('<div class="gdpa">') and "<script" not in text and "<html" not in text
    assert "<details open>" not in text and text.count("<summary><h2>") == len(REPORT.graphs)
    style = text[text.index("<style>") + 7 : text.index("</style>")]
    selectors = re.sub(r"{[^{}]*}", "", style).replace("@media (prefers-color-scheme: dark)", "")
    rules = re.split(r"[,\s{}]*\n[,\s{}]*|, ", selectors.strip())
    assert len(rules) > 20
    assert [rule for rule in rules if "gdpa" not in rule and "@media" not in rule] == []


def test_long_lines_of_a_graph_keep_to_their_column() -> None:
    """They wrap: a column that may shrink, and text that may break anywhere."""
    style = REPORT._repr_html_()
    (node,) = re.findall(r"\.gdpa \.node {([^}]*)}", style)[:1]
    assert "white-space: pre-wrap" in node
    assert re.findall(r"minmax\(([^,]*),", node) == ["0"] * 3
    assert "overflow-wrap: anywhere" in style


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((3,), "region 3"), ((1, 2, 3), "regions 1–3"), ((1, 3), "regions 1, 3")],
)
def test_the_marks_of_grouped_regions(numbers: tuple[int, ...], text: str) -> None:
    assert mark("match", numbers) == text


def test_places_are_written_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert shorten(f"{tmp_path}/a/model.py:7") == "a/model.py:7"
    assert shorten("/elsewhere/model.py:7") == "/elsewhere/model.py:7"
    assert shorten("") == "(no source line)"


@pytest.mark.parametrize(
    ("size", "text"), [(36864, "0.035 MiB"), (2 << 20, "2 MiB"), (12 << 30, "12,288 MiB")]
)
def test_memory_is_told_in_mebibytes(size: int, text: str) -> None:
    assert mebibytes(size) == text


def test_every_code_is_documented() -> None:
    """docs/reasons.md has a heading per code, under its class. The enum's meaning follows, then
    its advice; the page may add to the advice.
    """
    sections = re.split(r"^## ", (DOCS / "reasons.md").read_text(), flags=re.M)[1:]
    documented, advice = {}, {}
    for section in sections:
        category = section.split()[0]
        for entry in re.split(r"^### ", section, flags=re.M)[1:]:
            code, meaning, *change = re.split(r"\n\n", entry)
            documented[code] = (category, _plain(meaning))
            advice[code] = _plain(" ".join(change))
    assert documented == {code.name: (code.category.value, _plain(code.meaning)) for code in Code}
    wanted = {code.name: _plain(code.advice) for code in Code}
    assert {n: text for n, text in wanted.items() if not advice[n].startswith(text)} == {}


def _plain(text: str) -> str:
    """Without links, and whatever it takes to make sentences of clauses."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    return " ".join(re.sub(r"[;.](?=\s|$)", "", text).lower().split())


def test_every_option_is_documented() -> None:
    from gdpa_inductor import Options

    text = (DOCS / "options.md").read_text()
    headings = re.findall(r"^### gdpa\.(\w+)\n\nDefault: `([^`]*)`\.", text, re.M)
    assert dict(headings) == {
        f.name: repr(f.default) if not isinstance(f.default, str) else f'"{f.default}"'
        for f in dataclasses.fields(Options)
    }
