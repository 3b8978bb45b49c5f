"""What `pytest --rotate` leaves to another day: of large families of tests a share runs.

A family is what a function makes of its parameters. Its first case always runs. Of the others one
in n does, in the order of checksums of their names. So n days in a row run all of them, and `make
test-full` runs all at once. What proves the rest is in no family: the contract with torch, the
judge and its mutations, the adversary's new programs.
"""

from __future__ import annotations

import datetime
import os
import zlib
from collections import defaultdict
from collections.abc import Sequence

# file: n. Those that take more than ten CPU seconds, and whose functions have many cases.
ONE_IN: dict[str, int] = {
    "tests/adversary/hunts/test_hunts.py": 4,
    "tests/benchmarks/test_models.py": 4,
    "tests/clients/test_compiled.py": 4,
    "tests/clients/test_hstu_production.py": 3,
    "tests/kernels/test_cpu_jagged.py": 4,
    "tests/kernels/test_cubins.py": 3,
    "tests/kernels/test_cute_backward.py": 4,
    "tests/kernels/test_cute_bounds.py": 4,
    "tests/kernels/test_cute_disk.py": 3,
    "tests/kernels/test_cute_forward.py": 4,
    "tests/kernels/test_cute_hopper.py": 4,
    "tests/kernels/test_cute_hopper_backward.py": 5,
    "tests/kernels/test_cute_hopper_forward.py": 5,
    "tests/kernels/test_cute_lookups.py": 4,
    "tests/kernels/test_cute_mask_tensors.py": 4,
    "tests/kernels/test_cute_stored_biases.py": 6,
    "tests/kernels/test_cute_weights.py": 4,
    "tests/kernels/test_cute_totals.py": 4,
    "tests/kernels/test_cute_wide.py": 4,
    "tests/kernels/test_five_matmul.py": 4,
    "tests/kernels/test_interpreter.py": 4,
    "tests/kernels/test_one_tile.py": 4,
    "tests/lowerings/test_blocked.py": 4,
    "tests/lowerings/test_chunked.py": 4,
    "tests/lowerings/test_cpu.py": 4,
    "tests/lowerings/test_tables.py": 4,
    "tests/patterns/test_distributed.py": 3,
    "tests/patterns/test_dynamic.py": 4,
    "tests/patterns/test_exact.py": 3,
    "tests/patterns/test_exported.py": 6,
    "tests/patterns/test_gradients.py": 4,
    "tests/patterns/test_idioms.py": 8,
    "tests/patterns/test_jagged.py": 8,
    "tests/patterns/test_lookups.py": 3,
    "tests/patterns/test_precision.py": 3,
    "tests/patterns/test_rare.py": 4,
    "tests/patterns/test_tables_random.py": 4,
    "tests/patterns/test_tables_kept.py": 3,
    "tests/patterns/test_unrelated.py": 3,
    "tests/test_blocks.py": 12,
    "tests/test_explain_settings.py": 4,
    "tests/test_functional_jagged.py": 3,
    "tests/test_scalars.py": 4,
}


def day() -> int:
    """The number of the day; TEST_DAY sets it, to run again what ran on another day."""
    return int(os.environ.get("TEST_DAY", datetime.date.today().toordinal()))


def left_out(names: Sequence[str], day: int) -> set[str]:
    """Which of the tests of these names ("file::function[case]") do not run on a day."""
    families: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        function, bracket, _ = name.partition("[")
        if bracket:
            families[function].append(name)
    items = set()
    for function, (_, *others) in families.items():
        one_in = ONE_IN.get(function.partition("::")[0], 1)
        others.sort(key=_checksum)  # neighbours in a table of cases are alike
        for place, name in enumerate(others, _checksum(function)):
            if (place - day) % one_in:
                items.add(name)
    return items


def _checksum(name: str) -> int:
    return zlib.crc32(name.encode())
