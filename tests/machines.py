"""The tests that hold on every machine, on this one made to look like others: `make test-machines`.

    python -m tests.machines                        all that this CPU can be
    python -m tests.machines --capabilities avx2 --threads 1 4 --seeds 0 1 2
    python -m tests.machines --sets judged -n 2 --dist worksteal      the rest goes to pytest

Two sets of tests. `held`: clients, operators, reference and CPU kernels, under each instruction set
of the CPU and each number of threads. `judged`: those that judge by the error rule, once for each
seed; the seeds take the instruction sets in turn, and the numbers of threads. A run that fails is
printed in full; a table of all comes last.
"""

import argparse
import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

TESTS = Path(__file__).parent
CAPABILITIES = ("default", "avx2", "avx512")  # each has what those before it have
HELD = (
    "clients",
    "test_ops.py",
    "test_jagged_ops.py",
    "test_reference.py",
    "test_functional.py",
    "test_functional_jagged.py",
    "lowerings/test_blocked.py",
    "lowerings/test_cpu.py",
    "kernels/test_cpu_jagged.py",
    "kernels/test_cpu_tiles.py",
)
KERNELS_JUDGED = "lowerings/test_cpu.py::test_error_rule_for_every_activation"
JUDGES = re.compile(r"^from tests\.(_judge|tolerances) import", re.MULTILINE)


@dataclass(frozen=True)
class Cell:
    """One run: which tests, and the machine that they see. seed: None is each test's own."""

    name: str
    tests: tuple[str, ...]
    capability: str
    threads: int
    seed: int | None = None

    def environment(self) -> dict[str, str]:
        settings = {
            "ATEN_CPU_CAPABILITY": self.capability,
            "OMP_NUM_THREADS": str(self.threads),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        if self.seed is not None:
            settings["GDPA_SEED"] = str(self.seed)
        return {**os.environ, **settings}


def capabilities() -> tuple[str, ...]:
    """The instruction sets that torch knows and this CPU has."""
    best = torch.backends.cpu.get_cpu_capability().lower()
    return CAPABILITIES[: CAPABILITIES.index(best) + 1] if best in CAPABILITIES else (best,)


def judged() -> tuple[str, ...]:
    """The files of tests that judge by the error rule, on a CPU and without an emulator."""
    paths = sorted(TESTS.glob("clients/test_*.py")) + sorted(TESTS.glob("patterns/test_*.py"))
    files = [str(f) for f in paths if JUDGES.search(f.read_text())]
    return (*files, str(TESTS / KERNELS_JUDGED))


def cells(arguments: argparse.Namespace) -> Iterator[Cell]:
    files = tuple(str(TESTS / name) for name in HELD)
    if "held" in arguments.sets:
        for machine in itertools.product(arguments.capabilities, arguments.threads):
            yield Cell("held", files, *machine)
    if "judged" in arguments.sets:
        machines = zip(itertools.cycle(arguments.capabilities), itertools.cycle(arguments.threads))
        for seed, machine in zip(arguments.seeds, machines):
            yield Cell("judged", judged(), *machine, seed)


def run(cell: Cell, rest: list[str]) -> tuple[bool, str]:
    """Whether the tests of a cell passed, and its line of the table."""
    command = [sys.executable, "-m", "pytest", "-q", "-r", "fE", "-m", "not slow", *rest]
    started = time.monotonic()
    done = subprocess.run(
        [*command, *cell.tests], cwd=TESTS.parent, env=cell.environment(), capture_output=True
    )
    printed = done.stdout.decode() + done.stderr.decode()
    if done.returncode:
        print(printed, flush=True)
    seed = "own" if cell.seed is None else cell.seed
    counts = re.sub(r" in .*", "", printed.strip().splitlines()[-1]).strip("= ")
    spent = f"{time.monotonic() - started:.0f} s"
    line = f"{cell.name:8}{cell.capability:9}{cell.threads:>7}  {seed!s:>4}  {spent:>7}  {counts}"
    return not done.returncode, line


def main() -> int:
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("--capabilities", nargs="+", default=capabilities(), choices=CAPABILITIES)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--seeds", nargs="+", type=int, default=range(20))
    parser.add_argument("--sets", nargs="+", default=["held", "judged"])
    arguments, rest = parser.parse_known_args()
    heading = f"{'tests':8}{'CPU':9}{'threads':>7}  {'seed':>4}  {'time':>7}  result"
    print(heading, flush=True)
    passed, lines = True, []
    for cell in cells(arguments):
        good, line = run(cell, rest)
        passed &= good
        lines.append(line)
        print(line, flush=True)
    if not passed:
        print("", heading, *lines, sep="\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
