"""The contract with torch: every row of the vocabulary against ATen, and gradients by autograd.

The places are bounds, kinks and ties with their neighbours by one ulp, ±0, ±inf, NaN, subnormal and
huge numbers, in fp64, fp32, bf16 and fp16. NaN and infinities must be where ATen has them. Where
torch computes an intermediate product in one multiply-add, an operand so large that the product
alone overflows is left out.

`python -m tests.patterns.test_vocabulary` counts what is compared.
"""

import itertools
import math
from collections.abc import Sequence

import pytest
import torch

from gdpa_inductor.patterns.reading import contract
from gdpa_inductor.patterns.reading.contract import evaluate
from gdpa_inductor.patterns.reading.contract_cases import CASES, TorchCall
from gdpa_inductor.patterns.reading.reading import kind_of
from gdpa_inductor.patterns.reading.vocabulary import POINTWISE, REWORDED, Unknown
from gdpa_inductor.program.expr import Expr, aux

pytestmark = pytest.mark.usefixtures("torchs_own_loops")

BENDS = [0.0, -0.0, 0.3, -0.3, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, -2.5, 3.0, -3.0, 6.0, 19.9, 20.0]
FAR = [20.1, -20.0, 88.0, -88.0, 90.0, -90.0, 104.0, -104.0, 800.0, -800.0]
SMALL = [1e-8, -1e-8, 1e-30, -1e-30, 1e-42, -1e-42]
LARGE = [1e10, -1e10, 2e19, -2e19, 1e20]
HUGE = [3e38, -3e38]
OPEN = [math.inf, -math.inf, math.nan]
INTEGERS = [0, 1, -1, 2, -2, 3, -3, 5, -7, 8, 255, -256, (1 << 31) - 1, -(1 << 31), 1 << 31,
            (1 << 53) + 1, 1 << 62, -(1 << 62), (1 << 63) - 1]  # fmt: skip
FUSED = {"lerp", "addcmul"}  # multiply and add at once
NARROW = (torch.bfloat16, torch.float16)
TOLERANCE = {
    torch.float32: 2e-5, torch.float64: 1e-11, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-9
}  # fmt: skip
COARSE = {
    torch.float32: 1e-4,
    torch.float64: 1e-11,
    torch.bfloat16: 2.0**-5,
    torch.float16: 2.0**-7,
}  # fmt: skip (of gradients)


def beside(numbers: list[float], dtype: torch.dtype) -> list[float]:
    """Numbers as a dtype has them, and the next ones below and above."""
    actual = torch.tensor(numbers, dtype=torch.float64).to(dtype)
    ends = [torch.full_like(actual, end) for end in (-math.inf, math.inf)]
    return torch.cat([actual, *(torch.nextafter(actual, end) for end in ends)]).tolist()


def samples(case: TorchCall, dtype: torch.dtype) -> list[torch.Tensor]:
    """One tensor per operand; together they run over the product of the grids."""
    literals = [float(x) for x in case.args if type(x) in (int, float) and abs(x) < 1e3]
    reals = BENDS + FAR + SMALL + LARGE + OPEN + ([] if case.name in FUSED else HUGE)
    reals += beside([0.0, 1.0, 3.0, -3.0, *literals], dtype)
    if dtype in NARROW:  # kernels compute in fp32, where these have finite squares
        reals = [x for x in reals if not 200.0 < abs(x) < math.inf]
    if len(case.kinds) > 2:
        large = LARGE[:2] if case.name in FUSED else LARGE[::2]
        reals = [*BENDS[:12], 20.0, *SMALL[::3], *large, *OPEN]
    elif len(case.kinds) == 2:
        reals = [*reals, *beside([0.5, 1.0], dtype)]
    grids = {"f": list(dict.fromkeys(reals)), "i": INTEGERS, "b": [False, True]}
    return contract.places(case, grids, dtype)


def rule(case: TorchCall):
    """The rule that the package uses on the installed torch."""
    actual = contract.holding(case.key)
    assert actual is not None, "torch does what no rule says"
    return actual


def program(case: TorchCall, kind: str, dtype: torch.dtype) -> Expr:
    return contract.expression(case, rule(case), kind, dtype)


eager = contract.eager


