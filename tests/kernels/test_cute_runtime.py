"""The runtime library of CuTe DSL: which one is found, and what it says without a GPU."""

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gdpa_inductor.kernels.cute import runtime

MODULES = (
    "form", "launch", "launcher", "plan", "precompile", "replay", "runtime", "backward.biases",
    "backward.jagged_biases", "backward.launch",
)  # fmt: skip


def test_no_module_on_the_way_to_a_launch_imports_cutlass() -> None:
    names = [f"gdpa_inductor.kernels.cute.{name}" for name in MODULES]
    lines = [f"import {name}" for name in names]
    program = "; ".join(["import sys", *lines, "sys.exit('cutlass' in sys.modules)"])
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation for CUDA 12 and 13."""
    origin = tmp_path / "nvidia_cutlass_dsl" / "dsl_packages" / "cutlass" / "__init__.py"
    spec = importlib.machinery.ModuleSpec("cutlass", None, origin=str(origin))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.delenv(runtime.SETTING, raising=False)
    for major in (12, 13):
        library = tmp_path / "nvidia_cutlass_dsl" / f"cu{major}" / "lib" / runtime.NAME
        library.parent.mkdir(parents=True)
        library.touch()
    return (tmp_path / "nvidia_cutlass_dsl").resolve()


@pytest.mark.parametrize(("driver", "chosen"), [(None, 13), (12, 12), (13, 13), (14, 13)])
def test_the_library_is_for_the_newest_cuda_that_runs(
    driver: int | None, chosen: int, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "newest_cuda", lambda: driver)
    assert runtime._path() == str(package / f"cu{chosen}" / "lib" / runtime.NAME)


def test_a_driver_that_is_too_old_is_named(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "newest_cuda", lambda: 11)
    with pytest.raises(RuntimeError, match="CUDA 11"):
        runtime._path()


def test_the_setting_of_cutlass_holds(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(runtime.SETTING, f"/other.so:/mine/{runtime.NAME}")
    assert runtime._path() == f"/mine/{runtime.NAME}"


EXPORTED = """
from gdpa_inductor.kernels.cute import ranking
from gdpa_inductor.kernels.cute.runtime import Kernel, exported, _path
from cutlass.cute import runtime

assert runtime.find_runtime_libraries(enable_tvm_ffi=False) == [_path()]
Kernel(exported(ranking.compiled("int32", "sm_90a")))
"""
# The symbols of an exported file, but for code of a GPU.
HOST = """
#include <stdint.h>
char gdpa_args_spec[] = "", gdpa_kernel_info[] = "{}", gdpa_version[] = "1.1";
char gdpa_function_name[] = "_mlir_gdpa_entry";
void _mlir_gdpa_entry(void **given) {
  int64_t number = *(int64_t *)given[0];
  int32_t half = *(int32_t *)given[1];
  **(int64_t **)given[2] += 10 * number + half;
  *(int *)given[3] = number < 0 ? 700 : 0;
}
"""
LAUNCHES = """
import ctypes
import sys
from pathlib import Path

from gdpa_inductor.kernels.cute.launcher import WordLauncher
from gdpa_inductor.kernels.cute.runtime import Kernel

run, found = WordLauncher(Kernel(Path(sys.argv[1]).read_bytes()), 3), ctypes.c_int64()
for number, half in ((1, 2), (1 << 40, -3)):
    run(number, half, ctypes.addressof(found))
assert found.value == 10 * (1 + (1 << 40)) + 2 - 3, found.value
assert "cutlass" not in sys.modules
run(-1, 0, ctypes.addressof(found))
"""


def last_words(program: str, *arguments: object) -> str:
    """Of a process that may fail. The library is not loaded here: no other one could be."""
    pytest.importorskip("cutlass")
    command = [sys.executable, "-c", program, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True)
    return result.stderr.splitlines()[-1] if result.returncode else ""


def test_the_library_of_the_package_loads_what_is_exported() -> None:
    """It is the one that CuTe DSL finds. Without a GPU it says so."""
    failure = "RuntimeError: a CuTe kernel cannot be loaded: CUDA error occurred"
    assert last_words(EXPORTED) in ("", failure)


def test_the_library_of_the_package_launches(tmp_path: Path) -> None:
    """Host code that launches nothing finds its words, and its error is raised."""
    source, content = tmp_path / "host.c", tmp_path / "host.o"
    source.write_text(HOST)
    command = [os.environ.get("CC", "cc"), "-c", "-fPIC", "-o", content, source]
    subprocess.run(command, check=True)
    failure = "RuntimeError: the launch of a CuTe kernel failed: CUDA error 700"
    assert last_words(LAUNCHES, content) == failure
