"""Gradients of learned tables: the kernel on the emulator, with sums that are exact."""

import pytest
import torch

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute import launcher, tables
from tests.emulator import recording, run

SIZE = 5


def emulated(monkeypatch, grad, index, size, parts=1, behind=64):
    """The sums. Behind the operands lie so many NaN and wild places."""
    guarded = torch.full((grad.numel() + behind,), torch.nan, dtype=grad.dtype)
    guarded[: grad.numel()] = grad.view(-1)
    wild = torch.full((index.numel() + behind,), 1 << 30, dtype=index.dtype)
    wild[: index.numel()] = index
    arguments = [guarded[: grad.numel()].view(grad.shape), wild[: index.numel()]]
    room, results = torch.full((parts, grad.shape[0], size), 7.0), []
    monkeypatch.setattr(tables, "empty", lambda *_: room)
    tables._launcher.cache_clear()
    launcher.word_launcher.cache_clear()
    with recording():
        run(
            lambda: results.append(tables.sums(*arguments, size, parts=parts, stream=0)),
            [guarded, wild, room],
        )
    tables._launcher.cache_clear()
    launcher.word_launcher.cache_clear()
    return results[-1]


def exact(grad, index, size):
    places = index.long() % size
    sums = torch.zeros(grad.shape[0], size, dtype=torch.float64)
    return sums.index_add_(1, places, grad.double())


@pytest.mark.parametrize("grad", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_sums_of_each_place(grad, index, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    terms = torch.randint(-8, 9, (2, 5000), generator=generator).to(grad)
    places = torch.randint(-SIZE, SIZE, (5000,), generator=generator).to(index)
    results = emulated(monkeypatch, terms, places, SIZE, parts=2)
    assert torch.equal(results.double(), exact(terms, places, SIZE))


@pytest.mark.parametrize("rows", [1, 31, 2048, 2049])
def test_rows_that_fill_no_cta(rows, monkeypatch):
    terms = torch.arange(rows, dtype=torch.float32)[None] % 7
    places = torch.arange(rows, dtype=torch.int32) % 3
    results = emulated(monkeypatch, terms, places, SIZE)
    assert torch.equal(results.double(), exact(terms, places, SIZE))


def test_a_part_without_rows(monkeypatch):
    """Parts of two rows: the fourth begins past the last row, and must not read there."""
    terms, places = torch.ones(1, 5), torch.arange(5)
    results = emulated(monkeypatch, terms, places, SIZE, parts=4, behind=0)
    assert torch.equal(results, torch.ones(1, SIZE))


@pytest.mark.parametrize("size", [1, 452, 453, tables.MOST])
def test_sizes_of_tables(size, monkeypatch):
    """Larger tables have CTAs of fewer threads."""
    terms = torch.ones(1, 300, dtype=torch.bfloat16)
    places = (torch.arange(300) * 7 % size).int()
    results = emulated(monkeypatch, terms, places, size)
    assert torch.equal(results.double(), exact(terms, places, size))


def test_places_past_an_end_are_left_out(monkeypatch):
    """Their look-up was an error. The kernel must not write to memory that is not its own."""
    places = torch.tensor([0, SIZE, -SIZE - 1, 1 << 40, -(1 << 40), 2])
    results = emulated(monkeypatch, torch.ones(1, 6), places, SIZE)
    assert results.tolist() == [[1.0, 0.0, 1.0, 0.0, 0.0]]


def test_no_terms():
    result = tables.sums(torch.ones(2, 0), torch.ones(0, dtype=torch.int64), SIZE, stream=0)
    assert torch.equal(result, torch.zeros(2, SIZE))


@pytest.mark.parametrize("rows, parts", [(0, 1), (1, 1), (4097, 3), (1 << 26, 2 * 3 * 16)])
def test_parts_fill_the_gpu_once(rows, parts, monkeypatch):
    """Of a table of 129 places three CTAs fit a multiprocessor. 64 are shared by two columns."""
    monkeypatch.setattr(tables, "multiprocessors", lambda _: 64)
    assert tables.parts_for(129, 2, rows, torch.device("cuda")) == parts


def test_launchers_are_for_one_form(monkeypatch):
    """Only operands at multiples of 16 bytes, of rows in multiples of 8, are read by vectors."""
    requests = []
    monkeypatch.setattr(
        tables, "_launcher", lambda *given: requests.append(given[3]) or (lambda *_: 0)
    )
    for rows, offset in ((16, 0), (17, 0), (16, 1)):
        grad = torch.ones(32)[offset : offset + rows].view(1, rows)
        tables.sums(grad, torch.zeros(rows, dtype=torch.int32), SIZE, parts=1, stream=0)
    assert requests == [8, 1, 1]
