"""Every row of the vocabulary against ATen at special values: results, and gradients by autograd.

NaN and infinities must be where ATen has them. Where torch computes an intermediate product in one
multiply-add, an operand so large that the product alone overflows is left out.
"""

import math

import pytest
import torch

from gdpa_inductor.patterns.reading.vocabulary import POINTWISE, REWORDED, Unknown
from gdpa_inductor.program.derivatives import differentiate
from gdpa_inductor.program.expr import GRAD, Expr, aux, const, fold, torch_apply
from tests.patterns.vocabulary_table import CASES, REFUSED, WRITTEN, Case, X

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
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-11}
COARSE = {torch.float32: 1e-4, torch.float64: 1e-11}  # of gradients


def samples(case: Case, dtype: torch.dtype) -> list[torch.Tensor]:
    """One tensor per operand; together they run over the product of the grids."""
    reals = BENDS + FAR + SMALL + LARGE + OPEN + ([] if case.name in FUSED else HUGE)
    if len(case.kinds) > 2:
        large = LARGE[:2] if case.name in FUSED else LARGE[::2]
        reals = [*BENDS[:12], 20.0, *SMALL[::3], *large, *OPEN]
    grid = {
        "f": torch.tensor(reals, dtype=dtype),
        "i": torch.tensor(INTEGERS),
        "b": torch.tensor([False, True]),
    }
    places = torch.cartesian_prod(*(torch.arange(len(grid[kind])) for kind in case.kinds))
    columns = places.reshape(-1, len(case.kinds)).unbind(1)
    found = [grid[kind][column] for kind, column in zip(case.kinds, columns, strict=True)]
    divides = case.name in ("remainder", "floor_divide") or "rounding_mode" in case.options
    if divides and len(found) == 2:
        kept = found[1] != 0
        found = [tensor[kept] for tensor in found]
    return found


def kind_of(tensor: torch.Tensor) -> str:
    return "b" if tensor.dtype == torch.bool else "f" if tensor.is_floating_point() else "i"


def program(case: Case, kind: str) -> Expr:
    leaves = iter([aux(number, kind) for number, kind in enumerate(case.kinds)])
    args = [next(leaves) if a is X else None if a is None else const(a) for a in case.args]
    options = {k: v if isinstance(v, str) else const(v) for k, v in case.options.items()}
    return POINTWISE[case.name](kind, *args, **options)


def eager(case: Case, given: list[torch.Tensor]) -> torch.Tensor:
    tensors = iter(given)
    args = [next(tensors) if a is X else a for a in case.args]
    found = getattr(torch.ops.aten, case.name)(*args, **case.options)
    return found[0] if isinstance(found, tuple) else found


def evaluate(root: Expr, given: list[torch.Tensor], dtype: torch.dtype, grad=None) -> torch.Tensor:
    def leaf(node: Expr) -> torch.Tensor:
        if node is GRAD:
            return grad
        if node.op == "aux":
            return given[node.value]
        kind = {"f": dtype, "i": torch.int64, "b": torch.bool}[node.kind]
        return torch.full((), node.value, dtype=kind)

    return fold([root], leaf, torch_apply(dtype))[0]


def assert_same(got: torch.Tensor, want: torch.Tensor, given: list[torch.Tensor], relative: float):
    """Equal but for rounding; the first few differences are named."""
    got, want = got.expand_as(want).double(), want.double()
    size = want.abs()
    for operand in given:  # what cancels rounds by the size of what it is made from
        finite = torch.where(operand.double().isfinite(), operand.double().abs(), 0.0)
        size = torch.maximum(size, torch.where(finite < 1e3, finite, 0.0))
    close = (got - want).abs() <= relative * size + 1e-30
    same = (got == want) | (got.isnan() & want.isnan()) | (close & want.isfinite())
    wrong = (~same).nonzero().flatten().tolist()
    first = [
        (*(g[i].item() for g in given), "->", got[i].item(), want[i].item()) for i in wrong[:4]
    ]
    assert not wrong, f"{len(wrong)} of {len(want)}: {first}"


def dtypes(kinds: str = "") -> list:
    return [
        pytest.param(case, dtype, id=f"{case}-{str(dtype)[-2:]}")
        for case in CASES
        for dtype in (torch.float32, torch.float64)
        if ("f" in case.kinds or dtype == torch.float32) and kinds in ("", case.kinds)
    ]


def test_every_row_has_a_case() -> None:
    assert {case.name for case in CASES} | WRITTEN | REFUSED == set(POINTWISE)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_refused_says_why(name: str) -> None:
    with pytest.raises(Unknown):
        POINTWISE[name]("f", aux(0), aux(1), aux(2))


