"""expr: every operation against its formula, its derivative against autograd; folding, refusals."""

import copy
import math
import pickle
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from gdpa_inductor.program.expr import (
    GRAD,
    INDEX,
    OPS,
    SCORE,
    Expr,
    aux,
    call,
    const,
    differentiate,
    fold,
    postorder,
    scalar,
    torch_apply,
)
from tests.literals import LITERALS

# Away from kinks, at every kink of the table (0, ±1, ±3, the softplus threshold), and far out.
REALS = [-40.0, -3.5, -3.0, -1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 3.5, 20.0, 40.0]
POSITIVE = [0.25, 0.5, 1.0, 2.0, 3.5, 40.0]
INTEGERS = [-7, -3, -1, 0, 1, 2, 5]
DOMAIN = {"log": POSITIVE, "sqrt": POSITIVE, "rsqrt": POSITIVE, "log1p": POSITIVE}


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def to_half_even(x: float) -> float:
    return float(round(x))


# The meaning of each operation in ordinary mathematics, written without torch.
MEANING: dict[str, Callable[..., float]] = {
    "add": lambda x, z: x + z,
    "sub": lambda x, z: x - z,
    "mul": lambda x, z: x * z,
    "div": lambda x, z: x / z if z else math.copysign(math.inf, x) if x else math.nan,
    "neg": lambda x: -x,
    "abs": abs,
    "pow": lambda x, e: x**e if x or e >= 0 else math.inf,
    "maximum": max,
    "minimum": min,
    "clamp_min": max,
    "clamp_max": min,
    "clamp_min_open": max,
    "clamp_max_open": min,
    "floordiv": lambda x, z: x // z,
    "mod": lambda x, z: x % z,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "exp": math.exp,
    "exp2": lambda x: 2.0**x,
    "expm1": math.expm1,
    "log": math.log,
    "log1p": math.log1p,
    "sin": math.sin,
    "cos": math.cos,
    "tanh": math.tanh,
    "erf": math.erf,
    "sigmoid": sigmoid,
    "relu": lambda x: max(x, 0.0),
    "silu": lambda x: x * sigmoid(x),
    "gelu": lambda x: x / 2 * math.erfc(-x / math.sqrt(2)),
    "gelu_tanh": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "hardswish": lambda x: x * min(max(x + 3, 0), 6) / 6,
    "hardsigmoid": lambda x: min(max(x + 3, 0), 6) / 6,
    "leaky_relu": lambda x, slope: x if x > 0 else slope * x,
    "elu": lambda x, a, c, k: c * x if x > 0 else a * c * math.expm1(k * x),
    "softplus": lambda x, b, t: x if b * x > t else math.log1p(math.exp(b * x)) / b,
    "mish": lambda x: x * math.tanh(x if x > 20 else math.log1p(math.exp(x))),
    "hardtanh": lambda x, low, high: min(max(x, low), high),
    "sign": lambda x: (x > 0) - (x < 0),
    "floor": math.floor,
    "ceil": math.ceil,
    "round": to_half_even,
    "trunc": math.trunc,
    "bf16": lambda x: x,  # every sample is exact in bf16 and fp16; rounding has a test of its own
    "f16": lambda x: x,
    "detach": lambda x: x,
    "eq": lambda x, z: x == z,
    "ne": lambda x, z: x != z,
    "lt": lambda x, z: x < z,
    "le": lambda x, z: x <= z,
    "gt": lambda x, z: x > z,
    "ge": lambda x, z: x >= z,
    "and": lambda x, z: x and z,
    "or": lambda x, z: x or z,
    "xor": lambda x, z: x != z,
    "not": lambda x: not x,
    "isnan": math.isnan,
    "where": lambda c, x, z: x if c else z,
    "float": float,
    "int": int,
    "bool": bool,
}

SIGNATURES = [
    pytest.param(name, signature, literals, id=f"{name}-{signature}-{literals}")
    for name, op in OPS.items()
    for signature in op.kinds
    for literals in LITERALS.get(name, [()])
    if name in MEANING  # `lookup`: see test_score_mod.py, `random16`: test_random.py
]
DIFFERENTIABLE = [
    p for p in SIGNATURES if "f" in p.values[1].split(">")[0] and p.values[1][-1] == "f"
]


