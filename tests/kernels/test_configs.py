"""The table of configurations: complete, pruned, never empty."""

import itertools

import pytest

from gdpa_inductor.kernels.configs import Shape, configs, shared_memory

KERNELS = ("forward", "rows", "keys", "tiles")
DEVICES = (99 << 10, 163 << 10, 227 << 10)


@pytest.mark.parametrize(
    "kernel, itemsize, shared", list(itertools.product(KERNELS, (2, 4), DEVICES))
)
def test_every_shape_has_configurations_that_fit(kernel: str, itemsize: int, shared: int):
    widths = (16, 32, 64, 128, 256)
    for head_dim, value_dim, loop in itertools.product(widths, widths, ("", "short", "skips")):
        shape = Shape(head_dim, value_dim, itemsize, loop=loop)
        found = configs(kernel, shape, shared, thorough=False)
        assert 1 <= len(found) <= 4
        assert all(shared_memory(kernel, config, shape) <= shared for config in found)
        assert all(
            n & (n - 1) == 0 and n >= 16 for config in found for n in (config.rows, config.keys)
        )


def test_pairs_have_configurations_for_what_they_are_taken_for():
    shape = Shape(128, 128, 2)
    found = configs("pairs", shape, 227 << 10, thorough=False)
    assert len(found) == 2
    assert all(shared_memory("pairs", config, shape) <= 227 << 10 for config in found)


def test_the_wide_search_begins_with_the_best_known():
    shape = Shape(128, 128, 2)
    for kernel in KERNELS:
        known, wide = (configs(kernel, shape, 227 << 10, thorough) for thorough in (False, True))
        assert wide[: len(known)] == known
        assert len(wide) > 10


def test_short_and_skipping_loops_have_configurations_of_their_own():
    found = [
        configs("forward", Shape(128, 128, 2, loop=loop), 227 << 10, thorough=False)
        for loop in ("", "short", "skips")
    ]
    assert len({config for row in found for config in row}) == 4
    assert {row[0] for row in found} == {found[0][0]}  # the best known of all
    ampere = [
        configs("forward", Shape(128, 128, 2, loop=loop), 163 << 10, False, 80)
        for loop in ("", "short", "skips")
    ]
    assert ampere[0] == ampere[1] == ampere[2]
