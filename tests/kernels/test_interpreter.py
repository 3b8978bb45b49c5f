"""The rendered kernels, run in the Triton interpreter on a CPU in fp32, against the fp64
reference."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import cases, five_matmul_cases, jagged_cases

CASES = [*cases.CASES, *jagged_cases.CASES, *five_matmul_cases.CASES]
ROOT = Path(__file__).parents[2]
QUICK = {
    "inference", "activation_silu", "activation_gelu_tanh", "tail_sigmoid", "head_dims_odd",
    "one_element", "one_element_of_query", "one_element_of_key", "one_element_of_operands",
    "view_split", "gqa", "causal_tail", "seeds_shared", "only_kv", "hstu_tail", "bias_reversed",
    "all_kinds", "mask_before", "added_gqa", "lengths", "no_keys", "dynamic_hstu",
    "integers_uint8", "integers_int32",
    "mask_read", "mask_learned", "mask_blocks", "mask_padding", "jagged_mask", "prefix_long",
    "jagged_self", "jagged_unowned",
    "jagged_per_token", "jagged_short_keys_tail", "jagged_seeds", "jagged_targets", "jagged_read",
    "jagged_many", "jagged_many_both",
    "jagged_bias", "jagged_bias_all", "five_columns", "five_jagged_0", "five_jagged_both",
    "five_jagged_batch", "five_jagged_unowned",
}  # fmt: skip


@pytest.fixture(scope="session")
def verdicts() -> dict[str, str]:
    """What is wrong with each case, "" for nothing; filled by one process per kind of run."""
    return {}


def judge(names: set[str], verdicts: dict[str, str]) -> None:
    """Run the cases in one process that has the interpreter on."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.interpret", *sorted(names)],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    verdicts.update(json.loads(line) for line in lines)
    missing = names - verdicts.keys()
    assert not missing, f"{sorted(missing)} did not run:\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("name", sorted(QUICK))
def test_kernels_obey_the_reference(name: str, verdicts: dict[str, str]):
    if name not in verdicts:
        judge(QUICK, verdicts)
    assert verdicts[name] == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", [case.name for case in CASES if case.name not in QUICK])
def test_kernels_obey_the_reference_at_length(name: str, verdicts: dict[str, str]):
    if name not in verdicts:
        judge({case.name for case in CASES} - QUICK, verdicts)
    assert verdicts[name] == ""


def test_the_table_has_each_name_once():
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
    assert set(names) >= QUICK
