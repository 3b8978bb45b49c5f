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
    CASES,
    CAUSAL,
    F16,
    MORE,
    SELF,
    SILU,
    Case,
    check_integers,
    check_neighbours,
    check_output,
)
from .marks import slow_but

BIAS, CAUSAL_BIAS = "a0:f[h,q_idx,kv_idx]; silu(add(mul(s,0.1),a0))", "a0:f[h,q_idx,kv_idx]; {}"
CAUSAL_BIAS = CAUSAL_BIAS.format(CAUSAL.format("sigmoid(add(s,a0))"))
TWO = "a0:f[h,q_idx,kv_idx]; a1:f[b,h,q_idx,kv_idx]; silu(add(add(mul(s,0.1),a0),a1))"
WINDOW = "where(and(ge(q_idx,kv_idx),lt(sub(q_idx,kv_idx),100)),silu(s),0.0)"
ENDS = (1, 63, 64, 65, 0, 128, 129, 192, 193, 320)  # of query tiles
NO_KEYS = {"q_lengths": (100, 300, 140, 130, 1, 2), "k_lengths": (0, 200, 0, 100, 0, 0)}

# At head dims above 128 O has the room of the query tiles. So tiles without keys follow such that
# have some, on one CTA, and query tiles that meet no key stand beside such that do.
WIDE = (
    Case("D 256", d=256, m=200, n=330, h=2),
    Case("D 192, Dv 128", d=192, dv=128, m=140, n=400, h=2, hk=1),
    Case("D 192", d=192, m=200, n=300, h=2, view="bnhd"),
    Case("D 160, fp16", d=160, m=140, n=300, h=2, dtype=F16),
    Case("D 136", d=136, m=140, n=270, h=2),
    Case("D 64, Dv 256", d=64, dv=256, m=200, n=300, h=2),
    Case("D 256, Dv 64", d=256, dv=64, m=200, n=300, h=2),
    Case("D 8, Dv 200", d=8, dv=200, m=200, n=300, h=2),
    Case("D 256, causal", CAUSAL.format("sigmoid(s)"), d=256, m=400, n=400),
    Case("D 192, causal, fewer rows", CAUSAL.format(SILU), d=192, m=72, n=500, h=3),
    Case("D 256, window", WINDOW, d=256, m=500, n=500),
    Case("D 256, tiled bias", BIAS, d=256, m=200, n=328, h=2),
    Case("D 224, causal bias", CAUSAL_BIAS, d=224, m=328, n=328, h=2, dtype=F16),
    Case("D 256, two biases", TWO, d=256, m=130, n=136, h=2, aux=(BF16, torch.float32)),
    Case("D 256, bias by elements", BIAS, d=256, m=130, n=135, h=2),
    Case("D 256, jagged", d=256, h=2, q_lengths=SELF, k_lengths=SELF),
    Case("D 256, jagged, causal", CAUSAL.format(SILU), d=256, q_lengths=SELF, k_lengths=SELF),
    Case("D 256, jagged bias", BIAS, d=256, h=2, q_lengths=SELF, k_lengths=SELF, most=304),
    Case("D 256, no keys", "sigmoid(s)", d=256, **NO_KEYS),
    Case("D 256, Dv 136, seeds", d=256, dv=136, b=4, m=32, shared="q", k_lengths=SELF),
    Case("D 200, short keys", d=200, b=4, n=192, q_lengths=SELF, offsets=torch.int64),
    Case("D 256, one row", d=256, m=1, n=1, h=3),
)  # fmt: skip
# Of 132 and more CTAs all but some tiles are cut (`Rounds`), of a few the last ones.
PIECES = (
    Case("three of three", d=64, m=400, n=140, h=3, ctas=4),
    Case("two of three", d=64, m=400, n=140, h=2, hk=1, ctas=13),
    Case("two of two", d=128, m=400, n=140, h=2, ctas=5),
    Case("with a bias", BIAS, d=64, m=328, n=136, h=2, ctas=5),
    Case("wide heads", d=256, m=200, n=136, h=3, ctas=4),
    Case("ends of tiles", CAUSAL.format(SILU), d=64, q_lengths=ENDS, k_lengths=ENDS, ctas=4),
    Case("a window", WINDOW, d=64, m=400, n=400, ctas=2),
)  # fmt: skip
# Above 256 the channels of V go in slices, a launch each.
SLICED = (
    Case("two of 160", d=64, dv=320, m=140, n=200, h=2, hk=1),
    Case("two of 256, causal", CAUSAL.format(SILU), d=128, dv=512, m=200, n=200),
    Case("three of 200, jagged", d=64, dv=600, q_lengths=SELF, k_lengths=SELF),
    Case("two of 192, bias", BIAS, d=72, dv=384, m=130, n=136, h=2),
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
    o = case.operands()
    cu = torch.tensor([37, 100, 400, 450, 490, 480], dtype=torch.int32)
    o = dataclasses.replace(o, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=200, max_seqlen_k=200)
    for matrix in (o.query, o.key, o.value):
        matrix.copy_(torch.randn(matrix.shape))
    out = torch.full((*o.query.shape[:2], dims[1]), torch.nan, dtype=BF16)
    test_cute_forward.forward(case, o, kind=Sm90Config, out=out)
    owned = torch.zeros(len(out), dtype=torch.bool)
    for first, end in ((37, 100), (100, 300), (400, 450), (450, 490)):
        owned[first:end] = True
    assert not out[~owned].any()
    assert out[owned].isfinite().all() and out[owned].any(-1).all()
