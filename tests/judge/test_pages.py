"""The judge on rewrites that read keys and values in pages: what the matcher takes care of, left
out.
"""

import dataclasses

import pytest
import torch

from gdpa_inductor.patterns.host import effects, pages
from gdpa_inductor.patterns.reading import factors, paging
from gdpa_inductor.rejection import Code
from tests._recorder import Recorder
from tests.patterns import pages as forms


def refused(function) -> bool:
    """Whether the judge takes the rewrite back; results are eager's in any case."""
    recorder = Recorder()
    mine, eager = forms.operands(), forms.operands()
    with torch.no_grad():
        actual = torch.compile(function, backend=recorder, fullgraph=True)(*mine)
        torch.testing.assert_close(actual, function(*eager))
    codes = [rejection.code for rejection in recorder.rejections]
    return Code.INVALID_REWRITE in codes


def test_right_rewrites_pass():
    assert not refused(forms.subscript)


@pytest.mark.refused_by_judge
def test_places_from_the_end(monkeypatch: pytest.MonkeyPatch):
    read = factors.lookup_of
    unwrapped = lambda *args: dataclasses.replace(read(*args), wraps=False)
    monkeypatch.setattr(factors, "lookup_of", unwrapped)
    assert refused(forms.subscript)


@pytest.mark.refused_by_judge
@pytest.mark.parametrize(
    "function",
    [
        forms.written_in_between,
        forms.values_written_before_their_product,
        forms.table_written_in_between,
    ],
)
def test_writes_before_the_read(function, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pages, "_check_writes", lambda *_: None)
    monkeypatch.setattr(effects, "_check_operands", lambda *_: None)
    assert refused(function)


@pytest.mark.refused_by_judge
def test_different_tables(monkeypatch: pytest.MonkeyPatch):
    original = paging.paging_of
    monkeypatch.setattr(
        "gdpa_inductor.patterns.writing.replacement.paging_of",
        lambda layout, one: original(layout, lambda *_: True),
    )
    assert refused(forms.different_tables)
