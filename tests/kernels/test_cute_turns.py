"""Key tiles of a head that go around its query tiles: who adds when, reads last and converts."""

import itertools
import operator
from types import SimpleNamespace

import pytest

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute.sm90.backward import turns
from gdpa_inductor.kernels.cute.sm90.backward.turns import APART, Turns

every = (
    pytest.mark.parametrize("keys", [1, 2, 3, 4, 16]),
    pytest.mark.parametrize("count", [1, 8, 16, 21, 50]),
)


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
    monkeypatch.setattr(turns, "select", lambda condition, x, y: x if condition else y)
    monkeypatch.setattr(turns, "Int32", int)
    for name, function in (("larger", max), ("smaller", min)):
        monkeypatch.setattr(turns, name, function)


def with_shapes(test):
    for mark in every:
        test = mark(test)
    return test


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