def samples(name: str, kinds: str, params: int) -> list[torch.Tensor]:
    """One tensor per variable of the signature; together they run over the product of the grids."""
    grids = {
        "f": torch.tensor(DOMAIN.get(name, REALS), dtype=torch.float64),
        "i": torch.tensor(INTEGERS),
        "b": torch.tensor([False, True]),
    }
    own = [grids[k] for k in kinds[: len(kinds) - params]]
    if name in ("floordiv", "mod"):
        own[1] = own[1][own[1] != 0]
    places = torch.cartesian_prod(*(torch.arange(len(grid)) for grid in own))
    places = places.reshape(-1, len(own))
    return [grid[column] for grid, column in zip(own, places.unbind(1))]


def variables(kinds: str, params: int) -> list[Expr]:
    return [aux(i, kind) for i, kind in enumerate(kinds[: len(kinds) - params])]


def evaluate(
    root: Expr, values: list[torch.Tensor], grad: torch.Tensor | None = None
) -> torch.Tensor:
    """Run a term over aux leaves in fp64."""

    def leaf(node: Expr) -> torch.Tensor:
        if node is GRAD:
            assert grad is not None
            return grad
        if node.op == "aux":
            return values[node.value]
        dtype = {"f": torch.float64, "i": torch.int64, "b": torch.bool}[node.kind]
        return torch.full((), node.value, dtype=dtype)

    return fold([root], leaf, torch_apply(torch.float64))[0]


def term_of(name: str, signature: str, literals: tuple[float, ...]) -> Expr:
    kinds = signature.split(">")[0]
    return call(name, *variables(kinds, OPS[name].params), *literals)


def test_every_operation_has_a_meaning_here() -> None:
    assert {*MEANING, "lookup", "random16"} == set(OPS)
    assert set(LITERALS) == {name for name, op in OPS.items() if op.params}


@pytest.mark.parametrize(("name", "signature", "literals"), SIGNATURES)
def test_meaning(name: str, signature: str, literals: tuple[float, ...]) -> None:
    values = samples(name, signature.split(">")[0], OPS[name].params)
    actual = evaluate(term_of(name, signature, literals), values)
    expected = [MEANING[name](*point, *literals) for point in zip(*(v.tolist() for v in values))]
    dtype = {"f": torch.float64, "i": torch.int64, "b": torch.bool}[signature[-1]]
    assert actual.dtype == dtype
    torch.testing.assert_close(
        actual, torch.tensor(expected, dtype=dtype), rtol=1e-12, atol=1e-15, equal_nan=True
    )


AT_THE_BOUND = {"clamp_min": 1.0, "clamp_max": 1.0, "clamp_min_open": 0.0, "clamp_max_open": 0.0}


@pytest.mark.parametrize(("name", "signature", "literals"), DIFFERENTIABLE)
def test_derivative_is_autograds_at_every_point(
    name: str, signature: str, literals: tuple[float, ...]
) -> None:
    """Kinks included: the convention of torch at 0, ±3 and at ties is part of the meaning.

    Versions of torch differ at a clamp's bound, where the row says its slope.
    """
    kinds = signature.split(">")[0]
    term = term_of(name, signature, literals)
    values = samples(name, kinds, OPS[name].params)
    leaves = [v.clone().requires_grad_(v.is_floating_point()) for v in values]
    output = evaluate(term, leaves)
    cotangent = torch.where(torch.arange(output.numel()) % 2 == 0, 1.5, -0.75).double()
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    expected = [None] * len(wanted)
    if output.requires_grad:
        expected = torch.autograd.grad(output, wanted, cotangent, allow_unused=True)
    if name in AT_THE_BOUND:
        at_bound = values[0] == literals[0]
        assert at_bound.any()
        expected = [torch.where(at_bound, AT_THE_BOUND[name] * cotangent, expected[0])]
    own = [x for x in variables(kinds, OPS[name].params) if x.kind == "f"]
    for term_grad, grad in zip(differentiate(term, own), expected):
        got = torch.zeros(()) if term_grad is None else evaluate(term_grad, values, cotangent)
        exact = torch.zeros_like(output) if grad is None else grad
        close = {"rtol": 1e-11, "atol": 1e-13, "equal_nan": True}
        torch.testing.assert_close(got.double().expand_as(output), exact, **close)


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("f16", torch.float16)])
def test_narrowing_rounds_the_value_and_the_gradient(name: str, dtype: torch.dtype) -> None:
    x = torch.linspace(-7, 7, 101, dtype=torch.float64, requires_grad=True)
    cast = x.to(dtype).double()
    term, cotangent = call(name, aux(0)), torch.linspace(-3, 2, 101, dtype=torch.float64)
    assert torch.equal(evaluate(term, [x]), cast)
    (derived,) = differentiate(term, [aux(0)])
    (expected,) = torch.autograd.grad(cast, x, cotangent)
    assert torch.equal(evaluate(derived, [x], cotangent), expected)


