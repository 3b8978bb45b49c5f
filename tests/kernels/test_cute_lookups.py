"""Programs that look up learned tables, on the emulator: forwards and backwards of both GPUs."""

import dataclasses

import pytest
import torch

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute.places import unchecked
from gdpa_inductor.kernels.cute.plan import plan_of
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config
from gdpa_inductor.kernels.cute.sm100.config import Sm100Config
from tests.tolerances import error_of

from .cute_cases import check_output, formula
from .cute_memory import fresh_kernels, gradients
from .marks import slow_but
from .lookup_cases import CASES, Case
from .test_cute_forward import forward

KINDS = {"sm90": Sm90Config, "sm100": Sm100Config}
QUICK = ("positions, causal", "positions and times", "jagged")
fresh = pytest.fixture(scope="module", autouse=True)(fresh_kernels)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", slow_but(QUICK, CASES))
def test_forward(name: str, kind: str) -> None:
    case = CASES[name]
    _, o = case.call()
    check_output(forward(case, o, kind=KINDS[kind]), o)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", slow_but(QUICK, CASES))
def test_gradients_of_matrices(name: str, kind: str) -> None:
    case = CASES[name]
    grad, o = case.call()
    needs = (True,) * 3 + (False,) * len(o.aux)
    check(case, grad, o, needs, emulated(case, grad, o, needs, kind))


def emulated(case: Case, grad, o, needs, kind: str, **options) -> list[torch.Tensor]:
    batch = next((len(x) - 1 for x in o.lengths[:2] if x is not None), 0)
    order = torch.arange(batch).flip(0) if o.jagged else None
    ctas, schedule = (1, "random") if kind == "sm90" else (2, "lazy")
    options = {"ctas": ctas, "schedule": schedule, "fast": case.fast, **options}
    return gradients(grad, o, needs, order, kind=KINDS[kind], **options)


def check(case: Case, grad, o, needs, results) -> None:
    """By the error rule."""
    exact, eager = (formula(o, x, grad, learned=True)[1:] for x in (torch.float64, case.dtype))
    real = [*needs[:3], *[y for x, y in zip(o.aux, needs[3:]) if x.is_floating_point()]]
    exact, eager = ([x for x, need in zip(y, real, strict=True) if need] for y in (exact, eager))
    assert len(results) == len(exact)
    for number, (mine, theirs, truth) in enumerate(zip(results, eager, exact, strict=True)):
        wrong = error_of(mine, theirs, truth, direction="backward")
        assert wrong is None, (number, wrong)


def test_look_ups_without_a_check() -> None:
    """Of bytes in a table of 256, and of positions on tiles whose places are all in the table."""
    numbers = {}
    for name, case in CASES.items():
        config = plan_of(case.call()[1], True, True, Sm90Config).config
        numbers[name] = [set(unchecked(config, always).tables) for always in (True, False)]
    assert numbers["every byte"] == [{0}, {0}]
    assert numbers["times"] == [set(), set()]
    assert numbers["positions and times"] == [set(), {0}]
    assert numbers["places of tokens"] == [set(), set()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_place_outside_of_the_table_is_nan(kind: str) -> None:
    """And is not read: the emulator sees reads of memory that is not the table's."""
    case = dataclasses.replace(CASES["times"], tables=(60,), heads=1)
    _, o = case.call()
    o.aux[1][0, 5, 3], o.aux[1][0, 69, 143] = 60, 255
    result = forward(case, o, kind=KINDS[kind])
    outside = (o.aux[1] >= 60).any(-1)[0]
    assert outside.sum() == 2
    assert result[0, 0].isnan().all(-1).equal(outside)
    assert result[0, 0].isnan().any(-1).equal(outside)
