"""The code blocks of README, the start page and the recipes run, and print what the pages say."""

from pathlib import Path

import pytest

from docs.tools.blocks import Block, blocks, renewed, run

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "get_started.md",
    ROOT / "docs" / "migration.md",
    *sorted((ROOT / "docs" / "recipes").glob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_run_and_print_what_the_page_says(page: Path):
    examples = blocks(page.read_text())
    assert examples
    for block, printed in zip(examples, run(examples), strict=True):
        if block.output is not None:
            assert printed == block.output, f"python -m docs.tools.blocks {page}"


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
