"""The notebooks of examples/ run from the first cell to the last, on a small set."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.movielens import data

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.ipynb"))
SMALL = 'STEPS, BATCH, LENGTH = 3, 2, 32\nOPTIONS["gdpa.profit"] = False'


def cells(notebook: Path) -> list[str]:
    """The code, with small sizes behind the cell of the parameters."""
    sources = []
    for cell in json.loads(notebook.read_text())["cells"]:
        if cell["cell_type"] == "code":
            sources.append("".join(cell["source"]))
            if "parameters" in cell["metadata"].get("tags", ()):
                sources.append(SMALL)
    return sources


@pytest.mark.parametrize("notebook", EXAMPLES, ids=lambda path: path.name)
def test_a_notebook_runs(
    notebook: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cache = tmp_path / "gdpa_inductor"
    cache.mkdir()
    (cache / "ml-100k.inter").write_text(data.generate(users=30, items=300))
    monkeypatch.syspath_prepend(notebook.parent)  # where Jupyter runs it
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    torch._dynamo.reset()
    code = cells(notebook)
    assert SMALL in code and len(code) > 5
    space: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(code):
        exec(compile(cell.replace("seconds=5", "seconds=0.05"), f"cell {number}", "exec"), space)
    said = capsys.readouterr().out
    assert len(space["report"].matches) == 2 and "2 regions fused" in said
    assert space["step"] is not None and space["loss"].isfinite()
    assert "HR@10: 0." in said and "Inductor:" in said and "    gdpa:" in said
