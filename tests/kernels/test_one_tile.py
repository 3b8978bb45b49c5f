"""The backward of few rows in one kernel: where it is taken, its shares, what it compiles to."""

import dataclasses
import re

import pytest
import torch

from gdpa_inductor.kernels.triton.configs import Shape
from gdpa_inductor.lowerings.triton import one_tile

from . import render
from .cases import Case, in_dtype
from .jagged_cases import JaggedCase
from .one_tile_cases import CASES

PLAIN = Case("plain", "gelu(mul(s,0.1))", m=48, n=1024, b=64, h=4, d=128, dv=128)
ROW_SUMS = {"program": "a0:f[q_idx]; mul(silu(s),a0)", "needs": "qkv0"}


def own(case: Case, dtype: torch.dtype = torch.bfloat16) -> list[str]:
    """The kernels of a case that are of this kind."""
    every = case.sources(dtype).values()
    return [text for text in every if "arg_DQ" in text and "arg_SUMS" not in text]


def small(**changes) -> Case:
    return dataclasses.replace(PLAIN, **{"b": 2, "h": 2, "choice": 0, **changes})


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_problems_of_the_interpreter_are_of_this_kernel(case: Case) -> None:
    assert len(own(case, torch.float16)) == 1


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(small(m=65), id="rows"),
        pytest.param(small(m=129, d=64, dv=64), id="rows of narrow heads"),
        pytest.param(small(n=one_tile.LEAST_KEYS - 1), id="keys"),
        pytest.param(small(dv=160), id="value dim"),
        pytest.param(small(hk=1, hv=1), id="heads"),
        pytest.param(small(bk=1), id="shared"),
        pytest.param(small(needs="qv"), id="needs"),
        pytest.param(small(**ROW_SUMS), id="row sums"),
        pytest.param(small(dynamic=True, m=20, n=1100), id="symbolic rows"),
        pytest.param(
            JaggedCase("jagged", PLAIN.program, m=20, lengths_k=(300, 500), d=128, dv=128),
            id="jagged",
        ),
    ],
)
def test_others_keep_their_kernels(case: Case) -> None:
    assert own(small()) and not own(case)


@pytest.mark.parametrize(("most", "tile"), [(16, 16), (40, 64), (64, 64)])
def test_the_tile_has_the_rows_of_later_calls(most: int, tile: int) -> None:
    """With 12 rows at capture, and `most` in others."""
    case = small(dynamic=True, m=12, n=1100)

    def bounded(query, *others):
        torch._check(query.shape[2] <= most)
        return case.function()(query, *others)

    source = render.wrapper(bounded, in_dtype(case.tensors(), torch.bfloat16), dynamic=True)
    (text,) = (text for text in render.kernels(source).values() if "arg_DQ" in text)
    assert f"BLOCK_M : tl.constexpr = {tile}\n" in text


def test_fp32_keeps_its_kernels() -> None:
    assert not own(small(d=64, dv=64), torch.float32)


@pytest.mark.parametrize(("batch", "shares"), [(64, 1), (1, 4)])
def test_idle_multiprocessors_get_shares_of_the_keys(batch: int, shares: int) -> None:
    (text,) = own(small(b=batch, h=4))
    assert int(re.search(r"SPLITS : tl.constexpr = (\d+)", text)[1]) == shares


def test_keys_and_values_are_read_once_and_nothing_is_cleared() -> None:
    """No kernel beside the forward's and this one, and no sums of dQ in memory."""
    many = small(b=64, h=4)
    assert len(many.sources(torch.bfloat16)) == 2
    (text,) = own(many)
    assert len(re.findall(r"tl\.load\([kv]_ptrs", text)) == 2 and "atomic" not in text


@pytest.mark.parametrize(
    ("rows", "dim", "batch"),
    [(16, 128, 64), (48, 128, 64), (64, 128, 64), (48, 128, 1), (128, 64, 64), (128, 64, 1)],
)
def test_cubins(rows: int, dim: int, batch: int, tmp_path) -> None:
    """Whole heads, and shares of the keys, whose dQ is fp32."""
    triton = pytest.importorskip("triton")
    from .test_cubins import check_template

    # Triton 3.9 keeps fewer numbers in registers: 56, 72 and 232 bytes lie in memory at three of
    # the shapes.
    older = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 8)
    kernels = small(m=rows, b=batch, h=4, d=dim, dv=dim).sources(torch.bfloat16).items()
    ((name, text),) = ((name, text) for name, text in kernels if "arg_DQ" in text)
    shape = Shape(dim, dim, 2, loop=frozenset(["split"] if batch == 1 else []), rows=rows)
    check_template(name, text, "one_tile", shape, 32 if older else 232, tmp_path)
