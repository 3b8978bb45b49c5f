"""The rendered kernels, run in the Triton interpreter on a CPU in fp32, against the fp64
reference."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import (
    cases,
    dropout_cases,
    five_matmul_cases,
    jagged_cases,
    one_tile_cases,
    paged_cases,
    row_sum_cases,
    split_cases,
    table_cases,
    weights_cases,
)

TABLES = (
    cases,
    jagged_cases,
    five_matmul_cases,
    one_tile_cases,
    split_cases,
    table_cases,
    paged_cases,
    row_sum_cases,
    weights_cases,
    dropout_cases,
)
CASES = [case for table in TABLES for case in table.CASES]
ROOT = Path(__file__).parents[2]
QUICK = {
    "inference", "neighbours", "neighbours_causal",
    "activation_silu", "activation_gelu_tanh", "tail_sigmoid", "head_dims_odd",
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
    "few", "few_tail", "few_shares", "few_narrow_shares", "few_queries_shared",
    "few_columns_shares", "few_padding",
    "split", "split_row", "split_dynamic", "split_last", "split_mask", "split_keys",
    "split_keys_unowned", "split_both_unowned",
    "table_position", "table_both", "table_causal", "table_rows", "table_outside",
    "table_shares_heads", "table_jagged_times", "table_jagged_dynamic",
    "paged", "paged_tail", "paged_slots", "paged_odd", "paged_shared_table", "paged_gqa",
    "paged_as_many_pages_as_sequences", "paged_length", "paged_dynamic", "paged_missing",
    "paged_written", "paged_negative", "paged_jagged_halves", "paged_split_last",
    "paged_split_jagged",
    "sums_tail", "sums_few", "sums_absolute", "sums_other_mask", "sums_of_an_operand",
    "sums_gradient", "sums_jagged", "sums_jagged_keys", "sums_jagged_gradient",
    "weights", "weights_tail", "weights_parts", "weights_channels", "weights_causal",
    "weights_later", "weights_terms", "weights_table", "weights_flat", "weights_one",
    "dropout_tail", "dropout_causal", "dropout_gqa", "dropout_few", "dropout_few_inference",
    "dropout_wide", "dropout_two", "dropout_of_keys", "dropout_of_rows", "dropout_atomic",
    "dropout_five", "dropout_five_jagged", "dropout_jagged_causal", "dropout_jagged_keys",
}  # fmt: skip

# Every template and feature once: what the oldest Triton runs too.
OLDEST = {
    "inference", "activation_gelu_tanh", "tail_sigmoid", "one_element_of_operands", "view_split",
    "added_gqa", "causal_tail", "hstu_tail", "all_kinds", "bias_reversed", "integers_int32",
    "mask_blocks", "no_keys", "prefix_long", "dynamic_hstu", "jagged_per_token", "jagged_mask",
    "jagged_seeds", "jagged_unowned", "jagged_many_both", "jagged_bias", "five_columns",
    "five_jagged_both", "five_jagged_batch", "few_tail", "few_shares", "split_last",
    "split_both_unowned", "table_both", "sums_absolute", "sums_jagged_gradient", "dropout_causal",
    "dropout_jagged_keys",
}  # fmt: skip


class Interpreter:
    """A process that has Triton's interpreter on and judges cases as it is asked."""

    def __init__(self) -> None:
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.kernels.interpret"],
            cwd=ROOT,
            env={**os.environ, "TRITON_INTERPRET": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )

    def judge(self, name: str) -> str:
        """The fault of a case, or "" if there is none."""
        print(name, file=self.process.stdin, flush=True)
        for line in self.process.stdout:
            if line.startswith('"'):  # else a word of torch or Triton
                return json.loads(line)
        self.errors.seek(0)
        pytest.fail(f"{name} ended the interpreter:\n{self.errors.read()[-3000:]}")

    def close(self) -> None:
        self.process.communicate()
        self.errors.close()


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    """One process for all cases of a worker: it takes seconds to begin."""
    value = Interpreter()
    yield value
    value.close()


def _marked(name: str):
    return pytest.param(name, marks=[pytest.mark.oldest_triton] if name in OLDEST else [])


@pytest.mark.parametrize("name", [_marked(name) for name in sorted(QUICK)])
def test_kernels_obey_the_reference(name: str, interpreter: Interpreter):
    assert interpreter.judge(name) == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", [case.name for case in CASES if case.name not in QUICK])
def test_kernels_obey_the_reference_at_length(name: str, interpreter: Interpreter):
    assert interpreter.judge(name) == ""


def test_the_table_has_each_name_once():
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
    assert set(names) >= QUICK >= OLDEST
