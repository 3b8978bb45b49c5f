"""report: text, dict and page of a report that is made by hand; completeness of docs/reasons.md."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from expecttest import assert_expected_inline

from gdpa_inductor import Category, Code, Rejection, Report
from gdpa_inductor.lowerings import Choice
from gdpa_inductor.patterns import Match
from gdpa_inductor.problem import Problem
from gdpa_inductor.program.score_mod import ScoreMod
from gdpa_inductor.report.entries import GraphBreak, Line, Listing, SkippedFrame, shorten

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
    PROBLEM, "model.py:12", "attention", Choice("cpu", "a reason"), ("matmul", "silu", "o")
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
gdpa: 1 region rewritten, 1 candidate refused, 1 graph break, 1 skipped frame in 1 graph

Rewritten
  model.py:12
      O = (where(a1, silu(s + a0)/float(i0), 0.0)) V, s = Q Kᵀ
      Q [2, 4, 64, 32]  K [2, 2, 128, 32]  V [2, 1, 128, 16]  bfloat16, V float32, training
      between the products: a0 float32 [h, q_idx, kv_idx], a1 bool [b, -, q_idx, kv_idx]
      kernel: cpu (a reason)

Refused
  /elsewhere/m.py:3
      NOT_GDPA/NORMALISED: `softmax` normalises

Graph breaks
  model.py:20
      a Python `if`
      to change: use torch.where

Skipped by Dynamo
  model.py:30 loop()
      Tensor.item()""",
    )


def test_an_empty_report_says_what_a_candidate_is() -> None:
    assert_expected_inline(
        str(Report()),
        """\
gdpa: 0 regions rewritten, 0 candidates refused, 0 graph breaks, 0 skipped frames

No candidate
  A candidate is a product whose operand is made, by pointwise, view or reduction operations only, from another product of two activations: activation(Q @ K.T) @ V.""",  # noqa: E501
    )


def test_dict_survives_json() -> None:
    found = json.loads(json.dumps(REPORT.to_dict()))
    (match,) = found["matches"]
    assert match["query"] == [2, 4, 64, 32] and match["value"] == [2, 1, 128, 16]
    assert match["kernel"] == "cpu" and match["why"] == "a reason"
    assert ScoreMod.parse(match["score_mod"]) == PROGRAM
    assert match["operands"][1] == {"dtype": "bool", "access": ["b", "-", "q_idx", "kv_idx"]}
    (rejection,) = found["rejections"]
    assert (rejection["class"], rejection["code"]) == ("NOT_GDPA", "NORMALISED")
    assert found["graph_breaks"] == [REPORT.graph_breaks[0].to_dict()]
    assert found["skipped_frames"] == [REPORT.skipped_frames[0].to_dict()]


class Page(HTMLParser):
    """Collects elements, checks that tags close."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.nodes: list[dict[str, str | None]] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.links += [given[name] for name in ("src", "href") if given.get(name)]
        if "data-name" in given:
            self.nodes.append(given)
        if tag not in ("meta", "rect", "path"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page(tmp_path: Path) -> None:
    text = REPORT.to_html(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == text
    page = Page()
    page.feed(text)
    assert page.open == [] and page.links == [] and "://" not in text
    assert "<f>" not in text and "&lt;f&gt;" in text
    kinds = {node["data-name"]: node["class"] for node in page.nodes}
    assert kinds["matmul"] == kinds["silu"] == "node match"
    assert kinds["matmul_3"] == "node rejection" and kinds["x0"].strip() == "node"
    assert len(page.nodes) == 23 and "20 more nodes" in text
    assert "where(a1, silu(s + a0)/float(i0), 0.0)" in text and text.count("<svg") == 1
    assert "prefers-color-scheme: dark" in text


def test_places_are_written_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert shorten(f"{tmp_path}/a/model.py:7") == "a/model.py:7"
    assert shorten("/elsewhere/model.py:7") == "/elsewhere/model.py:7"
    assert shorten("") == "(no source line)"


def test_every_code_is_documented() -> None:
    """docs/reasons.md has a row per code, under its class, with the meaning that the enum gives."""
    sections = re.split(r"^## ", (DOCS / "reasons.md").read_text(), flags=re.M)[1:]
    documented = {}
    for section in sections:
        category = section.split()[0]
        for code, meaning in re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, flags=re.M):
            documented[code] = (category, meaning.strip())
    assert documented == {code.name: (code.category.value, code.meaning) for code in Code}
    assert {c.value for c in Category} <= {section.split()[0] for section in sections}


def test_every_option_is_documented() -> None:
    import dataclasses

    from gdpa_inductor import Options

    rows = re.findall(r"^\| `gdpa\.(\w+)` \| `([^`]*)` \|", (DOCS / "options.md").read_text(), re.M)
    assert dict(rows) == {
        f.name: repr(f.default) if not isinstance(f.default, str) else f'"{f.default}"'
        for f in dataclasses.fields(Options)
    }
