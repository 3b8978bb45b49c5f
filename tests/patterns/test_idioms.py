"""Every row of the idiom table in four modes: rewritten or not as its verdict says, and exact.

In all modes the pass adds no guard, and a graph without a match comes out node for node.
"""

import pytest
import torch

from tests._judge import compare
from tests._recorder import Recorder
from tests.operands import make_operands
from tests.patterns import (  # noqa: F401
    activations_table,
    between_table,
    heads_table,
    masks_table,
    product_biases_table,
    products_table,
    refused_table,
    row_sums_table,
    sums_table,
    values_table,
)
from tests.patterns.rows import OTHER_SIZES, ROWS, SIZES, Row

# mode -> (dtype, with gradients, sizes of the calls)
MODES = {
    "training": (torch.float64, True, (SIZES,)),
    "inference": (torch.float32, False, (SIZES,)),
    "dynamic": (torch.float64, True, (SIZES, OTHER_SIZES)),
    "bf16": (torch.bfloat16, True, (SIZES,)),
}


def _cases() -> list:
    """Every row in every mode. Sizes that vary take five times as long as those that do not: at
    length, where a row neither names one nor says that they matter.
    """
    slow = lambda row, mode: mode == "dynamic" and not (row.names_a_size or row.varies)
    return [
        pytest.param(
            row, mode, id=f"{row.name}-{mode}", marks=[pytest.mark.slow] if slow(row, mode) else []
        )
        for row in ROWS
        for mode in MODES
    ]


@pytest.mark.parametrize(("row", "mode"), _cases())
def test_idiom(row: Row, mode: str, request: pytest.FixtureRequest) -> None:
    if mode == "dynamic":
        request.getfixturevalue("uncached_fakes")
    dtype, training, calls = MODES[mode]
    recorder = Recorder()
    compiled = torch.compile(row.function, backend=recorder, fullgraph=True)
    for number, sizes in enumerate(calls):
        operands = make_operands(row.specs, sizes, dtype=dtype, seed=number)
        marks = row.specs if mode == "dynamic" else None
        fault = compare(
            row.function,
            compiled,
            operands,
            training=training,
            specs=marks,
            gradient_relative=row.gradient_relative,
        )
        assert not fault, f"{fault}\n{recorder.graphs[-1].after}"
    check_verdict(row, recorder)


def check_verdict(row: Row, recorder: Recorder) -> None:
    """Was every graph treated as the row says?"""
    assert recorder.graphs, "nothing was compiled"
    for graph in recorder.graphs:
        assert not graph.guards_added
        if not graph.matches:
            assert graph.untouched
        matched = graph.calls_after["attention"] + graph.calls_after["attention_sums"]
        assert matched == len(graph.matches)
        codes = [refusal.code.name for refusal in graph.rejections]
        if row.verdict == "fuse":
            assert matched == row.regions, recorder.why()
        elif row.verdict == "refuse":
            assert not matched, f"rewritten: {graph.matches}"
            assert set(codes) & set(row.codes), f"{recorder.why()}\nexpected one of {row.codes}"
        elif row.verdict == "leave":
            assert not matched, f"rewritten: {graph.matches}"
            assert all(r.code.category.value == "NOT_GDPA" for r in graph.rejections), (
                recorder.why()
            )


def test_names_are_unique() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