@pytest.mark.parametrize(("case", "dtype"), dtypes())
def test_value(case: Case, dtype: torch.dtype) -> None:
    given = samples(case, dtype)
    want = eager(case, given)
    root = program(case, kind_of(want))
    assert root.kind == kind_of(want)
    got = evaluate(root, given, dtype)
    exact = not want.is_floating_point()
    if exact:
        assert torch.equal(got.expand_as(want), want)
    else:
        assert_same(got, want, given, TOLERANCE[dtype])


@pytest.mark.parametrize(("case", "dtype"), dtypes())
def test_what_may_differ_in_the_last_bit_is_named(case: Case, dtype: torch.dtype) -> None:
    """Else a rule that computes in other words than ATen is to be added to REWORDED."""
    given = samples(case, dtype)
    want = eager(case, given)
    got = evaluate(program(case, kind_of(want)), given, dtype).expand_as(want)
    same = (got == want) | (got.isnan() & want.isnan())
    assert same.all() or case.name in REWORDED


@pytest.mark.parametrize("coming", [1.5, 0.0])
@pytest.mark.parametrize(("case", "dtype"), dtypes())
def test_gradient(case: Case, dtype: torch.dtype, coming: float) -> None:
    """Where nothing comes in, infinite slopes make NaN as they do in autograd."""
    assert_gradients(case, dtype, coming)


@pytest.mark.parametrize("coming", [math.nan, math.inf])
@pytest.mark.parametrize(
    ("case", "dtype"), [given for given in dtypes("f") if not given.values[0].only_finite]
)
def test_gradient_of_what_is_not_finite(case: Case, dtype: torch.dtype, coming: float) -> None:
    """Near 0 and at the ends: in between a slope may vanish in one formula before another."""
    assert_gradients(case, dtype, coming, lambda x: (x.abs() <= 3.0) | ~x.isfinite())


@pytest.mark.parametrize("coming", [1.5, 0.0, math.nan, math.inf])
@pytest.mark.parametrize(
    ("case", "dtype"), [given for given in dtypes("f") if given.values[0].at_nan is not None]
)
def test_gradient_at_nan(case: Case, dtype: torch.dtype, coming: float) -> None:
    """One of the two that torch has, whichever its loop is made of."""
    (term,) = differentiate(program(case, "f"), [aux(0)])
    slopes = set()
    for count in (1, 64):
        given = torch.full((count,), math.nan, dtype=dtype).requires_grad_()
        grad = torch.full((count,), coming, dtype=dtype)
        slopes |= {*map(str, torch.autograd.grad(eager(case, [given]), given, grad)[0].tolist())}
        got = {*map(str, evaluate(term, [given.detach()], dtype, grad).tolist())}
        assert got == {str(case.at_nan)}
    assert got <= slopes


@pytest.mark.parametrize(
    ("case", "dtype"),
    [given for given in dtypes("f") if given.values[0].at_nan is None],
)
def test_torch_has_one_gradient_at_nan(case: Case, dtype: torch.dtype) -> None:
    """Where it has two, the case says in `at_nan` which is the row's: that of vectors."""
    slopes = set()
    for count in (1, 64):
        given = torch.full((count,), math.nan, dtype=dtype).requires_grad_()
        found = eager(case, [given])
        if found.requires_grad:
            (grad,) = torch.autograd.grad(found.sum(), given)
            slopes |= {*map(str, (grad + 0.0).tolist())}
    assert len(slopes) <= 1


def assert_gradients(case: Case, dtype: torch.dtype, coming: float, at=None) -> None:
    given = samples(case, dtype)
    if at is not None:
        given = [x[at(x)] for x in given]
    if case.at_nan is not None:
        given = [x[~x.isnan()] for x in given]
    if case.name == "addcmul" and case.options:  # its factors meet in another order
        given = [torch.where(x.abs() > 1e3, 1.0, x) for x in given]
    leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in given]
    want = eager(case, leaves)
    if not want.requires_grad:
        return
    grad = torch.full_like(want, coming)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    own = [aux(number) for number, kind in enumerate(case.kinds) if kind == "f"]
    terms = differentiate(program(case, "f"), own)
    expected = torch.autograd.grad(want, wanted, grad, allow_unused=True)
    for term, gradient in zip(terms, expected, strict=True):
        none = torch.zeros_like(want)
        got = none if term is None else evaluate(term, given, dtype, grad)
        assert_same(got, none if gradient is None else gradient, given, COARSE[dtype])
