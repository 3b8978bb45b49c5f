"""Dense tiles under a mask in the forward: groups of units, the last rows of each first."""

import pytest

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute.forward import work
from gdpa_inductor.kernels.cute.forward.work import FEW, Work


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arithmetic of Python."""
    monkeypatch.setattr(work, "select", lambda condition, x, y: x if condition else y)
    for name, function in (("larger", max), ("smaller", min)):
        monkeypatch.setattr(work, name, function)


def dealt(
    row_tiles: int, units: int, ctas: int, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[int, int]]:
    """(row tile, unit) of each number."""
    monkeypatch.setattr(work.cute.arch, "grid_dim", lambda: (ctas, 1, 1))
    result = object.__new__(Work)
    result.row_tiles, result.units = row_tiles, units
    return [result._last_rows_first(number) for number in range(row_tiles * units)]


@pytest.mark.parametrize("ctas", [1, 7, 114, 132])
@pytest.mark.parametrize("row_tiles", [1, 3, 12, 16])
@pytest.mark.parametrize("units", [1, 33, 48, 49, FEW, FEW + 1, 100])
def test_every_tile_once(units: int, row_tiles: int, ctas: int, monkeypatch) -> None:
    result = dealt(row_tiles, units, ctas, monkeypatch)
    assert sorted(result) == [(row, unit) for row in range(row_tiles) for unit in range(units)]


@pytest.mark.parametrize("row_tiles, units", [(8, 64), (16, 64), (16, 48), (32, 32), (64, 16)])
def test_each_cta_gets_as_much(row_tiles: int, units: int, monkeypatch) -> None:
    """Under a causal mask, dealt back and forth."""
    ctas, loads = 132, [0] * 132
    for number, (row, _) in enumerate(dealt(row_tiles, units, ctas, monkeypatch)):
        turn, place = divmod(number, ctas)
        loads[ctas - 1 - place if turn % 2 else place] += row + 1
    assert max(loads) <= 1.04 * sum(loads) / ctas


def test_few_units_read_their_keys_at_once(monkeypatch) -> None:
    """At 64 units of 2048 rows, four CTAs of 132 read the keys of a unit instead of two."""
    result = dealt(16, 64, 132, monkeypatch)
    for begin in range(0, 33 * 16, 132):
        assert len({unit for _, unit in result[begin : begin + 132]}) == 33