@pytest.mark.parametrize("name", ["sign", "floor", "ceil", "round", "trunc", "detach"])
def test_steps_have_no_gradient(name: str) -> None:
    assert differentiate(call(name, SCORE), [SCORE]) == [None]


def random_term(rng: random.Random, depth: int) -> Expr:
    """A smooth real term over the score and two aux leaves."""
    if depth == 0:
        return rng.choice([SCORE, aux(0), aux(1), const(rng.uniform(-2, 2))])
    name = rng.choice(
        ["add", "sub", "mul", "silu", "tanh", "gelu", "sigmoid", "where", "maximum", "sin"]
    )
    if name == "where":
        condition = call("lt", random_term(rng, depth - 1), random_term(rng, depth - 1))
        return call("where", condition, random_term(rng, depth - 1), random_term(rng, depth - 1))
    arity = len(OPS[name].kinds[0].split(">")[0])
    return call(name, *(random_term(rng, depth - 1) for _ in range(arity)))


@pytest.mark.parametrize("seed", range(40))
def test_derivative_of_random_programs(seed: int) -> None:
    """The chain rule: shared terms, several leaves, choices."""
    term = random_term(random.Random(seed), 4)
    points = torch.randn(3, 64, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    leaves = [p.clone().requires_grad_() for p in points]
    names = [SCORE, aux(0), aux(1)]

    def run(root: Expr, values: list[torch.Tensor], grad: torch.Tensor) -> torch.Tensor:
        def leaf(node: Expr) -> torch.Tensor:
            if node is GRAD:
                return grad
            if node in names:
                return values[names.index(node)]
            return torch.tensor(node.value, dtype=torch.float64)

        return fold([root], leaf, torch_apply(torch.float64))[0]

    cotangent = torch.randn(64, generator=torch.Generator().manual_seed(seed + 1)).double()
    output = run(term, leaves, cotangent).expand(64)
    gradients = differentiate(term, names)
    if not output.requires_grad:
        assert gradients == [None] * 3
        return
    expected = torch.autograd.grad(output, leaves, cotangent, allow_unused=True)
    for got, want in zip(gradients, expected):
        value = torch.zeros(()) if got is None else run(got, list(points), cotangent)
        want = torch.zeros(64, dtype=torch.float64) if want is None else want
        torch.testing.assert_close(value.double().expand(64), want, rtol=1e-9, atol=1e-11)


def test_equal_terms_are_one_object() -> None:
    assert call("silu", SCORE * 0.5) is call("silu", SCORE * 0.5)
    assert const(1) is not const(1.0)
    assert const(True) is not const(1)
    assert const(0.0) is not const(-0.0)
    assert const(math.nan) is const(math.nan)
    assert const(np.float64(0.5)) is const(0.5)
    assert copy.deepcopy(call("silu", SCORE)) is call("silu", SCORE)
    assert pickle.loads(pickle.dumps(call("silu", SCORE + aux(3)))) is call("silu", SCORE + aux(3))
    with pytest.raises(AttributeError, match="immutable"):
        SCORE.value = 1.0


def test_literals_fold_and_exact_identities_drop() -> None:
    assert const(2.0) * 3.0 is const(6.0)
    assert call("float", const(3)) is const(3.0)
    assert -const(0.5) is const(-0.5) and -const(math.inf) is const(-math.inf)
    assert const(2) + 3 is const(5)
    assert SCORE * 1.0 is SCORE and 1.0 * SCORE is SCORE and SCORE / 1.0 is SCORE
    assert INDEX["q_idx"] * 1 is INDEX["q_idx"]
    assert const(1.0) / 0.0 is Expr("div", (const(1.0), const(0.0)))
    # Not exact: x + 0 changes the sign of -0, x·0 is NaN at infinity.
    assert SCORE + 0.0 is not SCORE
    assert SCORE * 0.0 is not const(0.0)


def test_postorder_is_iterative_and_visits_once() -> None:
    term = SCORE
    for _ in range(20_000):
        term = term + term
    order = list(postorder([term, SCORE]))
    assert len(order) == 20_001 and order[0] is SCORE and order[-1] is term


@pytest.mark.parametrize(
    ("name", "operands", "message"),
    [
        ("sinh", (SCORE,), "unknown operation 'sinh'"),
        ("silu", (INDEX["q_idx"],), "silu takes f>f, not i"),
        ("add", (SCORE, INDEX["q_idx"]), "add takes ff>f or ii>i, not fi"),
        ("mul", (SCORE, True), "not fb"),
        ("where", (SCORE, SCORE, SCORE), "where takes bff>f or bii>i, not fff"),
        ("and", (SCORE, SCORE), "and takes bb>b"),
        ("silu", (), "not nothing"),
        ("clamp_min", (SCORE, aux(0)), "the last 1 argument"),
        ("softplus", (SCORE, 1.0, SCORE), "the last 2 argument"),
        ("mod", (SCORE, 2.0), "mod takes ii>i"),
    ],
)
def test_operands_of_the_wrong_kind_are_refused(
    name: str, operands: tuple[Expr | float, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call(name, *operands)


def test_scalars_are_integers() -> None:
    assert scalar(2).kind == "i" and call("float", scalar(2)).kind == "f"


@pytest.mark.parametrize("name", ["relu", "hardswish", "hardsigmoid"])
def test_where_a_slope_is_zero_an_infinite_gradient_leaves_nothing(name: str) -> None:
    """As autograd has it: not 0 · inf."""
    (slope,) = differentiate(call(name, SCORE), [SCORE])
    scores = torch.tensor([-7.0, -3.5], dtype=torch.float64)
    leaves = {"s": scores, "g": torch.full_like(scores, torch.inf)}
    leaf = lambda node: leaves[node.op] if node.op in leaves else torch.tensor(node.value)
    (gradient,) = fold([slope], leaf, torch_apply(torch.float64))
    assert torch.equal(gradient, torch.zeros_like(scores))


NEIGHBOURS = [0.0, -0.0, 1.0, -2.0, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_an_extremum_beside_nan_and_at_ties(name: str, dtype: torch.dtype) -> None:
    """Nobody loses to a NaN: both operands get the whole gradient, as in autograd."""
    grid = torch.tensor(NEIGHBOURS, dtype=dtype)
    values = [x.clone() for x in torch.cartesian_prod(grid, grid).unbind(1)]
    leaves = [x.clone().requires_grad_() for x in values]
    cotangent = torch.full_like(values[0], 3.0)
    expected = torch.autograd.grad(OPS[name].torch(*leaves), leaves, cotangent)
    own = [aux(0), aux(1)]
    for term, wanted in zip(differentiate(call(name, *own), own), expected):
        got = evaluate(term, values, cotangent.double())
        torch.testing.assert_close(got, wanted.double(), rtol=0, atol=0)
    beside = values[0].isnan() | values[1].isnan()
    assert all((gradient[beside] == 3.0).all() for gradient in expected)


@pytest.mark.parametrize(
    ("name", "literals"),
    [
        ("mul", (1e30, 1e30)),  # infinite in fp32
        ("mul", (1e-30, 1e-30)),  # 0 in fp32
        ("div", (1.0, 1e-39)),  # subnormal in fp32
        ("add", (3e38, 3e38)),
        ("add", ((1 << 62) + 1, 1 << 62)),  # wraps
        ("mul", (1 << 40, 1 << 40)),
    ],
)
def test_literals_whose_dtype_matters_are_not_folded(name: str, literals: tuple) -> None:
    assert call(name, *map(const, literals)).op == name


@pytest.mark.parametrize("count", [1, 17, 1536])
def test_gelu_at_infinity_is_that_of_the_formula(count: int):
    """With AVX-512 `F.gelu` of many numbers is oneDNN's, which is NaN there."""
    values = OPS["gelu"].torch(torch.full((count,), torch.inf))
    assert bool((values == torch.inf).all())
