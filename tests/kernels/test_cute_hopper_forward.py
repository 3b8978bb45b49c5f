"""The Hopper forward kernel, as PTX for sm_90a on the emulator, against the formula in fp64."""

import dataclasses

import pytest
import torch

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute.config import slice_of
from gdpa_inductor.kernels.cute.plan import plan_of
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config

from . import test_cute_forward
from .cute_cases import (
    BF16,
    BY_HEADS,
    CASES,
    CAUSAL,
    MORE,
    NO_KEYS,
    SELF,
    SILU,
    WIDE,
    WINDOW,
    Case,
    check_gaps,
    check_integers,
    check_neighbours,
    check_output,
    with_gaps,
)
from .marks import slow_but

ENDS = (1, 63, 64, 65, 0, 128, 129, 192, 193, 320)  # of query tiles

# Of 132 and more CTAs all but some tiles are cut (`Rounds`), of a few the last ones.
PIECES = (
    Case("three of three", d=64, m=400, n=140, h=3, ctas=4),
    Case("two of three", d=64, m=400, n=140, h=2, hk=1, ctas=13),
    Case("two of two", d=128, m=400, n=140, h=2, ctas=5),
    Case("with a bias", BY_HEADS, d=64, m=328, n=136, h=2, ctas=5),
    Case("wide heads", d=256, m=200, n=136, h=3, ctas=4),
    Case("ends of tiles", CAUSAL.format(SILU), d=64, q_lengths=ENDS, k_lengths=ENDS, ctas=4),
    Case("a window", WINDOW, d=64, m=400, n=400, ctas=2),
)  # fmt: skip
# Above 256 the channels of V go in slices, a launch each.
SLICED = (
    Case("two of 160", d=64, dv=320, m=140, n=200, h=2, hk=1),
    Case("two of 256, causal", CAUSAL.format(SILU), d=128, dv=512, m=200, n=200),
    Case("three of 200, jagged", d=64, dv=600, q_lengths=SELF, k_lengths=SELF),
    Case("two of 192, bias", BY_HEADS, d=72, dv=384, m=130, n=136, h=2),
)  # fmt: skip
UNSCALED = ({"dtype": "float16"}, {"fast": False}, {"value_dim": 96})
EIGHTH = "silu(mul(s,0.125))"
SCALED = (  # queries are multiplied by 1/16
    Case("D 64", EIGHTH, d=64, m=400, n=140, h=3, hk=1, ctas=2),
    Case("D 64, causal", CAUSAL.format(EIGHTH), d=64, m=260, n=260, ctas=2),
    Case("D 64, jagged", EIGHTH, d=64, q_lengths=SELF, k_lengths=SELF, ctas=2),
    Case("D 40, Dv 64", EIGHTH, d=40, dv=64, m=200, n=300, ctas=1),
    Case("D 64, seeds", EIGHTH, d=64, b=4, m=72, shared="q", k_lengths=SELF, ctas=1),
)  # fmt: skip
OFTEN = ("D 256", "D 192, Dv 128", "D 256, tiled bias", "D 256, no keys", "D 256, jagged, causal")


def forward(case: Case, o, schedules=("lazy",)) -> torch.Tensor:
    return test_cute_forward.forward(case, o, schedules, Sm90Config)


def correct(case: Case, schedules=("lazy",)) -> None:
    o = case.operands()
    check_output(forward(case, o, schedules), o)


@pytest.mark.parametrize("case", [*CASES, *MORE], ids=lambda case: case.name)
@pytest.mark.slow
def test_forward(case: Case):
    correct(case)


@pytest.mark.parametrize("case", slow_but(OFTEN, WIDE))
def test_wide_heads(case: Case):
    assert plan_of(case.operands(), True, True, Sm90Config).config.overlaid
    correct(case)


@pytest.mark.parametrize("case", slow_but(["two of 160"], SLICED))
def test_values_in_slices(case: Case):
    correct(case)


@pytest.mark.parametrize(
    ("channels", "width"),
    [(256, 256), (264, 264), (320, 160), (512, 256), (600, 200), (1000, 200), (1536, 256)],
)
def test_slices_are_equal_and_as_wide_as_can_be(channels: int, width: int):
    """264 has no equal parts of 128 to 256 channels."""
    assert slice_of(Sm90Config, channels) == width


SCHEDULED = (
    Case("schedules", d=64, m=400, n=270),
    Case("wide schedules", d=192, dv=128, m=200, n=460),
    Case("no keys", d=136, **NO_KEYS),
)


@pytest.mark.parametrize("case", slow_but(["schedules", "wide schedules"], SCHEDULED))
def test_the_schedule_does_not_matter(case: Case):
    """Copies complete late, early or in any order: the same bits (`run` compares)."""
    correct(case, ("lazy", "random", "eager"))


@pytest.mark.parametrize("case", PIECES, ids=lambda case: case.name)
def test_a_round_in_pieces(case: Case):
    """Warpgroups without rows pass turns and buffers on, before and after tiles that have all."""
    correct(case, ("lazy", "random"))


@pytest.mark.parametrize("case", SCALED, ids=lambda case: case.name)
def test_queries_that_are_scaled(case: Case):
    config = plan_of(case.operands(), True, True, Sm90Config).config
    factors = [dataclasses.replace(config, **x).query_factor for x in ({}, *UNSCALED)]
    assert factors == [0.0625, *[1.0] * len(UNSCALED)]
    correct(case, ("lazy", "random"))


@pytest.mark.parametrize("dim", [64, pytest.param(200, marks=pytest.mark.slow), 256])
def test_exact_on_integers(dim: int):
    check_integers(forward, d=dim, m=200, n=300)


@pytest.mark.parametrize("dim", [64, 256])
def test_neighbours_do_not_leak(dim: int):
    check_neighbours(forward, dim)


@pytest.mark.parametrize("dims", [(256, 256), (64, 320)], ids=["whole", "in slices"])
def test_rows_of_no_sequence_are_zero(dims: tuple[int, int]):
    case = Case("gaps", d=dims[0], dv=dims[1], q_lengths=SELF, k_lengths=SELF)
    o, owned = with_gaps(case)
    out = torch.full((*o.query.shape[:2], dims[1]), torch.nan, dtype=BF16)
    test_cute_forward.forward(case, o, kind=Sm90Config, out=out)
    check_gaps(out, owned)
