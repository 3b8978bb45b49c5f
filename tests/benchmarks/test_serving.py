"""The suite of caches: few queries over many keys, and what is counted."""

import pytest
import torch

from benchmarks.cases import Case
from benchmarks.contenders import CONTENDERS
from benchmarks.subjects import subject
from benchmarks.suites import CACHE_KEYS, CACHE_ROWS, Selection, serving
from gdpa_inductor import gdpa_backend
from gdpa_inductor._compat.dynamo import counters


def cache(fill: float, rows: int = 3) -> Case:
    return Case("silu", "cache", 5, 2, rows, 16, "float32", "cpu", fill=fill, keys=24)


def test_queries_times_the_keys_that_exist_count():
    dense, jagged, full = cache(0.0), cache(0.5), cache(1.0)
    keys = int(jagged.lengths().sum())
    assert 5 < keys < 5 * 24 and jagged.lengths().max() < 24
    assert dense.scores == full.scores == 5 * 3 * 24 and jagged.scores == 3 * keys
    assert dense.flops == 4 * 2 * 16 * dense.scores
    assert jagged.cache_bytes == keys * 2 * (16 + 16) * 4


@pytest.mark.parametrize("fill", [0.0, 0.5])
def test_the_formula_is_found(fill: float):
    torch._dynamo.reset()
    counters.clear()
    on = subject(cache(fill))
    options = {"gdpa.profit": False}
    with torch.no_grad():
        out = torch.compile(on.function, backend=gdpa_backend, options=options)(*on.inputs)
        wanted = on.function(*on.inputs)
    assert counters["gdpa"]["matched"] == 1
    assert counters["gdpa"]["matched_varlen"] == (fill > 0)
    torch.testing.assert_close(out, wanted, atol=1e-4, rtol=1e-4)


def test_a_copy_moves_as_many_bytes_as_the_cache_has():
    on = subject(cache(0.5))
    copied = CONTENDERS["copy"](on.function)(*on.inputs)
    assert torch.equal(copied, on.inputs[1]) and copied is not on.inputs[1]
    assert 2 * copied.nbytes == cache(0.5).cache_bytes


def test_the_suite_holds_every_bar_and_its_copy():
    jobs = serving(Selection("cuda", 0.1))
    bars = {
        (job.case.batch, job.case.length, job.case.fill, name)
        for job in jobs
        for name in job.contenders
    }
    for rows in CACHE_ROWS:
        for name in ("gdpa", "inductor", "copy"):
            assert {(256, rows, 0.0, name), (256, rows, 1.0, name), (8, rows, 1.0, name)} <= bars
    assert {(job.case.keys, job.measures) for job in jobs} == {(CACHE_KEYS, ("forward",))}
