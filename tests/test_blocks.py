"""The code blocks of README, the start page, the recipes and the notebooks run, and print what the
pages say. Notebooks run on a small set.
"""

import json
from pathlib import Path

import pytest

from docs.tools.blocks import Block, blocks, renewed, run
from examples.movielens import data

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "get_started.md",
    ROOT / "docs" / "migration.md",
    *sorted((ROOT / "docs" / "recipes").glob("*.md")),
]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
# Behind a notebook's cell of parameters, and at its end.
SMALL = 'STEPS, BATCH, LENGTH = 3, 2, 32\nOPTIONS["gdpa.profit"] = False\n'
RIGHT = "assert len(report.matches) == 2 and step is not None and loss.isfinite()\n"


def cells(notebook: Path) -> list[Block]:
    """Its code, with small sizes and short times."""
    sources = []
    for cell in json.loads(notebook.read_text())["cells"]:
        if cell["cell_type"] == "code":
            sources.append("".join(cell["source"]).replace("seconds=5", "seconds=0.05") + "\n")
            if "parameters" in cell["metadata"].get("tags", ()):
                sources.append(SMALL)
    assert SMALL in sources and len(sources) > 5
    return [Block(source, None) for source in [*sources, RIGHT]]


@pytest.fixture
def small_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the notebook looks for what it has fetched before. It runs in its own folder."""
    cache = tmp_path / "gdpa_inductor"
    cache.mkdir()
    (cache / "ml-100k.inter").write_text(data.generate(users=30, items=300))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "examples"))


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=lambda page: page.name)
def test_blocks_run_and_print_what_the_page_says(page: Path, small_data: None):
    is_notebook = page in NOTEBOOKS
    examples = cells(page) if is_notebook else blocks(page.read_text())
    assert examples
    printed = run(examples)
    for block, text in zip(examples, printed, strict=True):
        if block.output is not None:
            assert text == block.output, f"python -m docs.tools.blocks {page}"
    parts = ("2 regions fused", "HR@10: 0.", "Inductor:", "    gdpa:") if is_notebook else ()
    assert [part for part in parts if part not in "".join(printed)] == []


PAGE = """
```python
x = 1
```

Text that ends:

- <!-- not run: no reason -->
  ```python
  x = 2
  ```

<!-- needs no_such_module -->
```python
x = 3
```

<!-- needs json -->
```python
x = 4
```

```python
print(x)
```

It prints:

```text
0
```
"""


def test_blocks_are_read_in_order():
    assert [(b.code, b.output) for b in blocks(PAGE)] == [
        ("x = 1\n", None),
        ("x = 4\n", None),
        ("print(x)\n", "0\n"),
    ]


def test_an_output_is_renewed():
    assert renewed(PAGE) == PAGE.replace("0\n```", "4\n```")


def test_a_block_that_fails_says_why():
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run([Block("1 / 0\n", None)])
