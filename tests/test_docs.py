"""The pages for readers: links and anchors lead somewhere, and files that are named exist."""

import ast
import importlib
import re
from pathlib import Path

import pytest
import torch

from docs.tools import report, versions
from gdpa_inductor._compat.versions import TESTED
from tests import matrix

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").glob("*.md")])
PAGES = [page for page in PAGES if "_build" not in page.parts]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# A path in backticks that begins at a folder of the repository, or of the package.
NAMED = re.compile(r"`((?:gdpa_inductor|tests|docs|kernels|lowerings|patterns|program)/[\w./]+)`")
HISTORY = {"CHANGELOG.md"}  # names what there was
WIDTH = 100
WIDE = {"judge_mutations.md", "versions.md", "gallery.md"}  # generated, with long names

each = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def text(page: Path) -> str:
    """Without blocks of code, where brackets are no links."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """Of every heading, as GitHub and MyST make them."""
    headings = re.findall(r"^#+\s+(.*)$", text(page), re.M)
    words = (re.sub(r"[^\w\s-]", "", heading.lower()) for heading in headings)
    return {re.sub(r"\s", "-", heading.strip()) for heading in words}


@each
def test_links_lead_somewhere(page: Path):
    for link in LINK.findall(text(page)):
        if "://" in link or link.startswith("mailto:"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name) if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@each
def test_files_that_are_named_exist(page: Path):
    if page.name in HISTORY:
        return
    for name in NAMED.findall(page.read_text()):
        places = [ROOT / name, ROOT / "gdpa_inductor" / name, page.parent / name]
        assert any(path.exists() for path in places), name


def test_a_page_has_links_and_names():
    """The patterns above find something."""
    pages = [text(page) for page in PAGES]
    assert sum(len(LINK.findall(page)) for page in pages) > 20
    assert sum(len(NAMED.findall(page)) for page in pages) > 20


def test_the_map_of_the_tests_is_complete():
    """tests/README.md names every folder, and no file that there is not."""
    tests = ROOT / "tests"
    rows = re.findall(r"^\| (`[^|]*) \|", (tests / "README.md").read_text(), flags=re.M)
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert len(named) > 15
    assert [name for name in named if not [*tests.glob(name), *tests.glob(f"*/{name}")]] == []
    folders = {f"{path.name}/" for path in tests.iterdir() if (path / "__init__.py").exists()}
    assert folders - set(named) == set()


def test_the_map_of_the_code_leads_to_files():
    """CONTRIBUTING.md, "To change X, go to Y": every path, and every name beside one, is there."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    section = page.partition("## To change X, go to Y")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", section, flags=re.M)[2:]
    assert len(rows) > 15
    for change, where, test in rows:
        named = re.findall(r"`([^`]+)`", where + test)
        assert len(named) > 1, change
        for name in named:
            files = [*(ROOT / "gdpa_inductor").glob(name), *ROOT.glob(name)]
            assert files or is_said(name, named), f"{change}: {name}"


def is_said(name: str, files: list[str]) -> bool:
    """Whether a name, such as that of a table, stands in one of the package's files."""
    paths = [ROOT / "gdpa_inductor" / file for file in files]
    return any(name in path.read_text() for path in paths if path.is_file())


@each
def test_no_line_is_wider_than_the_page(page: Path):
    lines = enumerate(page.read_text().splitlines(), 1)
    wide = [number for number, line in lines if len(line) > WIDTH]
    assert page.name in WIDE or wide == []


def sentences(page: Path) -> list[str]:
    """Of paragraphs and list items: without code, tables, headings and brackets. Clauses behind a
    semicolon or a colon count as sentences.
    """
    prose = re.sub(r"<!--.*?-->|`[^`]*`", "X", text(page), flags=re.S)
    lines = (line for line in prose.splitlines() if not re.match(r"\s*[|#]|    ", line))
    blocks = re.split(r"\n\s*\n|\n\s*(?=[-*] |\d+\. )", "\n".join(lines))
    marks = r"^\s*([-*]|\d+\.)\s|\*\*?|\[|\]\([^)]*\)|\([^()]*\)"
    plain = (re.sub(marks, "", block) for block in blocks)
    return [" ".join(s.split()) for block in plain for s in re.split(r"(?<=[.?!:;])\s", block)]


