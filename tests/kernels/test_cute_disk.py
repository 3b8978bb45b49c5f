"""Compiled kernels on disk: a second process loads them, and nothing that lies there can do harm.

The stand-in runtime of the emulator takes the launches, so host code that was exported runs here.
"""

import dataclasses
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cutlass")

from gdpa_inductor._compat import inductor
from gdpa_inductor.kernels.cute import disk
from gdpa_inductor.kernels.cute.config import TableLayout
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config
from gdpa_inductor.kernels.cute.sm100.config import Sm100Config, Sm103Config
from tests.emulator import standin

KERNELS = ["HopperBackward", "HopperForward", "Ranking", "Summation", "TileSums"]
ROOT = Path(__file__).parent.parent.parent
CONFIG = Sm90Config("bfloat16", 64, 64, "silu(s)")


def run(caches: Path, *parts: str, **environment: str) -> dict:
    """What a process compiled and launched. It finds the stand-in where the runtime would be."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TORCHINDUCTOR_", "CUTE_"))}
    settings = {
        "TORCHINDUCTOR_CACHE_DIR": str(caches),
        "CUTE_DSL_LIBS": str(standin.path()),
        "CUTE_DSL_ARCH": CONFIG.arch,
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.disk_program", *(parts or ("attention", "words"))],
        env={**clean, **settings, **environment},
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("caches")


@pytest.fixture(scope="module")
def first(caches: Path) -> dict:
    """What the process did that found nothing."""
    return run(caches, PYTHONHASHSEED="1")


def objects(caches: Path) -> list[Path]:
    return sorted(caches.glob(f"{disk.FOLDER}/*/*"))


def test_a_second_process_loads_what_the_first_compiled(caches: Path, first: dict):
    assert sorted(first["compiled"]) == KERNELS
    assert len(objects(caches)) == len(first["launched"]) == 5
    words = [inputs for *_, inputs in first["launched"]]
    assert words == [[], [], [16, 32, 3], [48, 64, 80], [80, 96, 112]]
    later = run(caches, PYTHONHASHSEED="2")
    assert later["compiled"] == [] and not later["cutlass"]
    assert later["launched"] == first["launched"]


def test_damaged_files_are_compiled_again(caches: Path, first: dict):
    """Cut off, changed, empty; and those that are gone."""
    short, changed, empty, gone, _ = objects(caches)
    whole = changed.read_bytes()
    short.write_bytes(short.read_bytes()[:-100])
    changed.write_bytes(whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])
    empty.write_bytes(b"")
    gone.unlink()
    result = run(caches)
    assert len(set(result["compiled"])) == 4
    assert result["launched"] == first["launched"]
    for path in (short, changed, empty, gone):
        (stored,) = path.parent.iterdir()
        assert stored.stem == disk._name(stored.read_bytes())


@pytest.mark.parametrize(
    "switch",
    [
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES",
        "TORCHINDUCTOR_FX_GRAPH_CACHE",
        "CUTE_DSL_NO_CACHE",
    ],
)
def test_switches_of_caches_hold(switch: str, tmp_path: Path):
    result = run(tmp_path, "ranking", **{switch: "0" if switch.endswith("GRAPH_CACHE") else "1"})
    assert result["compiled"] == ["Ranking"]
    assert objects(tmp_path) == []


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Caches are on, in this folder."""
    monkeypatch.setattr(inductor, "cache_folder", lambda: str(tmp_path))
    monkeypatch.delenv(disk.OFF, raising=False)
    return tmp_path


def test_nothing_is_kept_where_torch_keeps_nothing(folder: Path, exports: None, monkeypatch):
    monkeypatch.setattr(inductor, "cache_folder", lambda: None)
    assert disk.object_file(lambda: b"kernel", "forward", CONFIG) == b"kernel"
    assert objects(folder) == []


OTHERS = {
    "dtype": "float16", "head_dim": 72, "value_dim": 72, "program": "relu(s)", "aux": ("bool",),
    "jagged_q": True, "jagged_k": True, "shared": frozenset("q"), "page": 16, "page_dtype": "int64",
    "fast": False, "skip": False,
    "offsets": "int64", "vectors": frozenset([0]), "expanded": frozenset([0]), "stored": 0,
    "ordered": False, "part": "last", "bounded": frozenset([0]), "kernel": "backward",
    "lookups": (TableLayout(0, 9, 1),), "sums": False,
}  # fmt: skip