def assert_same(got: torch.Tensor, wants: list[torch.Tensor], operands, relative: float) -> None:
    """Equal to one of several results but for rounding; the first few differences are named."""
    same = torch.zeros(wants[0].shape, dtype=torch.bool)
    got = got.expand_as(wants[0]).double()
    for want in (x.double() for x in wants):
        size = want.abs()
        for operand in operands:  # what cancels rounds by the size of what it is made from
            finite = torch.where(operand.double().isfinite(), operand.double().abs(), 0.0)
            size = torch.maximum(size, torch.where(finite < 1e3, finite, 0.0))
        close = (got - want).abs() <= relative * size + 1e-30
        same |= (got == want) | (got.isnan() & want.isnan()) | (close & want.isfinite())
    wrong = (~same).nonzero().flatten().tolist()
    first = [
        (*(g[i].item() for g in operands), "->", got[i].item(), wants[0][i].item())
        for i in wrong[:4]
    ]
    assert not wrong, f"{wants[0].dtype}, {len(wrong)} of {len(same)}: {first}"


WIDE = (torch.float32, torch.float64)


def dtypes(case: TorchCall, tried: tuple[torch.dtype, ...] = WIDE) -> list[torch.dtype]:
    """Those that a case is compared in. Integers in 16 bits: test_precision."""
    return [
        dtype
        for dtype in tried
        if ("f" in case.kinds or dtype == torch.float32)
        and (dtype not in NARROW or "i" not in case.kinds)
    ]


def each(cases: Sequence[TorchCall] = CASES) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=str)


OF_ONE = [case for case in CASES if case.kinds == "f"]
# Rows that have no case: what functionalisation makes of `fill_` and `zero_`.
WRITTEN = {"fill", "zero"}
# Refused for every call, so that the refusal has the function's name.
REFUSED = {"addcdiv"}
# Under gradients that are not finite, torch's slope is no product as the row's is, or torch's
# vectors and single elements differ.
ONLY_FINITE = {
    "nan_to_num-f-x,0.0,3e+38,-3e+38",
    "nan_to_num-f-x,2.0,1.0,-1.0",
    "tan-f-x",
    "pow-f-1.0,x",
}


def computed(
    root: Expr, operands: list[torch.Tensor], dtype: torch.dtype, grad=None
) -> torch.Tensor:
    """As kernels compute: 16 bits in fp32, rounded at the end."""
    if dtype not in NARROW:
        return evaluate(root, operands, dtype, grad)
    wide = [x.float() if x.is_floating_point() else x for x in operands]
    actual = evaluate(root, wide, torch.float32, None if grad is None else grad.float())
    return actual.to(dtype) if actual.is_floating_point() else actual


def test_every_row_has_a_case() -> None:
    assert ONLY_FINITE <= {str(case) for case in OF_ONE}
    assert {case.key for case in CASES} | WRITTEN | REFUSED == set(POINTWISE)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_refused_says_why(name: str) -> None:
    with pytest.raises(Unknown):
        POINTWISE[name][0]("f", aux(0), aux(1), aux(2))


@each()
def test_value(case: TorchCall) -> None:
    for dtype in dtypes(case, WIDE + NARROW):
        operands = samples(case, dtype)
        want = eager(case, operands)
        root = program(case, kind_of(want.dtype), dtype)
        assert root.kind == kind_of(want.dtype), dtype
        got = computed(root, operands, dtype)
        if want.is_floating_point():
            assert_same(got, by_torch(case, operands), operands, TOLERANCE[dtype])
        else:
            assert torch.equal(got.expand_as(want), want), dtype


@each()
def test_what_may_differ_in_the_last_bit_is_named(case: TorchCall) -> None:
    """Else a rule that computes in other words than ATen is to be added to REWORDED."""
    for dtype in dtypes(case):
        operands = samples(case, dtype)
        want = eager(case, operands)
        got = evaluate(program(case, kind_of(want.dtype), dtype), operands, dtype).expand_as(want)
        same = (got == want) | (got.isnan() & want.isnan())
        assert same.all() or case.name in REWORDED, dtype


@each()
def test_gradient(case: TorchCall) -> None:
    """Where nothing comes in, infinite slopes make NaN as they do in autograd."""
    for dtype, coming in itertools.product(dtypes(case, WIDE + NARROW), (1.5, 0.0)):
        assert_gradients(case, dtype, coming)


