"""What importing the package costs and loads, and which module may import which."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gdpa_inductor

PACKAGE = Path(__file__).parent.parent / "gdpa_inductor"

PROBE = """
import json, sys, time, torch
before = set(sys.modules)
start = time.process_time()
import gdpa_inductor
print(json.dumps([time.process_time() - start, sorted(set(sys.modules) - before)]))
"""


def probe() -> tuple[float, list[str]]:
    done = subprocess.run([sys.executable, "-c", PROBE], check=True, capture_output=True, text=True)
    seconds, loaded = json.loads(done.stdout.splitlines()[-1])
    return seconds, loaded


def test_import_adds_less_than_300_ms_over_torch():
    """Of the processor's time, and the best of a few: a busy machine is not the package's cost."""
    assert any(probe()[0] < 0.3 for _ in range(6))


def test_import_loads_no_compiler():
    _, loaded = probe()
    assert "gdpa_inductor" in loaded
    heavy = ("triton", "cutlass", "torch._inductor", "torch._dynamo", "sympy")
    assert [name for name in loaded if name.startswith(heavy)] == []


WITHOUT_NUMPY = """
import sys
sys.modules["numpy"] = None
import torch
from gdpa_inductor import gdpa_backend
from torch._dynamo.utils import counters
attention = torch.compile(lambda q, k, v: torch.relu(q @ k.mT) @ v, backend=gdpa_backend)
attention(*torch.randn(3, 1, 1, 64, 32))
print(counters["gdpa"]["matched"], counters["gdpa"]["unjudged"])
"""


def test_numpy_is_not_needed():
    """torch does not depend on it. The judge once did, and refused every rewrite without it."""
    command = [sys.executable, "-c", WITHOUT_NUMPY]
    environment = {**os.environ, "GDPA_PROFIT": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["1", "0"], done


NO_SEARCH = """
import inspect
import torch
import torch._inductor.compile_fx
inspect.getmodule = None
import gdpa_inductor.backend
"""


def test_importing_searches_no_sources():
    """torch.library's register_fake looks for its caller's through the files of all modules."""
    done = subprocess.run([sys.executable, "-c", NO_SEARCH], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-1500:]


SECOND_PROCESS = """
import sys
import torch
from gdpa_inductor import gdpa_backend
from torch._dynamo.utils import counters
attention = torch.compile(lambda q, k, v: torch.relu(q @ k.mT) @ v, backend=gdpa_backend)
attention(*torch.randn(3, 1, 1, 64, 32))
unneeded = ("judge.interpret", "lowerings.triton.lower", "lowerings.triton.launch")
print(counters["gdpa"]["matched"], *(f"gdpa_inductor.{x}" in sys.modules for x in unneeded))
"""


def test_a_second_process_loads_neither_judge_nor_templates(tmp_path: Path):
    """The first has left its verdict and its code on disk. On a CPU it needs no templates."""
    command = [sys.executable, "-c", SECOND_PROCESS]
    environment = {**os.environ, "GDPA_PROFIT": "0", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
                   "TORCHINDUCTOR_FX_GRAPH_CACHE": "1"}  # fmt: skip
    for judging in ("True", "False"):
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.stdout.split() == ["1", judging, "False", "False"], done


def test_dir_has_the_public_names_before_they_are_loaded():
    command = "import gdpa_inductor as g; print(set(g.__all__) - set(dir(g)), 'Report' in vars(g))"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    assert done.stdout.split() == ["set()", "False"], done


def test_no_module_has_a_public_name():
    """Importing it, as `rewrite` did `explain`, would put the module in place of the function."""
    modules = {path.stem for path in PACKAGE.iterdir()}
    assert not modules & set(gdpa_inductor.__all__)


# Every module or folder of the package, and what of the package it may import; "" stands for the
# public names of the package itself. The order is that of the data's way, from the bottom up.
LEAVES = {"program", "operands", "options", "rejection", "terminal", "_compat"}
CORE = LEAVES | {"ops", "problem"}
MAY_IMPORT = {
    "program": {"rejection"},
    "score_mod": {"program"},
    "terminal": set(),
    "rejection": {"terminal"},
    "options": {"rejection"},
    "_compat": set(),
    "operands": {"program", "rejection"},
    "sequences": {"_compat", "operands", "program"},
    "reference": LEAVES | {"sequences"},
    "ops": LEAVES | {"reference"},
    "problem": LEAVES,
    "look_up": {"_compat"},
    "scalars": set(),
    "direct": CORE | {"backend"},
    "functional": CORE | {"direct", "scalars"},
    "kernels": LEAVES | {"sequences", "sources"},
    "graphs": set(),
    "sources": set(),
    # Only the language of score programs: it shares nothing with what it judges.
    "judge": {"_compat", "program", "sources"},
    "patterns": CORE | {"graphs", "judge", "look_up"},
    "lowerings": CORE | {"kernels", "look_up", "reference", "sequences"},
    # Result types, and nothing that finds, chooses or runs.
    "report": {"operands", "patterns", "problem", "program", "rejection", "terminal"},
    "compiles": {"_compat", "graphs", "patterns", "rejection"},
    "backend": CORE | {"compiles", "graphs", "patterns", "lowerings", "sources", "verify"},
    "entry_point": {"_compat", "backend"},
    "verify": CORE | {"patterns"},
    "inductor_pass": CORE | {"backend", "patterns", "sources"},
    "explaining": CORE | {"backend", "graphs", "patterns", "report"},
    "export": CORE | {"backend", "graphs", "patterns", "report", "explaining"},
    # Tools: they stand where a user stands.
    "doctor": LEAVES | {"", "backend", "problem"},
    "measure": set(),
    "__main__": {"", "doctor", "terminal"},
}


def component(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def imported(path: Path) -> set[str]:
    """The components that a file imports, wherever in the file it does so."""
    package = ["gdpa_inductor", *path.relative_to(PACKAGE).parts[:-1]]
    components: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            modules = [f"{stem}.{alias.name}" for alias in node.names]
        else:
            continue
        for module in modules:
            head, *rest = module.split(".")
            if head == "gdpa_inductor":
                known = rest and (rest[0] in MAY_IMPORT or (PACKAGE / f"{rest[0]}.py").exists())
                components.add(rest[0] if known else "")
    return components


def sources() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path):
    own = component(path)
    assert own in MAY_IMPORT, f"{own} has no place in the import graph: add it to MAY_IMPORT"
    assert imported(path) - {own} <= MAY_IMPORT[own]


@pytest.mark.parametrize("table", ["MAY_IMPORT", "STAGES"])
def test_the_graph_is_acyclic(table: str):
    """What a table allows has an order, so no two modules can need each other."""
    allows: dict[str, set[str]] = globals()[table]
    left = {name: allowed & allows.keys() for name, allowed in allows.items()}
    while left:
        ready = {name for name, needs in left.items() if not needs & left.keys()}
        assert ready, f"a cycle among {sorted(left)}"
        left = {name: needs for name, needs in left.items() if name not in ready}


def modules() -> dict[str, Path]:
    """Every module by its dotted name; a package by that of its `__init__`."""
    names = {p.relative_to(PACKAGE.parent).with_suffix(""): p for p in PACKAGE.rglob("*.py")}
    return {".".join(name.parts).removesuffix(".__init__"): p for name, p in names.items()}


def needed(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """The modules that one imports when it is loaded or run; not those for type checkers."""
    package = path.relative_to(PACKAGE.parent).parts[:-1]
    tree = ast.parse(path.read_text())
    checked = [
        node for node in tree.body if isinstance(node, ast.If) and "TYPE" in ast.dump(node.test)
    ]
    skipped = {id(inner) for node in checked for inner in ast.walk(node)}
    names_needed = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in skipped:
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = [*above, *filter(None, [node.module])]
            for alias in node.names:
                full = ".".join([*base, alias.name])
                names_needed.add(full if full in known else ".".join(base))
    return (names_needed & known.keys()) - {name}


def test_no_two_modules_need_each_other():
    """But for the package itself: its public names are imported where they are first asked for."""
    known = modules()
    left = {name: needed(name, path, known) for name, path in known.items()}
    del left["gdpa_inductor"]
    while left:
        ready = {name for name, needs in left.items() if not needs & left.keys()}
        assert ready, f"a circle among {sorted(left)}"
        left = {name: needs for name, needs in left.items() if name not in ready}


# Every stage of the finder, and the stages that it may import: as above, from the bottom up.
STAGES = {
    "result": set(),
    "host": {"result"},
    "reading": {"host", "result"},
    "jagged": {"host", "reading", "result"},
    "writing": {"host", "jagged", "reading", "result"},
    "profit": {"reading", "result"},
    # Another rewrite than that of attention: it reads no region.
    "tables": {"host", "reading", "result", "writing"},
    "plan": {"host", "jagged", "profit", "reading", "result", "tables", "writing"},
    "selection": {"host", "plan", "result", "writing"},
    "rewrite": {"host", "jagged", "plan", "result", "selection", "tables", "writing"},
    "validation": {"plan", "result", "rewrite"},
}


def stages_of(path: Path) -> set[str]:
    """The stages of the finder that one of its files imports."""
    package = path.relative_to(PACKAGE / "patterns").parts[:-1]
    stages: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and 0 < node.level <= len(package) + 1:
            base = list(package[: len(package) - node.level + 1])
            base += node.module.split(".") if node.module else []
            stages |= {base[0]} if base else {alias.name for alias in node.names}
    return stages


def in_patterns() -> list[Path]:
    folder = PACKAGE / "patterns"
    return [p for p in sorted(folder.rglob("*.py")) if p != folder / "__init__.py"]


@pytest.mark.parametrize("path", in_patterns(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_stages_of_the_finder_go_one_way(path: Path):
    own = path.relative_to(PACKAGE / "patterns").with_suffix("").parts[0]
    assert own in STAGES, f"{own} has no place among the stages: add it to STAGES"
    assert stages_of(path) - {own} <= STAGES[own]
