"""integers: bounds hold for every value inside, and say when 32 bits do not do."""

import itertools
import random

import pytest
import torch

from gdpa_inductor.program.expr import INDEX, Expr, aux, call, const, fold, scalar, torch_apply
from gdpa_inductor.program.integers import ANY, INT32, inside, ranges, sums, wide
from gdpa_inductor.program.score_mod import ScoreMod

LEAVES = [aux(0, "i"), aux(1, "i"), aux(2, "i")]
BINARY = ["add", "sub", "mul", "maximum", "minimum", "floordiv", "mod"]


def random_term(rng: random.Random, depth: int) -> Expr:
    if depth == 0:
        return rng.choice([*LEAVES, const(rng.randint(-9, 9))])
    name = rng.choice([*BINARY, "neg", "abs", "where"])
    if name in ("neg", "abs"):
        return call(name, random_term(rng, depth - 1))
    pair = [random_term(rng, depth - 1) for _ in range(2)]
    if name in ("floordiv", "mod"):
        pair[1] = const(rng.choice([-7, -2, -1, 1, 3, 8]))
    if name == "where":
        return call("where", call("lt", *pair), *pair)
    return call(name, *pair)


@pytest.mark.parametrize("seed", range(60))
def test_every_value_is_inside(seed: int) -> None:
    rng = random.Random(seed)
    term = random_term(rng, rng.randint(1, 4))
    ends = {leaf: sorted((rng.randint(-6, 6), rng.randint(-6, 6))) for leaf in LEAVES}
    grids = [range(ends[leaf][0], ends[leaf][1] + 1) for leaf in LEAVES]
    points = torch.tensor(list(itertools.product(*grids)))

    def leaf(node: Expr) -> torch.Tensor:
        if node.op == "aux":
            return points[:, int(node.value or 0)]
        return torch.tensor(node.value)

    (values,) = fold([term], leaf, torch_apply(torch.float64))
    low, high = ranges([term], lambda node: tuple(ends[node]))[term]
    assert low <= values.min() and values.max() <= high


def test_what_may_wrap_is_any_integer() -> None:
    term = call("mul", LEAVES[0], LEAVES[1])
    assert ranges([term], lambda _: INT32)[term] == ((-(1 << 31)) * ((1 << 31) - 1), 1 << 62)
    assert ranges([term], lambda _: ANY)[term] == ANY
    assert not inside(ANY, INT32)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("where(ge(q_idx,kv_idx),s,0.0)", False),
        ("where(ge(sub(q_idx,kv_idx),3),s,0.0)", False),
        ("where(ge(add(q_idx,i0),kv_idx),s,0.0)", False),
        ("where(ge(mul(q_idx,q_idx),kv_idx),s,0.0)", True),
        ("where(ge(add(q_idx,2147483000),kv_idx),s,0.0)", True),  # past the ends of 32 bits
        ("where(ge(mod(q_idx,4294967296),kv_idx),s,0.0)", True),
        ("a0:i[kv_idx]; where(lt(kv_idx,a0),s,0.0)", False),  # operands that are only compared
        ("a0:i[kv_idx]; where(lt(kv_idx,minimum(a0,7)),s,0.0)", False),
        ("a0:i[kv_idx]; where(lt(kv_idx,sub(a0,5)),s,0.0)", True),  # of 8 bits it would wrap
        ("a0:i[kv_idx]; where(lt(kv_idx,neg(a0)),s,0.0)", True),
    ],
)
def test_programs_that_need_64_bits(text: str, expected: bool) -> None:
    assert wide([ScoreMod.parse(text).weight]) is expected


def test_positions_fit_together() -> None:
    assert not wide([call("add", call("add", INDEX["q_idx"], INDEX["kv_idx"]), scalar(0))])


def test_leaves_of_sums_have_one_order() -> None:
    """A kernel's text follows it: in another order, caches of a later process miss."""
    one, two = ([aux(i, "i") for i in order] for order in ((0, 1, 2), (2, 0, 1)))
    terms = [call("add", call("add", x, y), z) for x, y, z in (one, two)]
    assert sums(terms[:1]) == sums(terms[1:]) == LEAVES
