"""The generator of random jagged problems, and its judge, without a GPU."""

import itertools

import pytest
import torch

from gdpa_inductor.kernels.cute.plan import fits
from gdpa_inductor.reference import reference, reference_backward

from .cute_cases import formula
from .jagged_random import GUARD, KINDS, JaggedProblem, Judge, draw, storage, surrounded

SEEDS = range(4)
each = pytest.mark.parametrize("name", KINDS)


def clean(problem: JaggedProblem, dtype: torch.dtype) -> tuple:
    """The operands in `dtype`, with zeros in place of poison, and the gradient of O."""
    o = problem.operands
    flat = [
        x.nan_to_num(0.0, 0.0, 0.0).to(dtype) if torch.is_tensor(x) and x.is_floating_point() else x
        for x in o.flat()
    ]
    return o.filled(flat), problem.grad_out.nan_to_num(0.0, 0.0, 0.0).to(dtype)


def needs(o) -> tuple[bool, ...]:
    return (True,) * 3 + (False,) * len(o.aux)


def kernel(problem: JaggedProblem) -> list[torch.Tensor]:
    """O, dQ, dK and dV by the package's definition, in fp32, rounded at the end."""
    o, grad = clean(problem, torch.float32)
    outputs = [reference(o), *reference_backward(grad, o, needs(o))[:3]]
    return [x.to(problem.kind.dtype) for x in outputs]


@each
def test_the_formula_is_the_definition(name: str):
    for seed in SEEDS:
        problem = draw(KINDS[name], seed)
        o, grad = clean(problem, torch.float64)
        want = [reference(o), *reference_backward(grad, o, needs(o))[:3]]
        unfused = formula(problem.operands, torch.float64, problem.grad_out)
        torch.testing.assert_close(unfused, want, rtol=1e-9, atol=1e-9)


@each
def test_a_right_result_is_accepted(name: str):
    for seed in SEEDS:
        problem = draw(KINDS[name], seed)
        assert Judge(problem).fault(kernel(problem)) is None, seed


@each
def test_a_wrong_row_is_refused(name: str):
    """Of each result, a row that is another, poisoned, or not zero where no sequence is."""
    checked = [0] * 4
    for seed in range(30):
        problem = draw(KINDS[name], seed)
        judge, results = Judge(problem), kernel(problem)
        for place, side in enumerate("qqkk"):
            rows = [0]
            if side in problem.kind.sides:
                owned = problem.owned(side)
                rows = [int(x.nonzero()[0]) for x in (owned, ~owned) if x.any()]
            for row, change in itertools.product(rows, (1.0, float("nan"))):
                changed = [x.clone() for x in results]
                changed[place][row] += change * (1.0 + changed[place].abs().max())
                assert judge.fault(changed) is not None, (seed, place, row, change)
                checked[place] += 1
        if min(checked) > 3:
            return
    raise AssertionError("too few rows")


@each
def test_poison_is_all_around(name: str):
    for seed in SEEDS:
        problem = draw(KINDS[name], seed)
        o = problem.operands
        for x in (o.query, o.key, o.value, problem.grad_out):
            whole = storage(x)
            values = whole.clone()
            values.as_strided(x.shape, x.stride(), x.storage_offset()).fill_(float("nan"))
            assert not values.isfinite().any()
            assert whole[: GUARD * 8].isfinite().sum() == 0
            assert fits(x), "TMA reads it where it lies"
        for side, matrices in (("q", (o.query, problem.grad_out)), ("k", (o.key, o.value))):
            if side in problem.kind.sides:
                owned = problem.owned(side)
                for x in matrices:
                    assert x[owned].isfinite().all() and not x[~owned].isfinite().any()


def test_the_problems_are_of_all_sorts():
    """Sequences without rows and of one, ends within tiles, cut ones, rows before and behind."""
    seen: set[str] = set()
    for seed in range(60):
        problem = draw(KINDS["silu"], seed)
        o = problem.operands
        lengths = o.cu_seqlens_q.diff()
        seen |= {name for name, holds in {
            "empty": (lengths == 0).any(), "one": (lengths == 1).any(),
            "many tiles": (lengths > 192).any(), "cut": (lengths > o.max_seqlen_q).any(),
            "before": o.cu_seqlens_q[0] > 0, "behind": len(o.query) > o.cu_seqlens_q[-1],
            "other keys": (lengths != o.cu_seqlens_k.diff()).any(), "one CTA": problem.ctas == 1,
            "strided": o.query.stride(0) != o.query.shape[1] * o.query.shape[2],
            "NaN": problem.operands.query.isnan().any(), "inf": o.query.isinf().any(),
        }.items() if holds}  # fmt: skip
    assert len(seen) == 11


def test_a_problem_is_the_same_each_time():
    first, second = (draw(KINDS["causal"], 5) for _ in range(2))
    assert torch.equal(first.operands.query.isnan(), second.operands.query.isnan())
    for x, y in zip(first.operands.flat(), second.operands.flat(), strict=True):
        assert torch.equal(torch.as_tensor(x).nan_to_num(), torch.as_tensor(y).nan_to_num())


def test_offsets_lie_among_others():
    cu = surrounded(torch.tensor([0, 3], dtype=torch.int32), 1 << 30)
    assert cu.is_contiguous() and cu.data_ptr() % 16 == 0
    assert cu.as_strided((1,), (1,), cu.storage_offset() - 1).item() == 1 << 30
