"""Masks with sentinels and hashes: what leaves out tiles must not trust sums that wrap."""

import itertools

import pytest
import torch

from gdpa_inductor.kernels.blocked import tiling
from gdpa_inductor.program.expr import AXES, Expr, fold, torch_apply
from gdpa_inductor.program.loop_bounds import closed
from gdpa_inductor.program.score_mod import ScoreMod
from gdpa_inductor.program.tile_classes import classify
from gdpa_inductor.reference import aux_on_axes, program_leaves

LEAST, MOST = -(2**63), 2**63 - 1
SIZES, STEP = (1, 1, 64, 64), 16
# Each makes tiles zero, and has an integer that wraps or a bound that is no number.
PROGRAMS = {
    "a hash of the row": "where(lt(mul(q_idx,288230376151711744),0),silu(s),0.0)",
    "a hash of row and column": (
        "where(lt(add(mul(q_idx,6364136223846793005),mul(kv_idx,288230376151711744)),0),silu(s),0.0)"
    ),
    "times apart": "a0:i[q_idx]; a1:i[kv_idx]; where(ge(sub(a0,a1),0),silu(s),0.0)",
    "times near": "a0:i[q_idx]; a1:i[kv_idx]; where(le(abs(sub(a0,a1)),5),silu(s),0.0)",
    "a window without an end": "a0:i[h]; where(lt(kv_idx,add(q_idx,a0)),silu(s),0.0)",
    "a sign of reals apart": "a0:f[q_idx]; a1:f[kv_idx]; mul(sign(sub(a0,a1)),s)",
    "softplus of a negative slope": "softplus(where(ge(q_idx,kv_idx),s,-1000000000.0),-1.0,20.0)",
}
INTEGERS = [LEAST, MOST, -1, 0, 3, 2**62, -(2**62), 17]
REALS = [-torch.inf, torch.inf, 0.0, 1.0, -1.0, torch.inf, -torch.inf, 1e38]


def operand(kind: str, access: tuple[str, ...], shift: int) -> torch.Tensor:
    """Groups of four equal elements, so that tiles see few different ones."""
    values = torch.tensor(INTEGERS if kind == "i" else REALS)
    count = SIZES[AXES.index(access[0])]
    return values.roll(shift).repeat_interleave(max(count // 8, 1))[:count]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("shift", range(4))
def test_what_is_left_out_is_zero(name, shift):
    program = ScoreMod.parse(PROGRAMS[name])
    operands = [operand(a.kind, a.access, shift * (i + 1)) for i, a in enumerate(program.aux)]
    term = tiling.zero((program.weight,), program.aux)
    if term is None:
        return  # nothing is left out
    placed = [aux_on_axes(x, spec) for x, spec in zip(operands, program.aux, strict=True)]
    verdict = tiling.verdicts(term, index, (STEP, STEP), placed, [], torch.float64)
    score = torch.linspace(-3, 3, 64 * 64, dtype=torch.float64).view(SIZES)
    leaf = program_leaves(score, operands, [], program)
    (weight,) = fold([program.weight], leaf, torch_apply(torch.float64))
    left_out = verdict.expand(1, 1, 4, 4).repeat_interleave(STEP, 2).repeat_interleave(STEP, 3)
    assert not (left_out & (weight != 0) & ~weight.isnan()).any()


def index(name: str) -> torch.Tensor:
    axis = AXES.index(name)
    return torch.arange(SIZES[axis]).view([-1 if d == axis else 1 for d in range(4)])


WINDOWS = (
    "a0:i[h]; where(and(lt(sub(q_idx,kv_idx),a0),lt(sub(kv_idx,q_idx),a0)),silu(s),0.0)",
    "a0:i[h]; where(lt(kv_idx,a0),silu(s),0.0)",
    "a0:i[b]; a1:i[b]; where(and(lt(kv_idx,a0),ge(kv_idx,sub(q_idx,a1))),silu(s),0.0)",
    "a0:i[b]; a1:i[b]; where(lt(add(kv_idx,a0),add(q_idx,a1)),silu(s),0.0)",
)


@pytest.mark.parametrize("text", WINDOWS)
@pytest.mark.parametrize("axis", ["q_idx", "kv_idx"])
def test_a_window_of_the_largest_integer_is_no_window(text, axis):
    """The ends of a loop hold every tile that counts, and no tile that is masked is whole."""
    program = ScoreMod.parse(text)
    (condition, *_) = program.weight.args
    ends = closed(classify([program.weight], program.aux), axis)
    other = "q_idx" if axis == "kv_idx" else "kv_idx"
    for operands in itertools.product([LEAST, MOST, 0, 5, 50, 2**62], repeat=len(program.aux)):
        for low in (0, 48):
            place = {f"{other}_lo": low, f"{other}_hi": low + STEP - 1}
            known = {name: value(term, place, operands) for name, term in ends.items()}
            for first in range(0, 64, STEP):
                there = {axis: (first, first + STEP - 1), other: (low, low + STEP - 1)}
                corners = [
                    value(condition, {"q_idx": q, "kv_idx": kv, "b": 0, "h": 0}, operands)
                    for q, kv in itertools.product(there["q_idx"], there["kv_idx"])
                ]
                lives = not known.get("empty") and first <= known.get("upper", MOST)
                lives = lives and first + STEP > known.get("lower", LEAST)
                whole = not known.get("mixed") and first >= known.get("whole_lower", LEAST)
                whole = whole and first + STEP <= known.get("whole_upper", MOST - 1) + 1
                assert lives or not any(corners), (operands, first, known)
                assert not (lives and whole) or all(corners), (operands, first, known)


def value(term: Expr, leaves: dict[str, int], operands: tuple[int, ...]) -> int:
    def leaf(node: Expr) -> torch.Tensor:
        if node.op == "aux":
            return torch.tensor(operands[int(node.value or 0)])
        return torch.tensor(node.value if node.is_const else leaves[node.op])

    return int(fold([term], leaf, torch_apply(torch.float64))[0])
