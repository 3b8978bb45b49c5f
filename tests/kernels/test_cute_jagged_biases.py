"""Gradients of biases where a side is jagged: how sequences are dealt, and what is summed.

With the formula in place of the kernels, on integers, so that every sum is exact. The sums run on
the emulator in test_cute_totals.py, all of it on the card in tests/gpu.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute import plan
from gdpa_inductor.kernels.cute.backward import jagged_biases
from gdpa_inductor.kernels.cute.backward import launch as backward_launch
from gdpa_inductor.kernels.cute.backward.jagged_biases import StoredScores
from gdpa_inductor.kernels.cute.backward.launch import BackwardCall, backward
from gdpa_inductor.kernels.cute.backward.roots import factor_of
from gdpa_inductor.kernels.cute.config import StoredTiling
from gdpa_inductor.kernels.cute.sm90.config import COLS, Sm90Config
from gdpa_inductor.operands import Operands, score_shape
from gdpa_inductor.program.score_mod import ScoreMod
from gdpa_inductor.sequences import Padding

from .cute_backward_cases import exact

CU = {"q": (0, 30, 30, 47, 48, 70), "k": (2, 30, 41, 47, 47, 60)}
BATCH, HEADS, KEY_HEADS, MOST = 5, 4, 2, {"q": 25, "k": 28}
ROWS = {"q": 73, "k": 64}
FP32 = torch.float32
ADDED = "relu(add(s,a0))"
CAUSAL = f"where(le(kv_idx,q_idx),{ADDED},0.0)"
AXES = {
    "of each score": "b,h,q_idx,kv_idx",
    "of heads": "h,q_idx,kv_idx",
    "of heads, one batch": "-,h,q_idx,kv_idx",
    "of batches": "b,-,q_idx,kv_idx",
    "of positions": "q_idx,kv_idx",
    "keys first": "h,kv_idx,q_idx",
    "of keys": "b,kv_idx",
    "of heads and keys": "h,kv_idx",
    "of positions of keys": "kv_idx",
    "of queries": "b,h,q_idx",
    "of positions of queries": "q_idx",
    "of batches and heads": "b,h",
    "of heads alone": "-,h,-,-",
    "a scalar": "",
    "of tokens of queries": "q,h",
    "of tokens of keys": "k",
    "of tokens and positions": "q,kv_idx",
}


def make(
    access: tuple[str, ...], sides: str = "qk", program: str = ADDED, dtype: torch.dtype = FP32
) -> tuple[Tensor, Operands[Tensor]]:
    """Small integers; what no sequence owns is NaN. access: of the biases. sides: jagged ones."""

    def matrix(side: str, heads: int) -> Tensor:
        jagged = side in sides
        shape = (ROWS[side], heads, 8) if jagged else (BATCH, heads, MOST[side], 8)
        values = torch.randint(-1, 2, shape).bfloat16()
        if jagged:
            values[: CU[side][0]], values[CU[side][-1] :] = float("nan"), float("nan")
        return values

    sizes = {"b": BATCH, "h": HEADS, "q_idx": MOST["q"], "kv_idx": MOST["k"], "-": 1, **ROWS}
    shapes = [[sizes[x] for x in each.split(",") if x] for each in access]
    aux = [torch.randint(-3, 4, shape).to(dtype) for shape in shapes]
    cu = [torch.tensor(CU[x], dtype=torch.int32) if x in sides else None for x in "qk"]
    most = [MOST[x] if x in sides else 0 for x in "qk"]
    q, k, v, grad = (matrix(x, n) for x, n in zip("qkkq", (HEADS, KEY_HEADS, KEY_HEADS, HEADS)))
    text = declared(access, program)
    return grad, Operands(q, k, v, aux, (), ScoreMod.parse(text), *cu, *most)


def declared(access: Sequence[str], body: str) -> str:
    return "; ".join([*(f"a{i}:f[{each}]" for i, each in enumerate(access)), body])


class Formula:
    """In place of the kernels of an architecture. deals: the sequences of each launch. What it has
    not stored is NaN."""

    def __init__(self) -> None:
        self.deals: list[list[int]] = []

    def gradients(self, call: BackwardCall, asked: str) -> dict[str, Tensor]:
        o = call.operands
        result = exact(call.grad_out, o, (True,) * 3 + (False,) * len(o.aux))
        scores, there = flow(call.grad_out, o), valid(o)
        scores /= factor_of(str(o.program), call.stored)  # the gradient of the operand
        for each in call.launches:
            order = each.order[: each.count]
            self.deals.append(order.tolist())
            each.scores.fill_(float("nan"))
            each.hulls.zero_()
            for slot, b in enumerate(order.tolist()):
                rows, cols = (int(there[b].any(d).sum()) for d in (1, 0))
                high, wide = -(-rows // 16) * bool(cols), -(-cols // COLS)
                each.hulls[slot, :, :wide, 1] = high
                part = each.scores[slot, :, : high * 16]
                part.zero_()
                part[..., : scores.shape[3]] = scores[b, :, : high * 16]
        return {letter: x.to(o.query.dtype) for letter, x in zip("qkv", result)}


def flow(grad: Tensor, o: Operands[Tensor]) -> Tensor:
    """The gradient of each score [B, H, M, N], zero where there is none: that of one more bias."""
    text, more = str(o.program), len(o.aux)
    body = text.split("; ")[-1].replace("add(s,", f"add(add(s,a{more}),")
    access = [",".join(spec.access) for spec in o.program.aux]
    program = ScoreMod.parse(declared([*access, "b,h,q_idx,kv_idx"], body))
    biased = dataclasses.replace(o, aux=[*o.aux, torch.zeros(score_shape(o))], program=program)
    return exact(grad, biased, (False,) * (3 + more) + (True,))[0]


def valid(o: Operands[Tensor]) -> Tensor:
    """Which scores there are, [B, M, N]."""
    batch, _, rows, cols = score_shape(o)
    mask = Padding.of(o).mask
    assert mask is not None
    return mask.expand(batch, 1, rows, cols)[:, 0]


def tiles(stored: StoredScores, total: Tensor, axes, factor: float, adds: bool, **_) -> None:
    whole, order = stored_scores(stored) * factor, stored.order[: stored.count]
    chunks = total.shape[2]
    height = -(-whole.shape[2] // chunks)
    whole = torch.nn.functional.pad(whole, (0, 0, 0, height * chunks - whole.shape[2]))
    whole = whole.unflatten(2, (chunks, height)).sum(3)
    whole = whole if "h" in axes else whole.sum(1, keepdim=True)
    if "b" in axes:
        total[order] = whole.to(total.dtype)
    else:
        (total.add_ if adds else total.copy_)(whole.sum(0, keepdim=True))


def rows(stored: StoredScores, total: Tensor, factor: float, **_) -> None:
    total[stored.order[: stored.count]] = stored_scores(stored).sum(3).float() * factor


def stored_scores(stored: StoredScores) -> Tensor:
    """Of the slots of a launch, as the kernels read them: only what is in the hulls."""
    scores, group = stored.scores[: stored.count].double(), stored.scores.shape[1]
    height, width = stored.tiling.rows, stored.tiling.cols
    inside = torch.zeros_like(scores, dtype=torch.bool)
    group //= stored.hulls.shape[1]
    for place in itertools.product(*map(range, (stored.count, *stored.hulls.shape[1:3]))):
        slot, head, tile = place
        first, end = (int(x) * height for x in stored.hulls[place])
        part = inside[slot, head * group : (head + 1) * group, first:end]
        part[..., tile * width : (tile + 1) * width] = True
    return torch.where(inside, scores, 0.0)


@pytest.fixture
def formula(monkeypatch: pytest.MonkeyPatch) -> Formula:
    result = Formula()
    monkeypatch.setattr(plan, "PLANS", {})
    monkeypatch.setattr(Sm90Config, "tiling", StoredTiling(16, COLS, by_keys=True))
    monkeypatch.setitem(backward_launch.GRADIENTS, "sm90", result.gradients)
    monkeypatch.setattr(jagged_biases, "add_tiles", tiles)
    monkeypatch.setattr(jagged_biases, "add_rows", rows)
    return result


def gradients(grad: Tensor, o: Operands[Tensor], needs: Sequence[bool]) -> list[Tensor]:
    return backward(grad, o, needs, ctas=1, stream=0, kind=Sm90Config)


ROOMS = {"one by one": 1, "two launches": 3 * HEADS * 25 * 32 * 2, "at once": jagged_biases.ROOM}


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("name", AXES)
def test_sums_of_what_the_kernel_stores(name, room, formula, monkeypatch):
    monkeypatch.setattr(jagged_biases, "ROOM", ROOMS[room])
    grad, o = make((AXES[name],))
    results = gradients(grad, o, (True,) * 4)
    assert len(formula.deals) == {"one by one": 5, "two launches": 2, "at once": 1}[room]
    check(results, exact(grad, o, (True,) * 4), o)


def check(found: list[Tensor], wanted: list[Tensor], o: Operands[Tensor]) -> None:
    for mine, truth, operand in zip(found, wanted, o.differentiable, strict=True):
        assert mine.is_contiguous()
        assert (mine.shape, mine.dtype) == (operand.shape, operand.dtype)
        assert torch.equal(mine, truth.to(mine.dtype))


@pytest.mark.parametrize("sides", ["q", "k"])
@pytest.mark.parametrize("name", [x for x in AXES if "token" not in x])
def test_one_side_is_dense(name, sides, formula, monkeypatch):
    monkeypatch.setattr(jagged_biases, "ROOM", ROOMS["two launches"])
    grad, o = make((AXES[name],), sides, CAUSAL)
    check(gradients(grad, o, (True,) * 4), exact(grad, o, (True,) * 4), o)


@pytest.mark.parametrize("needs", [(True, True), (False, True), (True, False)])
def test_several_biases(needs, formula, monkeypatch):
    """Gradients of all follow from that of the first that is asked for."""
    monkeypatch.setattr(jagged_biases, "ROOM", 1)
    grad, o = make(("h,q_idx,kv_idx", "b,kv_idx"), program="relu(add(add(s,a0),mul(a1,-2.0)))")
    needs = (False, True, False, *needs)
    for mine, wanted in zip(gradients(grad, o, needs), exact(grad, o, needs), strict=True):
        assert torch.equal(mine.double(), wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["of heads", "of each score", "of keys"])
def test_gradients_have_the_dtype_of_the_bias(name, dtype, formula, monkeypatch):
    monkeypatch.setattr(jagged_biases, "ROOM", 1)
    grad, o = make((AXES[name],), dtype=dtype)
    check(gradients(grad, o, (True,) * 4), exact(grad, o, (True,) * 4), o)


@pytest.mark.parametrize("side", ["q", "k"])
def test_without_rows_or_keys_all_is_zero(side):
    """By the launch on Hopper, which has nothing to launch."""
    grad, o = make(("h,q_idx,kv_idx",))
    bias = o.aux[0][:, :0] if side == "q" else o.aux[0][..., :0]
    none = dataclasses.replace(o, aux=[bias], **{f"max_seqlen_{side}": 0})
    *matrices, result = gradients(grad, none, (True,) * 4)
    assert result.shape == bias.shape
    assert not any(x.any() for x in matrices)


def test_sequences_are_dealt_the_longest_first(formula, monkeypatch):
    monkeypatch.setattr(jagged_biases, "ROOM", ROOMS["two launches"])
    grad, o = make(("h,q_idx,kv_idx",))
    gradients(grad, o, (True,) * 4)
    lengths = torch.tensor(CU["k"]).diff()
    assert [len(x) for x in formula.deals] == [3, 2]
    assert [int(lengths[b]) for x in formula.deals for b in x] == sorted(lengths.tolist())[::-1]