def test_the_folder_follows_from_all_of_a_configuration(folder: Path):
    fields = [f.name for f in dataclasses.fields(Sm90Config)]
    places = {disk._place(("forward", dataclasses.replace(CONFIG, **{x: OTHERS[x]})))
              for x in fields}  # fmt: skip
    others = [
        kind(**{x: getattr(CONFIG, x) for x in fields}) for kind in (Sm100Config, Sm103Config)
    ]
    places |= {disk._place(("forward", config)) for config in (CONFIG, *others)}
    places |= {disk._place(("backward", CONFIG)), disk._place(("backward", "keys", CONFIG))}
    assert len(places) == len(fields) + 5
    assert disk._place(("forward", dataclasses.replace(CONFIG))) in places


def test_the_folder_follows_from_what_compiles(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def place():
        return disk._place(("forward", CONFIG))

    places = {place()}
    for owner, name, value in (
        (disk, "source_hash", lambda: "others"),
        (disk, "_versions", lambda: ("9.9.9",)),
        (disk.platform, "machine", lambda: "another"),
        (disk, "_instructions", lambda: "fewer"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            places.add(place())
    with monkeypatch.context() as patch:
        patch.setenv("CUTE_DSL_LINEINFO", "1")
        places.add(place())
    assert len(places) == 6
    assert place() in places


def test_the_version_says_for_which_cuda_the_compiler_is(monkeypatch: pytest.MonkeyPatch):
    def version(name: str) -> str:
        if name.endswith("cu13"):
            raise importlib.metadata.PackageNotFoundError(name)
        return "4.8.1"

    monkeypatch.setattr(importlib.metadata, "version", version)
    result = disk._versions.__wrapped__()
    assert result == tuple(
        f"{part} 4.8.1" for part in ("", "-libs-base", "-libs-core", "-libs-cu12")
    )


def test_sets_are_described_in_one_order():
    assert "shared=['k', 'q', 'v']" in disk.described(
        dataclasses.replace(CONFIG, shared=frozenset("vqk"))
    )


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled here are bytes."""
    monkeypatch.setattr(disk, "exported", lambda made: made)


def test_a_kernel_is_written_whole_under_its_hash(folder: Path, exports: None):
    assert disk.object_file(lambda: b"kernel", "forward", CONFIG) == b"kernel"
    (path,) = objects(folder)
    assert path.name == f"{disk._name(b'kernel')}.o" and path.read_bytes() == b"kernel"


def test_a_write_that_fails_leaves_nothing(folder: Path, exports: None, monkeypatch):
    def full(path: Path, content: bytes) -> None:
        with path.open("wb") as file:
            file.write(content[:3])
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert disk.object_file(lambda: b"kernel", "forward", CONFIG) == b"kernel"
    assert objects(folder) == []


def test_what_cannot_be_kept_is_compiled_each_time(folder: Path, exports: None):
    (folder / disk.FOLDER).write_text("a file")
    kernels = [b"one", b"another"]
    assert [
        disk.object_file(lambda kernel=kernel: kernel, "forward", CONFIG) for kernel in kernels
    ] == kernels
    assert objects(folder) == []


def test_a_folder_that_cannot_be_read_costs_time_only(folder: Path, exports: None, monkeypatch):
    def forbidden(path: Path) -> bytes:
        raise PermissionError(path)

    assert disk.object_file(lambda: b"kernel", "forward", CONFIG) == b"kernel"
    monkeypatch.setattr(Path, "read_bytes", forbidden)
    assert disk.object_file(lambda: b"another", "forward", CONFIG) == b"another"


def test_two_writers_leave_sound_files(folder: Path):
    """What the compiler exports need not have the same bits twice: one of both is loaded."""
    place = disk._place(("forward", CONFIG))
    for content in (b"one", b"another"):
        disk._store(place, content)
    assert len(objects(folder)) == 2
    assert disk.object_file(pytest.fail, "forward", CONFIG) in (b"one", b"another")
