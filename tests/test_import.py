"""What importing the package costs and loads, and which module may import which."""

import ast
import functools
import json
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
import gdpa_inductor as g
seconds = time.process_time() - start
loaded = sorted(set(sys.modules) - before)
print(json.dumps([seconds, loaded, sorted(set(g.__all__) - set(dir(g))), "Report" in vars(g)]))
"""


@functools.cache
def probe(attempt: int) -> tuple[float, list[str], list[str], bool]:
    done = subprocess.run([sys.executable, "-c", PROBE], check=True, capture_output=True, text=True)
    return tuple(json.loads(done.stdout.splitlines()[-1]))


def test_import_adds_less_than_300_ms_over_torch():
    """Of the processor's time, and the best of a few: a busy machine is not the package's cost."""
    assert any(probe(attempt)[0] < 0.3 for attempt in range(6))


def test_import_loads_no_compiler():
    loaded = probe(0)[1]
    assert "gdpa_inductor" in loaded
    heavy = ("triton", "cutlass", "torch._inductor", "torch._dynamo", "sympy")
    assert [name for name in loaded if name.startswith(heavy)] == []


def test_dir_has_the_public_names_before_they_are_loaded():
    assert probe(0)[2:] == ([], False)


NEW_PROCESS = """
import inspect, sys
sys.modules["numpy"] = None
import torch
import torch._inductor.compile_fx
getmodule, inspect.getmodule = inspect.getmodule, None
import gdpa_inductor.backend
inspect.getmodule = getmodule
from torch._dynamo.utils import counters
attention = lambda q, k, v: torch.relu(q @ k.mT) @ v
operands = torch.randn(3, 1, 1, 64, 32)
torch.compile(attention, backend="gdpa", options={"gdpa.profit": False})(*operands)
print(counters["gdpa"]["matched"], counters["gdpa"]["unjudged"])
torch._dynamo.reset()
for _ in range(2):
    torch.compile(attention, backend="gdpa")(*operands)
"""


@pytest.fixture(scope="module")
def new_process() -> subprocess.CompletedProcess:
    """It has no numpy, and while it imports the package nothing may look for a caller's source."""
    command = [sys.executable, "-c", NEW_PROCESS]
    return subprocess.run(command, capture_output=True, text=True)


def test_importing_searches_no_sources(new_process):
    """torch.library's register_fake looks for its caller's through the files of all modules."""
    assert new_process.returncode == 0, new_process.stderr[-1500:]


def test_numpy_is_not_needed(new_process):
    """torch does not depend on it. The judge once did, and refused every rewrite without it."""
    assert new_process.stdout.split() == ["1", "0"], new_process


def test_the_summary_appears_by_default(new_process):
    """Once, where something is not fused."""
    expected = (
        "gdpa: 0 of 1 attention regions fused, 1 not fused (SLOWER); "
        "gdpa_inductor.explain(model)(*inputs) says why"
    )
    said = [text for text in new_process.stderr.splitlines() if "gdpa:" in text]
    assert said == [expected]


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
    "direct": CORE | {"backend", "scalars"},
    "functional": CORE | {"direct", "scalars"},
    "error_rule": set(),
    "kernels": LEAVES | {"sequences", "sources"},
    "graphs": set(),
    "sources": set(),
    # Only the language of score programs: it shares nothing with what it judges.
    "judge": {"_compat", "program", "sources"},
    "patterns": CORE | {"graphs", "judge", "look_up"},
    "lowerings": CORE | {"kernels", "look_up", "reference", "sequences", "sources"},
    "proving": CORE | {"error_rule", "kernels", "look_up", "lowerings", "reference", "sequences"},
    # Result types, and nothing that finds, chooses or runs.
    "report": {"operands", "patterns", "problem", "program", "rejection", "terminal"},
    "compiles": {"_compat", "graphs", "patterns", "rejection"},
    "backend": CORE | {"compiles", "graphs", "patterns", "lowerings", "proving", "verify"},
    "entry_point": {"_compat", "backend"},
    "drawn": CORE | {"patterns"},
    "verify": CORE | {"drawn", "patterns"},
    "inductor_pass": CORE | {"backend", "lowerings", "patterns", "sources"},
    "explaining": CORE | {"backend", "graphs", "patterns", "report"},
    "export": CORE | {"backend", "graphs", "patterns", "report", "explaining"},
    # Tools: they stand where a user stands.
    "doctor": LEAVES | {"", "backend", "problem", "proving"},
    "__main__": {"", "doctor", "proving", "terminal"},
}


def component(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


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
    assert_ordered({name: allowed & allows.keys() for name, allowed in allows.items()})


def assert_ordered(left: dict[str, set[str]]) -> None:
    """Of what each name needs nothing needs the name."""
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
    needs = {name: needed(name, path, known) for name, path in known.items()}
    del needs["gdpa_inductor"]
    assert_ordered(needs)


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