def words(sentence: str) -> int:
    """Sizes such as `2 × 3`, and words with hyphens, are one."""
    return len(re.findall(r"[^\W_][\w²ᵀ]*(?:(?:[-'’.,/·]| × )\w+)*", sentence))


@each
def test_sentences_are_short_and_begin_with_their_subject(page: Path):
    """See CONTRIBUTING.md, The documentation."""
    if page.name in HISTORY:
        return
    start = re.compile(r"(What|That which|Of|Whether)\b[^?]*$")
    texts = sentences(page)
    assert [s for s in texts if start.match(s)] == []
    assert [s for s in texts if words(s) > 25] == []


def test_the_changelog_has_a_line_for_each_effect():
    """What is new comes first. Wrong results of before have a page, which says what to do."""
    page = (ROOT / "CHANGELOG.md").read_text()
    before, _, rest = page.partition("### Added")
    lines = rest.splitlines()
    assert "docs/advisories.md" in before and "### " not in before
    assert re.findall(r"^- \*\*Wrong", page, flags=re.M) == []
    assert sum(line.startswith("- ") for line in lines) > 80
    assert [line for line in lines if line.startswith("  ")] == []


def test_the_first_install_line_needs_no_index():
    """The package is on none until CONTRIBUTING.md, "Release", has been followed."""
    for page in ("README.md", "docs/get_started.md"):
        lines = re.findall(r"^pip (?:install|wheel) .*", (ROOT / page).read_text(), flags=re.M)
        assert lines[0] == "pip install ."
        assert [line for line in lines if "gdpa-inductor" in line] == []


def test_the_picture_of_a_report_shows_what_is_reported_now(tmp_path: Path, monkeypatch):
    """Else: python -m docs.tools.report"""
    monkeypatch.chdir(tmp_path)
    current = report.report(tmp_path)
    assert len(current.matches) == 2 and [r.code.name for r in current.rejections] == ["DROPOUT"]
    readme = (ROOT / "README.md").read_text()
    assert f"({report.PICTURE.relative_to(ROOT)})" in readme and report.PICTURE.exists()


def test_the_sidebar_has_no_lab_page():
    index = (ROOT / "docs" / "index.md").read_text()
    assert "lab" not in re.findall(r"^[\w/]+$", index, flags=re.M) and "lab/" not in index
    assert (ROOT / "docs/lab/index.md").read_text().startswith("---\norphan: true\n---")
    assert "](lab/index.md)" in (ROOT / "docs" / "benchmarks.md").read_text()


@pytest.mark.parametrize("script", sorted((ROOT / "docs/lab").glob("*.py")), ids=lambda p: p.stem)
def test_what_a_script_of_the_lab_imports_of_the_house_is_there(script: Path):
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and (ROOT / str(node.module).split(".")[0]).is_dir():
            module = importlib.import_module(str(node.module))
            for name in (alias.name for alias in node.names if not hasattr(module, alias.name)):
                importlib.import_module(f"{node.module}.{name}")


def test_an_error_of_a_docstring_has_a_line_of_its_own():
    """Else the interface shows them as one paragraph."""
    second = re.compile(r"^ +\w*(?:Error|Failed): .*\. \w+(?:Error|Failed): ", re.M)
    for path in (ROOT / "gdpa_inductor").rglob("*.py"):
        assert not second.search(re.sub(r"\n {12,}", " ", path.read_text())), path


