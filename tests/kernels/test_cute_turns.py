"""In which order tiles are taken.

Of the backward: key tiles of a head that go around its query tiles, who adds when, reads last and
converts. Of the forward: dense tiles under a mask, in groups of units, the last rows of each first.
"""

import itertools
import operator
from types import SimpleNamespace

import pytest

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute.backward import turns
from gdpa_inductor.kernels.cute.backward.turns import APART, Turns
from gdpa_inductor.kernels.cute.forward import work
from gdpa_inductor.kernels.cute.forward.work import Work, few_units
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config

FEW = 64
SHAPES = list(itertools.product((1, 2, 3, 4, 16), (1, 8, 16, 21, 50)))
with_shapes = pytest.mark.parametrize("keys, count", SHAPES)


class Head:
    """Its key tiles, one step after the other. step[tile][block]: when a tile meets a query
    tile."""

    def __init__(self, keys: int, count: int, together: bool = True, skips: bool = False) -> None:
        self.walk = walk = object.__new__(Turns)
        walk.ranges, walk.together = SimpleNamespace(skips=skips), together
        walk.heights = SimpleNamespace(resident=128, streamed=64)
        rows = {"rows": 128 * keys, "length": 64 * count, "begin": 0, "end": count}
        self.tiles = [SimpleNamespace(first=128 * i, descends=False, **rows) for i in range(keys)]
        self.step = [{walk.block(x, walk.entry(x), i): i for i in range(count)} for x in self.tiles]

    def converted(self, tile: SimpleNamespace) -> list[int]:
        return [self.walk.converted(tile, i) for i in range(self.walk.share(tile))]


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arithmetic of Python."""
    monkeypatch.setattr(turns, "Int32", int)
    for module in (turns, work):
        monkeypatch.setattr(module, "select", lambda condition, x, y: x if condition else y)
        for name, function in (("larger", max), ("smaller", min)):
            monkeypatch.setattr(module, name, function)


@with_shapes
@pytest.mark.parametrize("together", [True, False])
def test_each_tile_adds_after_those_that_are_farther(keys: int, count: int, together: bool) -> None:
    """So no circle of tiles waits: a tile waits for earlier steps, or for higher keys at the same
    step."""
    head = Head(keys, count, together)
    for block in range(count):
        order = sorted(range(keys), key=lambda i: head.walk.earlier(head.tiles[i], block))
        places = [head.walk.earlier(head.tiles[i], block) for i in order]
        assert places == list(range(keys))
        reached = [(head.step[i][block], -i) for i in order]
        assert reached == sorted(reached)


@with_shapes
def test_tiles_begin_near_one_another(keys: int, count: int) -> None:
    """What one has read and added is in the cache when the next one comes."""
    head = Head(keys, count)
    begins = [head.walk.entry(x) for x in head.tiles]
    assert all(0 <= y - x <= APART for x, y in itertools.pairwise(begins))
    if count >= 2 * keys:
        assert all(map(operator.lt, begins, begins[1:]))


@with_shapes
def test_a_query_tile_leaves_the_cache_when_all_have_met_it(keys: int, count: int) -> None:
    head = Head(keys, count)
    for block in range(count):
        steps = [step[block] for step in head.step]
        claims = [i for i, x in enumerate(head.tiles) if head.walk.meets_last(x, block)]
        assert len(claims) == 1
        assert steps[claims[0]] == max(steps)


@with_shapes
@pytest.mark.parametrize(
    "together, skips, descends", [(True, False, False), (True, True, True), (False, True, False)]
)
def test_each_query_tile_is_converted_once(keys, count, together, skips, descends) -> None:
    head = Head(keys, count, together, skips)
    for x in head.tiles:
        x.descends = descends
    shares = [head.converted(x) for x in head.tiles]
    assert sorted(x for share in shares for x in share) == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@with_shapes
def test_complete_query_tiles_do_not_wait_for_others(keys: int, count: int) -> None:
    """A tile converts what it has to in the order in which all have added to it, nearly."""
    head = Head(keys, count)
    complete = [max(step[block] for step in head.step) for block in range(count)]
    for x in head.tiles:
        steps = [complete[block] for block in head.converted(x)]
        assert all(y >= max(steps[:i]) - APART for i, y in enumerate(steps) if i)


def dealt(
    row_tiles: int, units: int, ctas: int, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[int, int]]:
    """(row tile, unit) of each number."""
    monkeypatch.setattr(work.cute.arch, "grid_dim", lambda: (ctas, 1, 1))
    result = object.__new__(Work)
    result.row_tiles, result.units, result.few = row_tiles, units, FEW
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


@pytest.mark.parametrize(
    "dims, expected",
    [((128, 128), 64), ((256, 64), 64), ((64, 64), 128), ((64, 128), 64), ((32, 32), 256)],
)
def test_more_units_of_narrow_heads_are_few(dims: tuple[int, int], expected: int) -> None:
    """Causal forwards of 128 units of 1024 rows at head dim 64 took 6 % less so."""
    assert few_units(Sm90Config("bfloat16", *dims, "silu(s)")) == expected


def test_few_units_read_their_keys_at_once(monkeypatch) -> None:
    """At 64 units of 2048 rows, four CTAs of 132 read the keys of a unit instead of two."""
    result = dealt(16, 64, 132, monkeypatch)
    for begin in range(0, 33 * 16, 132):
        assert len({unit for _, unit in result[begin : begin + 132]}) == 33
