"""The table of configurations: complete, pruned, never empty."""

import contextlib
import itertools

import pytest
import torch

from gdpa_inductor.kernels.triton.configs import Config, Shape, configs, settled, shared_memory
from gdpa_inductor.lowerings.triton import launch
from gdpa_inductor.lowerings.triton.one_tile import ROWS
from tests.kernels import render

KERNELS = ("forward", "rows", "keys", "tiles")
WORDS = ("skips", "short", "jagged")
LOOPS = [frozenset(some) for n in range(4) for some in itertools.combinations(WORDS, n)]
DEVICES = (99 << 10, 163 << 10, 227 << 10)


@pytest.mark.parametrize(
    "kernel, itemsize, shared", list(itertools.product(KERNELS, (2, 4), DEVICES))
)
def test_every_shape_has_configurations_that_fit(kernel: str, itemsize: int, shared: int):
    widths = (16, 32, 64, 128, 256)
    for head_dim, value_dim, loop in itertools.product(widths, widths, LOOPS):
        shape = Shape(head_dim, value_dim, itemsize, loop=loop)
        result = configs(kernel, shape, shared, thorough=False)
        assert 1 <= len(result) <= 4
        assert all(shared_memory(kernel, config, shape) <= shared for config in result)
        assert all(
            n & (n - 1) == 0 and n >= 16 for config in result for n in (config.rows, config.keys)
        )


def test_five_matmul_have_configurations_for_what_they_are_taken_for():
    shape = Shape(128, 128, 2)
    result = configs("five_matmul", shape, 227 << 10, thorough=False)
    assert len(result) == 2
    assert all(shared_memory("five_matmul", config, shape) <= 227 << 10 for config in result)


@pytest.mark.parametrize("thorough", [False, True])
@pytest.mark.parametrize("loop", ["", "split"])
@pytest.mark.parametrize(("dim", "most"), ROWS)
def test_one_tile_has_all_rows(dim: int, most: int, loop: str, thorough: bool):
    """Rows past the tile got no dQ, where keys were parted, and where max-autotune or a small
    device chose fewer rows."""
    for rows, shared in itertools.product((16, 32, 64, 128), DEVICES):
        shape = Shape(dim, dim, 2, loop=frozenset(loop.split()), rows=rows)
        result = configs("one_tile", shape, shared, thorough) if rows <= most else []
        assert all(config.rows >= rows for config in result)
        assert all(shared_memory("one_tile", config, shape) <= shared for config in result)
        assert len(result) == len(set(result)) and bool(result) == (rows <= most)


def test_the_wide_search_begins_with_the_best_known():
    shape = Shape(128, 128, 2)
    for kernel in KERNELS:
        known, wide = (configs(kernel, shape, 227 << 10, thorough) for thorough in (False, True))
        assert wide[: len(known)] == known
        assert len(wide) > 10


def test_special_loops_have_configurations_of_their_own():
    def chosen(*loop: str, capability: int = 90) -> list[Config]:
        shape = Shape(128, 128, 2, loop=frozenset(loop))
        return configs("forward", shape, 163 << 10, False, capability)

    kinds = [(), ("short",), ("short", "jagged"), ("skips",), ("skips", "short")]
    assert len({tuple(chosen(*kind)) for kind in kinds}) == len(kinds)
    assert chosen("jagged") == chosen()
    assert chosen("skips", "short", "jagged") == chosen("skips", "short")
    assert len({tuple(chosen(*kind, capability=80)) for kind in kinds}) == 1


LARGE, SMALL = 1 << 34, 1 << 30


@pytest.mark.parametrize(
    "kernel, shape, operations, capability, expected",
    [
        ("forward", Shape(128, 128, 2), LARGE, 90, True),
        ("keys", Shape(64, 64, 4), LARGE, 90, True),
        ("tiles", Shape(128, 128, 2), LARGE, 90, True),
        ("forward", Shape(128, 128, 2, 2), LARGE, 90, True),
        ("forward", Shape(128, 128, 2, 4), LARGE, 90, False),
        ("forward", Shape(128, 128, 2, 4), SMALL, 90, True),
        ("tiles", Shape(64, 256, 2), LARGE, 90, False),
        ("tiles", Shape(64, 64, 4), LARGE, 90, False),
        ("forward", Shape(128, 128, 2), LARGE, 80, False),
        ("forward", Shape(128, 128, 2), LARGE, 100, False),
        ("tiles", Shape(64, 64, 4), SMALL, 100, True),
    ],
)
def test_settled_is_what_was_measured_or_ends_soon(kernel, shape, operations, capability, expected):
    assert settled(kernel, shape, operations, capability) is expected


def step(query, key, value, bias):
    program = "a0:f[h,q_idx,kv_idx]; silu(add(s,a0))"
    arguments = (query, key, value, [bias], [], program)
    out = torch.ops.gdpa.attention(*arguments, "kernel=triton")
    return out, *torch.ops.gdpa.attention_backward(out, *arguments, [True] * 4, "kernel=triton")


@pytest.mark.parametrize(
    "rows, width, capability, alone",
    [
        (1024, 128, 90, {"forward", "rows", "keys", "tiles"}),
        (1024, 256, 90, {"forward", "rows", "keys"}),
        (1024, 128, 100, set()),
        (128, 128, 100, {"forward", "rows", "keys", "tiles"}),
    ],
)
def test_a_lowering_compares_what_is_not_settled(monkeypatch, rows, width, capability, alone):
    compared: dict[str, int] = {}
    best_of = launch.templates.best_of

    def first(template, name, choices, *arguments):
        compared[name.removeprefix("gdpa_")] = len(choices)
        return best_of(template, name, choices[:1], *arguments)

    monkeypatch.setattr(launch.templates, "best_of", first)
    monkeypatch.setattr(render, "_one_configuration", lambda choice: contextlib.nullcontext())
    matrices = [torch.zeros(8, 4, rows, width, dtype=torch.bfloat16) for _ in range(3)]
    bias = torch.zeros(4, rows, rows, dtype=torch.bfloat16)
    render.wrapper(step, [*matrices, bias], capability=capability)
    assert compared.keys() == set(KERNELS)
    assert {kernel for kernel, count in compared.items() if count == 1} == alone
