"""Mask tensors in the CuTe kernels, on the emulator: tiles that they hide are left out, and the
rest obeys the error rule."""

import dataclasses
import functools
from collections.abc import Callable

import pytest
import torch

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute.config import classes
from gdpa_inductor.kernels.cute.plan import plan_of
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config
from gdpa_inductor.kernels.cute.sm100.config import BOTH, Sm100Config

from . import test_cute_backward, test_cute_forward
from .cute_backward_cases import Case, Problem, check_errors
from .cute_cases import check_output
from .cute_mask_cases import CASES, masked, short
from .marks import slow_but
from .test_cute_hopper_backward import emulated

KINDS = {"Hopper": Sm90Config, "Blackwell": Sm100Config}
# Truth values, integers and factors; of heads, of jagged sides, and beside a bias. The other cases
# take minutes. They are run at length, and on GPUs.
QUICK = {
    "holes", "a mask for each head, grouped", "causal, with a bias", "causal, fewer rows",
    "segments", "factors", "jagged keys",
}  # fmt: skip
NAMES = slow_but(QUICK, CASES)


def problem(name: str) -> tuple[Case, Problem]:
    case, masks = CASES[name]
    return case, masked(case, masks)


def test_every_case_has_a_table() -> None:
    for name in CASES:
        _, call = problem(name)
        for kind in KINDS.values():
            result = classes(plan_of(call.operands, True, True, kind).config)
            assert result.skips and result.bounds, name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_the_output_obeys_the_error_rule(name: str, kind: str) -> None:
    case, call = problem(name)
    out = test_cute_forward.forward(case, call.operands, kind=KINDS[kind])
    check_output(out, call.operands)


@pytest.mark.parametrize("name", slow_but(["causal, fewer rows"], CASES))
def test_wide_heads_on_blackwell(name: str) -> None:
    """Tiles of the table have 128 queries and keys there too."""
    case, masks = CASES[name]
    case = dataclasses.replace(case, dims=(200, 256))
    o = masked(case, masks).operands
    check_output(test_cute_forward.forward(case, o, kind=Sm100Config), o)


BACKWARDS = {
    "Hopper": emulated,
    "Blackwell": test_cute_backward.emulated,
}
ROOMY = [name for name, (case, _) in CASES.items() if max(case.dims) <= 64]


@pytest.mark.parametrize("name", slow_but(QUICK, ROOMY))
def test_the_gradients_of_one_kernel_on_blackwell_obey_the_error_rule(name: str) -> None:
    correct(*problem(name), functools.partial(test_cute_backward.emulated, sides=(BOTH,)))


@pytest.mark.parametrize("kind", BACKWARDS)
@pytest.mark.parametrize("name", NAMES)
def test_the_gradients_obey_the_error_rule(name: str, kind: str) -> None:
    correct(*problem(name), BACKWARDS[kind])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_order_of_warps_gives_the_same_bits(name: str) -> None:
    emulated(*problem(name), seeds=range(6))


def test_sums_in_any_order() -> None:
    correct(*problem("holes"), functools.partial(emulated, ordered=False))


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_keys_at_an_end_are_not_read(kind: str) -> None:
    """They are NaN. Between others they would be computed: a query tile meets a range of keys."""
    case, _ = CASES["holes"]
    o = masked(case, (short,)).operands
    clean = test_cute_forward.forward(case, o, kind=KINDS[kind])
    for matrix in (o.key, o.value):
        matrix[:, :, 128:] = torch.nan
    assert clean.isfinite().all() and clean.any()
    assert torch.equal(test_cute_forward.forward(case, o, kind=KINDS[kind]), clean)


def test_keys_that_no_query_sees_have_no_gradient() -> None:
    """They are NaN."""
    case, call = problem("holes")
    clean, o = emulated(case, call), call.operands
    seen = call.operands.aux[0].any(0)
    hidden = slice(128, 256)
    assert not seen[hidden].any()
    for matrix in (o.key, o.value):
        matrix[:, :, hidden] = torch.nan
    for before, after in zip(clean, emulated(case, call), strict=True):
        assert torch.equal(before, after)


def correct(case: Case, call: Problem, backward: Callable) -> None:
    check_errors(backward(case, call), case, call)