@pytest.mark.parametrize("form", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")))
def test_an_issue_form_asks_for_the_doctor(form: Path):
    yaml = pytest.importorskip("yaml")
    content = yaml.safe_load(form.read_text())
    assert {"name", "description", "body"} <= set(content)
    parts = {part["id"]: part for part in content["body"] if part["type"] != "markdown"}
    assert "`python -m gdpa_inductor doctor --json`" in parts["doctor"]["attributes"]["label"]
    assert parts["doctor"]["validations"]["required"]


def test_the_workflow_runs_what_ci_runs():
    yaml = pytest.importorskip("yaml")
    steps = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["run"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == [".ci/run"]


def test_a_citation_names_the_version():
    project = (ROOT / "pyproject.toml").read_text()
    version = re.findall(r'^version = "(.*)"', project, flags=re.M)
    cited = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.*)", cited, flags=re.M) == version


def test_the_page_of_versions_has_the_ranges_of_the_package():
    wanted = (ROOT / "pyproject.toml").read_text()
    page = (ROOT / "docs" / "versions.md").read_text()
    first, end = re.findall(r'"torch>=([\d.]+),<2\.(\d+)"', wanted)[0]
    assert f"| torch | {first} to 2.{int(end) - 1} |" in page
    assert f"torch {first} to 2.{int(end) - 1}" in (ROOT / "README.md").read_text()
    pythons = re.findall(r"Python :: (3\.\d+)", wanted)
    assert f'requires-python = ">={pythons[0]}"' in wanted
    assert f"| Python | {pythons[0]} to {pythons[-1]} |" in page


def test_the_page_of_versions_says_what_the_matrix_ran():
    """Else: make test-matrix, or python -m docs.tools.versions"""
    page = versions.PAGE.read_text()
    assert versions.table() in page and versions.renewed(page) == page
    assert all(record["failed"] == 0 for many in versions.latest().values() for record in many)


def test_the_matrix_has_every_version_that_the_package_accepts():
    """The newest first, which is that of `make test`."""
    versions_of_rows = [row.torch.rpartition(".")[0] for row in matrix.rows()]
    assert versions_of_rows == list(reversed(TESTED)) and matrix.rows()[0].runs == "all"


def test_the_recipe_of_fbgemm_names_the_builds_of_the_matrix():
    page = (ROOT / "docs/recipes/torchrec.md").read_text()
    rows = re.findall(r"^\| (2[\d.]+) \| (none|[\d.]+) \| (?:none|[\d.]+) \|$", page, flags=re.M)
    assert rows == [(row.torch, row.fbgemm.replace("-", "none")) for row in matrix.rows()]


@pytest.mark.parametrize("row", matrix.rows(), ids=lambda row: row.torch)
def test_what_is_recorded_of_a_version_is_all_that_its_row_says(row):
    ran = {record["shows"] for record in versions.latest()[row.torch]}
    assert ran in (set(), {shows for shows, _ in matrix.RUNS[row.runs]})


def for_index(text: str) -> str:
    """README as an index shows it. hatchling is there at builds only."""
    source = (ROOT / "hatch_build.py").read_text()
    namespace: dict = {"MetadataHookInterface": object}
    exec(source.replace("from hatchling", "# from hatchling"), namespace)
    return namespace["for_index"](text)


def test_readme_on_an_index_has_no_link_into_the_repository():
    readme = (ROOT / "README.md").read_text()
    shown = for_index(readme)
    assert "](docs/" in readme and "](docs/" not in shown
    assert "<!--" not in shown and "![" not in shown
    assert "the page on reasons says" in " ".join(shown.split())
    text = "[PyTorch](https://pytorch.org) and ![x](https://x.org/x.svg)"
    assert for_index(text) == text


def test_when_it_pays_has_the_bounds_of_the_lowerings():
    from gdpa_inductor.lowerings.cpu import _GAINS as on_cpu
    from gdpa_inductor.lowerings.triton.rules import _GAINS as on_gpu

    page = (ROOT / "docs" / "when_it_pays.md").read_text()
    sizes = {"fp32, fp64": torch.float32, "bf16": torch.bfloat16}
    for name, dtype in sizes.items():
        inference, training = on_cpu[dtype]
        assert f"| {name} | {inference} MiB | {training} MiB |" in page
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"fp32 on a CPU pays from {on_cpu[torch.float32][0]} MiB of scores on" in readme
    widest = max(gain.head_dim for gain in on_gpu["half"] if gain.training == 1)
    assert f"bf16 and fp16 with head dims up to {widest} pay at any length" in readme
    said = {None: "never", 1: "any length"}
    bounds = lambda least: said.get(least, f"{least} rows and keys")
    kinds = {"half": "bf16, fp16", "tf32": "fp32 with TF32"}
    for kind, name in kinds.items():
        for gain in on_gpu[kind]:
            dims = rf"\| {name} \| (?:up to|\d+ to) {gain.head_dim} \| "
            row = re.escape(f"{bounds(gain.inference)} | {bounds(gain.training)} |")
            assert re.search(dims + row, page), (kind, gain)