@each([case for case in OF_ONE if str(case) not in ONLY_FINITE])
def test_gradient_of_what_is_not_finite(case: TorchCall) -> None:
    """Near 0 and at the ends: in between a slope may vanish in one formula before another."""
    for dtype, coming in itertools.product(dtypes(case), (math.nan, math.inf)):
        assert_gradients(case, dtype, coming, lambda x: (x.abs() <= 3.0) | ~x.isfinite())


@pytest.mark.parametrize("coming", [1.5, 0.0, math.nan, math.inf])
@pytest.mark.parametrize("dtype", WIDE)
@each([case for case in OF_ONE if case.at_nan is not None])
def test_gradient_at_nan(case: TorchCall, dtype: torch.dtype, coming: float) -> None:
    """One of the two that torch has, whichever its loop is made of."""
    (term,) = contract.slopes(case, rule(case), dtype)
    slopes = set()
    for count in (1, 64):
        operands = torch.full((count,), math.nan, dtype=dtype).requires_grad_()
        grad = torch.full((count,), coming, dtype=dtype)
        slopes |= {
            *map(str, torch.autograd.grad(eager(case, [operands]), operands, grad)[0].tolist())
        }
        got = {*map(str, evaluate(term, [operands.detach()], dtype, grad).tolist())}
        assert got == {str(case.at_nan)}
    assert got <= slopes


@pytest.mark.parametrize("dtype", WIDE)
@each([case for case in OF_ONE if case.at_nan is None])
def test_torch_has_one_gradient_at_nan(case: TorchCall, dtype: torch.dtype) -> None:
    """Where it has two, the case says in `at_nan` which is the row's: that of vectors."""
    slopes = set()
    for count in (1, 64):
        operands = torch.full((count,), math.nan, dtype=dtype).requires_grad_()
        actual = eager(case, [operands])
        if actual.requires_grad:
            (grad,) = torch.autograd.grad(actual.sum(), operands)
            slopes |= {*map(str, (grad + 0.0).tolist())}
    assert len(slopes) <= 1


def by_torch(case: TorchCall, operands: list[torch.Tensor]) -> list[torch.Tensor]:
    """The values by eager torch: of 16-bit operands, in fp32 and rounded too, as kernels have it.

    There the two differ at a few places, where fp16 overflows or a power is computed otherwise.
    """
    want = eager(case, operands)
    if want.dtype not in NARROW:
        return [want]
    return [want, eager(case, widened(operands)).to(want.dtype)]


def widened(operands: list[torch.Tensor]) -> list[torch.Tensor]:
    return [x.float() if x.is_floating_point() else x for x in operands]


def gradients_by_torch(case: TorchCall, operands: list[torch.Tensor], coming: float):
    """The same for gradients, of the floating operands; None where there is none at all."""
    leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in operands]
    want = eager(case, leaves)
    if not want.requires_grad:
        return None
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    grad = torch.full_like(want, coming)
    actual = torch.autograd.grad(want, wanted, grad, allow_unused=True)
    return [torch.zeros_like(want) if x is None else x for x in actual]


def assert_gradients(case: TorchCall, dtype: torch.dtype, coming: float, at=None) -> None:
    operands = samples(case, dtype)
    if at is not None:
        operands = [x[at(x)] for x in operands]
    if case.at_nan is not None:
        operands = [x[~x.isnan()] for x in operands]
    if case.name == "addcmul" and case.options:  # its factors meet in another order
        operands = [torch.where(x.abs() > 1e3, 1.0, x) for x in operands]
    expected = [gradients_by_torch(case, operands, coming)]
    if expected[0] is None:
        return
    if dtype in NARROW:
        wide = gradients_by_torch(case, widened(operands), coming)
        expected.append([x.to(dtype) for x in wide])
    grad = torch.full_like(expected[0][0], coming)
    for term, *wants in zip(contract.slopes(case, rule(case), dtype), *expected, strict=True):
        none = torch.zeros_like(grad)
        got = none if term is None else computed(term, operands, dtype, grad)
        assert_same(got, wants, operands, COARSE[dtype])


def count() -> str:
    """A line on the contract with the installed torch: what `test_value` and others compare."""
    tried = [(case, dtype) for case in CASES for dtype in dtypes(case, WIDE + NARROW)]
    places = sum(len(samples(*operands)[0]) for operands in tried)
    rows = {case.key for case in CASES}
    return f"torch {torch.__version__}: {len(rows)} rows, {len(tried)} cases, {places} places"


if __name__ == "__main__":
    print(count())
