"""Validates the emulator on kernels that are known to be right on hardware.

    python -m tests.emulator.validate [--source REPOSITORY] [names ...]

Fetches NVIDIA's CuTe DSL examples for Blackwell at one commit, compiles them for sm_100a, runs
their PTX on the emulator on every schedule and compares with plain torch. Nothing of theirs is kept
here.
--source: a local clone (bare or not) in place of the public address. Exits with 1 if a case fails.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from . import nvidia
from .nvidia import Result

ADDRESS = "https://github.com/NVIDIA/cutlass"
COMMIT = "7107b05535f8977f5ecb9d01ee203205b1fd9bc4"  # CUTLASS main, 2026-08-20
PREFIX = "examples/python/CuTeDSL/"
FILES = [
    f"{PREFIX}{name}"
    for name in (
        "helpers/__init__.py",
        "helpers/fmha_helpers.py",
        "cute/blackwell/tutorial/tutorial_gemm/fp16_gemm_0.py",
        "cute/blackwell/tutorial/tutorial_gemm/fp16_gemm_1.py",
        "cute/blackwell/tutorial/tutorial_gemm/fp16_gemm_2.py",
        "cute/blackwell/kernel/attention/fmha/fmha.py",
        "cute/blackwell/kernel/attention/fmha/fmha_bwd.py",
    )
]


@dataclass(frozen=True)
class Case:
    """bound: on the largest error, relative to the largest value of the reference."""

    name: str
    execute: Callable[[Path], Result]
    bound: float


def forward(name: str, bound: float, *shape: int, **options: object) -> Case:
    return Case(name, partial(nvidia.attention, shape=shape, **options), bound)


def backward(name: str, bound: float, *shape: int, **options: object) -> Case:
    return Case(name, partial(nvidia.attention_backward, shape=shape, **options), bound)


# Bounds: 0 where integers make the product exact; else two roundings of P (and of dS) to the dtype.
BF16, F16 = 2**-7, 2**-10
CASES = [
    Case("gemm", partial(nvidia.gemm, script="fp16_gemm_0", shape=(256, 512, 512)), 0.0),
    Case("gemm, roles", partial(nvidia.gemm, script="fp16_gemm_2", shape=(256, 256, 512)), 0.0),
    *(
        Case(name, partial(nvidia.gemm, script=script, shape=shape, options=options), 0.0)
        for name, script, shape, options in (
            ("gemm by pairs", "fp16_gemm_1", (512, 256, 512), {}),
            ("gemm by pairs, roles", "fp16_gemm_2", (512, 256, 512), {}),
            ("gemm by pairs, 64 rows each", "fp16_gemm_2", (256, 256, 512), nvidia.HALVED),
        )
    ),
    forward("forward bf16 d64", BF16, 1, 256, 512, 1, 1, 64),
    forward("forward f16 d128", F16, 1, 256, 384, 1, 1, 128, dtype="float16"),
    forward("forward f16 d32", F16, 1, 256, 256, 1, 1, 32, dtype="float16"),
    forward("forward bf16 causal", BF16, 1, 256, 256, 1, 1, 64, causal=True),
    forward("forward f16 tails, GQA", F16, 2, 200, 300, 4, 2, 128, dtype="float16"),
    forward("forward bf16 persistent", BF16, 1, 512, 256, 2, 1, 64, persistent=True),
    backward("backward bf16 d64", BF16, 1, 256, 256, 1, 1, 64),
    backward("backward f16 d128", F16, 1, 256, 256, 1, 1, 128, dtype="float16"),
    backward(
        "backward f16 causal, tails, GQA", F16, 1, 200, 300, 2, 1, 64,
        dtype="float16", causal=True,
    ),
    backward("backward bf16 batch", BF16, 2, 128, 256, 1, 1, 64),
]  # fmt: skip


def git(*words: str | Path, cwd: Path) -> bytes:
    done = subprocess.run(["git", *map(str, words)], cwd=cwd, capture_output=True)
    if done.returncode:
        raise SystemExit(f"git {words[0]}: {done.stderr.decode().strip()}")
    return done.stdout


def fetch(source: str | None, folder: Path) -> None:
    """Writes FILES, as they are at COMMIT, under the folder."""
    repository = Path(source) if source else folder / "repository"
    if not source:
        repository.mkdir(parents=True, exist_ok=True)
        git("init", "-q", cwd=repository)
        git("fetch", "-q", "--depth=1", "--filter=blob:none", ADDRESS, COMMIT, cwd=repository)
        git("config", "remote.origin.url", ADDRESS, cwd=repository)
        git("config", "remote.origin.promisor", "true", cwd=repository)
    for name in FILES:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(git("show", f"{COMMIT}:{name}", cwd=repository))


def attempt(case: Case, folder: Path) -> bool:
    start = time.perf_counter()
    result = case.execute(folder / PREFIX)
    passed = result.error <= case.bound
    print(
        f"{'ok  ' if passed else 'FAIL'} {case.name:34} error {result.error:8.1e} (bound "
        f"{case.bound:.1e})  {result.report.seconds:5.1f} s of {time.perf_counter() - start:5.1f}"
        f"  {result.report.counts['mma']:5} products",
        flush=True,
    )
    for warning in sorted(set(result.report.warnings)):
        print(f"     warning: {warning}")
    return passed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="parts of the names of the cases to run")
    parser.add_argument("--source", help="a local clone of the examples' repository")
    options = parser.parse_args(arguments)
    chosen = [c for c in CASES if not options.names or any(n in c.name for n in options.names)]
    with tempfile.TemporaryDirectory() as name:
        fetch(options.source, Path(name))
        print(f"{ADDRESS} at {COMMIT}\n{nvidia.versions()}")
        passed = [attempt(case, Path(name)) for case in chosen]
    print(f"{sum(passed)} of {len(passed)} cases passed")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
