"""What is run on each version of torch: `make test-torch TORCH=2.14.1`, and `make test` for all.

    python -m tests.matrix 2.14.1 --workers 2 --record .ci/matrix.jsonl

.ci/matrix.txt has the versions and which runs each gets. The installed torch and Triton must be the
ones of the row: a machine's constraints may have put another one there. `--record` adds a line for
docs/versions.md (`python -m docs.tools.versions`). A run of everything says what each folder took.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict, dataclass
from pathlib import Path

from tests import costs, rotation

ROOT = Path(__file__).parents[1]
_EVERYTHING = "everything"
_FAST = ["-m", "not slow", "--rotate"]
_OPERATOR = [
    "tests/test_ops.py", "tests/test_jagged_ops.py", "tests/test_reference.py",
    "tests/test_functional.py", "tests/test_functional_jagged.py", "tests/test_direct.py",
]  # fmt: skip
_CONTRACT = [
    "tests/patterns/test_vocabulary.py", "tests/patterns/test_contract.py", "tests/program",
    "tests/compat", "tests/test_compat.py", "tests/judge/test_mutations.py",
]  # fmt: skip
_ADVERSARY = ["-m", "tests.adversary", "--seeds", "200", "--start", "7000", "--judge", "both"]
_MODEL = ["tests/clients/test_hstu.py"]
_CPU = ["tests/lowerings", "tests/kernels", "-k", "test_cpu"]
_KERNELS = ["tests/kernels/test_cubins.py", "tests/kernels/test_interpreter.py"]

# Each run: (what it shows, the arguments of pytest, or of Python where they begin with -m tests).
RUNS: dict[str, list[tuple[str, list[str]]]] = {
    "all": [(_EVERYTHING, _FAST)],
    "jagged": [
        ("matching, jagged with fbgemm", [*_FAST, "tests/patterns", "tests/clients"]),
        ("hostile programs", [*_FAST, "tests/adversary"]),
        ("contract, judge", [*_FAST, *_CONTRACT]),
        ("operator", [*_FAST, *_OPERATOR]),
        ("CPU kernels", [*_FAST, *_CPU]),
        ("Triton kernels", [*_FAST, *_KERNELS]),
    ],
    "oldest": [
        ("matching", [*_FAST, "tests/patterns", "-k", "not bf16 and not int32"]),
        ("contract, judge", [*_FAST, *_CONTRACT]),
        ("operator", [*_FAST, *_OPERATOR]),
        ("CPU kernels", [*_FAST, *_CPU]),
        ("Triton kernels", ["-m", "oldest_triton and not slow", *_KERNELS]),
    ],
    "short": [
        ("contract, judge", [*_FAST, *_CONTRACT]),
        ("200 hostile programs", _ADVERSARY),
        ("a model", [*_FAST, *_MODEL]),
    ],
}


@dataclass(frozen=True)
class Row:
    """A line of .ci/matrix.txt."""

    torch: str
    triton: str
    fbgemm: str
    runs: str


def rows() -> list[Row]:
    lines = (ROOT / ".ci" / "matrix.txt").read_text().splitlines()
    return [Row(*line.split()) for line in lines if line and not line.startswith("#")]


@dataclass
class Result:
    """What a run has shown; seconds on this machine."""

    torch: str
    triton: str
    python: str
    shows: str
    passed: int
    skipped: int
    failed: int
    seconds: int
    date: str


def check_versions(row: Row) -> None:
    """Exit unless the installed torch and Triton are the row's."""
    for name in ("torch", "triton"):
        installed = importlib.metadata.version(name).partition("+")[0]
        if installed != getattr(row, name):
            sys.exit(f"{name} {getattr(row, name)} is asked for, {installed} is installed")


def run(row: Row, shows: str, arguments: list[str], workers: int, more: list[str]) -> Result:
    """Run one command, and count its tests. Of everything, print what each folder took."""
    second = costs.loop(workers) if shows == _EVERYTHING else 0.0
    start, hostile = time.time(), arguments[:2] == ["-m", "tests.adversary"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report"
        if hostile:
            command = [*arguments, "--workers", str(workers), "--json", str(report)]
        else:
            if more:  # tests that are asked for run all
                arguments = [word for word in arguments if word != "--rotate"]
            spread = ["-n", str(workers), "--dist", "worksteal"] if workers > 1 else []
            command = ["-m", "pytest", "-q", *spread, f"--junitxml={report}", *arguments, *more]
        environment = os.environ | {"TEST_DAY": str(rotation.day())}  # of all workers, at midnight
        command = [sys.executable, *command]
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        passed, skipped, failed = (_of_programs if hostile else _of_tests)(report)
        if shows == _EVERYTHING and report.exists():
            second = (second + costs.loop(workers)) / 2
            seconds = costs.by_folder(report)
            print(costs.table(seconds, second))
            too_long = costs.over(seconds, second) if not more else []
            print("".join(f"{line} (tests/costs.py)\n" for line in too_long), end="")
            failed += len(too_long)
    if code and not failed:
        failed = 1  # it broke off
    return Result(
        row.torch, row.triton, platform.python_version(), shows, passed, skipped, failed,
        round(time.time() - start), time.strftime("%Y-%m-%d"),
    )  # fmt: skip


def _of_tests(report: Path) -> tuple[int, int, int]:
    if not report.exists():
        return 0, 0, 1
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    count = {name: int(suite.get(name, 0)) for name in ("tests", "skipped", "failures", "errors")}
    failed = count["failures"] + count["errors"]
    return count["tests"] - count["skipped"] - failed, count["skipped"], failed


def _of_programs(report: Path) -> tuple[int, int, int]:
    statuses = [json.loads(line)["status"] for line in report.read_text().splitlines()]
    wrong = sum(status in ("wrong", "crash") for status in statuses)
    return statuses.count("right"), len(statuses) - statuses.count("right") - wrong, wrong


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("torch", help="the version, as in .ci/matrix.txt")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--record", type=Path, help="add a line for each run to this file")
    arguments, more = parser.parse_known_args(argv)
    (row,) = [row for row in rows() if row.torch == arguments.torch]
    check_versions(row)
    results = [run(row, *one, arguments.workers, more) for one in RUNS[row.runs]]
    if arguments.record:
        with arguments.record.open("a") as out:
            out.writelines(json.dumps(asdict(one)) + "\n" for one in results)
    for one in results:
        print(f"torch {one.torch}, Triton {one.triton}: {one.shows} in {one.seconds} s")
    passed, failed = (sum(getattr(one, name) for one in results) for name in ("passed", "failed"))
    print(f"{passed} passed, {failed} failed, {sum(one.skipped for one in results)} skipped")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
