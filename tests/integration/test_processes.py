"""Fresh processes: the entry point, logs and traces, the caches, DistributedDataParallel."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs.py"
TOLERANCE = 1e-3  # of sums of squares over fp32 values of order 10


def run(*arguments: str, program: Path = PROGRAMS, **environment: str) -> tuple[dict, str]:
    """The JSON that a program prints last, and its stderr."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TORCHINDUCTOR_", "TORCH_"))}
    done = subprocess.run(
        [sys.executable, str(program), *arguments],
        env={**clean, "TORCHINDUCTOR_COMPILE_THREADS": "1", **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder that is empty before `logged`."""
    return str(tmp_path_factory.mktemp("caches"))


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory, caches: str) -> tuple[dict, str, Path]:
    """One process by the entry point, with our log and the structured trace switched on."""
    traces = tmp_path_factory.mktemp("traces")
    result, stderr = run(
        "entry",
        TORCH_LOGS="+gdpa_inductor",
        TORCH_TRACE=str(traces),
        TORCHINDUCTOR_CACHE_DIR=caches,
    )
    return result, stderr, traces


def test_the_entry_point(logged) -> None:
    result, _, _ = logged
    assert result["difference"] < TOLERANCE
    assert result["gdpa"]["matched"] == 1 and result["gdpa"]["lowered_cpu"] == 2


def test_torch_logs_shows_what_was_found(logged) -> None:
    _, stderr, _ = logged
    assert "programs.py:" in stderr and "O = (silu(s*0.25)) V" in stderr
    assert "attention_backward lowered to the cpu kernel" in stderr


def test_the_structured_trace_has_our_artifact(logged) -> None:
    _, _, traces = logged
    text = "".join(path.read_text() for path in traces.iterdir())
    assert '"name": "gdpa_regions"' in text and "O = (silu(s*0.25)) V" in text


@pytest.fixture(scope="module")
def second(logged, caches: str) -> dict:
    """The next process, which finds what `logged` has left."""
    return run("entry", "2", TORCHINDUCTOR_CACHE_DIR=caches)[0]


def test_caches_hit_in_a_new_process_and_an_upgrade_misses(logged, second) -> None:
    first, upgraded = logged[0], second["upgraded"]
    for result in (second, upgraded):
        assert result["difference"] < TOLERANCE and result["gdpa"]["matched"] == 1
    assert first["aot"]["autograd_cache_miss"] == 1 and first["gdpa"]["lowered_cpu"] == 2
    assert second["aot"]["autograd_cache_hit"] == 1
    assert "autograd_cache_miss" not in second["aot"]
    assert "fxgraph_cache_miss" not in second["fx"] and "lowered_cpu" not in second["gdpa"]
    assert upgraded["aot"]["autograd_cache_miss"] == 1 and upgraded["gdpa"]["lowered_cpu"] == 2


def test_the_next_process_finds_a_direct_call_in_the_cache(logged, second) -> None:
    first = logged[0]
    assert max(result["direct"]["difference"] for result in (first, second)) < TOLERANCE
    assert first["direct"]["hits"] == 0 and second["direct"]["hits"] > 0


def test_a_second_process_loads_neither_judge_nor_templates(logged, second) -> None:
    """The first has left its verdict and its code on disk. On a CPU it needs no templates."""
    assert logged[0]["loaded"] == ["judge.interpret"] and second["loaded"] == []


def test_distributed_training_on_two_ranks_without_an_import() -> None:
    off = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
    every, _ = run("distributed", **off)
    assert every.keys() == {"ddp", "fsdp", "fsdp, checkpointed", "heads split"}
    for name, result in every.items():
        assert result["difference"] < TOLERANCE, name
        assert result["gdpa"] == {"matched": 1, "rejected": 0, "lowered_cpu": 2}, name


def test_packages_and_saved_functions_load_in_another_process(tmp_path: Path) -> None:
    """What runs them is imported when they first run."""
    assert run("save", str(tmp_path))[0] == {"regions": 1}
    result, _ = run("load", str(tmp_path))
    assert max(result.values()) < TOLERANCE and result.keys() == {"package", "function"}
