"""Numbers of the model that are narrower than those of a program: they wrap, and they round.

The reader proves that they do not, or leaves them to the model; either way the attention is fused
and exact. Programs are judged with relu of a product of whole numbers, so a wrong mask is gross.
"""

import inspect

import pytest
import torch
import torch.nn.functional as F

from tests._recorder import Recorder
from tests.operands import make_operands
from tests.patterns.rows import HEADS, SIZES, fused, is_fused, is_refused, proving, refused

DAY = 86_400_000  # in milliseconds: 25 of them are more than 2^31
NARROW = [torch.uint8, torch.int8, torch.int16, torch.int32]


def long_rows(length: int) -> list[torch.Tensor]:
    seeded = torch.Generator().manual_seed(0)
    return [torch.randn(1, 1, length, 4, generator=seeded).requires_grad_() for _ in range(3)]


def judged(attention, *operands, rows: int = 300, dynamic: bool | None = None) -> Recorder:
    """Exact and fused, of so many rows."""
    inputs = zip(
        inspect.signature(attention).parameters, [*long_rows(rows), *operands], strict=True
    )
    return fused(attention, operands=dict(inputs), dynamic=dynamic)


is_exact = proving(judged)


def masked(q, k, v, mask):
    return torch.where(mask, F.silu(q @ k.mT), 0.0) @ v


@is_exact((torch.arange(300) * DAY)[None])
def test_a_difference_of_times_that_wraps(q, k, v, times):
    apart = (times[:, :, None] - times[:, None, :]).int()
    return masked(q, k, v, (apart >= 0)[:, None])


def test_times_that_wrap_are_left_to_the_model() -> None:
    """They vary along the rows only, so what is given to the op is the short tensor."""

    def attention(q, k, v, times):
        narrow = times.int()
        return masked(q, k, v, narrow[:, None] > narrow)

    (match,) = judged(attention, torch.arange(300) * DAY).matches
    assert [spec.access for spec in match.score_mod.aux] == [("q_idx",), ("kv_idx",)]


def test_a_difference_of_places_does_not_wrap() -> None:
    def attention(q, k, v):
        i = torch.arange(q.shape[2])
        return masked(q, k, v, (i[:, None] - i).int() >= 3)

    for dynamic in (None, True):
        (match,) = judged(attention, dynamic=dynamic).matches
        assert not match.score_mod.aux


@pytest.mark.parametrize("dtype", NARROW)
def test_places_counted_in_few_bits(dtype: torch.dtype) -> None:
    def attention(q, k, v):
        i = torch.arange(q.shape[2], dtype=dtype)
        return masked(q, k, v, i[:, None] >= i)

    (match,) = judged(attention).matches
    assert bool(match.score_mod.aux) == (dtype in (torch.uint8, torch.int8))


ARITHMETIC = {
    "sum": lambda i, j: i + j > 100,
    "difference": lambda i, j: i - j > 100,
    "product": lambda i, j: i * j > 100,
    "negative": lambda i, j: -i > j,
    "shift": lambda i, j: (i << 3) > j,
    "quotient": lambda i, j: i // 3 > j,
    "square": lambda i, j: i.square() > j,
    "cast first": lambda i, j: i.long() * 1000 > j.long(),
    "cast one": lambda i, j: i.long() - 5 > j,
    "cast last": lambda i, j: (i + 100).long() > j,
}


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_of_operands_in_few_bits(dtype: torch.dtype, name: str) -> None:
    """The op reads the operands in their own dtype, and computes with them in 64 bits."""

    def attention(q, k, v, inputs):
        return masked(q, k, v, ARITHMETIC[name](inputs[:, None], inputs))

    inputs = torch.randint(-200, 200, (60,), generator=torch.Generator().manual_seed(1)).to(dtype)
    judged(attention, inputs, rows=60)


@is_exact()
def test_a_square_of_places_in_32_bits(q, k, v):
    i = torch.arange(q.shape[2], dtype=torch.int32) * 1000
    return masked(q, k, v, i[:, None] * i > 5)


@is_exact(torch.arange(60, dtype=torch.int32) - 30, torch.tensor(1 << 32), rows=60)
def test_a_number_past_the_dtype_that_it_is_compared_in(q, k, v, inputs, one):
    return masked(q, k, v, (inputs > one)[:, None])


def test_lengths_cast_to_32_bits_are_an_operand() -> None:
    def attention(q, k, v, lengths):
        valid = torch.arange(k.shape[2]) < lengths.int()[:, None]
        return masked(q, k, v, valid[:, None, None])

    (match,) = judged(attention, torch.tensor([17]), rows=60).matches
    assert "a0" in match.score_mod.formula


@is_refused({"DTYPE"})
def test_scores_cast_to_integers_are_refused_by_name(q, k, v):
    return (q @ k.mT * 3).int() * (q @ k.mT) @ v


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf"), 1e300])
def test_a_number_that_no_integer_is_near_is_refused_by_name(number: float) -> None:
    def attention(q, k, v):
        s = q @ k.mT
        return s.sigmoid() * (torch.full_like(s, number).to(torch.int64) < 0) @ v

    (rejection,) = refused({"DTYPE"}, attention).rejections
    assert rejection.reason == f"{number} becomes an integer, and none of 64 bits is near"


@is_fused()
def test_a_scale_in_fp32_beside_scores_in_fp64(q, k, v):
    """The model rounds it to fp32, the program would not."""
    i = torch.arange(q.shape[2], dtype=torch.float32) * 0.1
    return F.silu(q @ k.mT + i[:, None]) @ v


@is_fused()
def test_places_past_the_whole_numbers_of_fp32(q, k, v):
    i = (torch.arange(q.shape[2]) + (1 << 24)).float()
    return F.silu(q @ k.mT + (i[:, None] - (1 << 24))) @ v


def test_scales_beyond_the_range_of_fp32() -> None:
    """Eager overflows between them, where their product would not."""

    def attention(q, k, v):
        return F.silu((q @ k.mT) * 1e38 * 1e-38) @ v

    (match,) = fused(attention, dtype=torch.float32).matches
    assert match.score_mod.formula == "silu(s*1e+38*1e-38)"
    operands = make_operands(HEADS, SIZES, dtype=torch.float32)
    assert not attention(*operands.values()).isfinite().all()


def test_a_filled_tensor_in_fp32_beside_scores_in_fp64() -> None:
    fused(lambda q, k, v: F.silu(q @ k.mT + torch.full((1,), 0.1, dtype=torch.float32)) @ v)


def test_widths_change_no_plain_program() -> None:
    recorder = fused(lambda q, k, v: F.silu(q @ k.mT * 0.5) @ v, HEADS)
    assert recorder.matches[0].score_mod.formula == "silu(s*0.5)"


AT_A_LIMIT = {
    "to an integer": lambda s: s.sigmoid().to(torch.int64).to(s.dtype),
    "floor": lambda s: torch.tanh(s).floor(),
    "a comparison with 1": lambda s: torch.where(s.sigmoid() >= 1, s, 0.0),
    "a quotient": lambda s: (s / (1 + s.abs())).ceil(),
    "a comparison with a half": lambda s: torch.where(s.sigmoid() > 0.5, s, 0.0),
    "of a scaled score": lambda s: (s / 4).floor(),
    "a cap": lambda s: F.threshold(30 * torch.tanh(s / 30), 1.0, 0.0),
    "a sign": lambda s: torch.tanh(s).sign(),
    "steps": lambda s: torch.round(torch.sigmoid(s) * 15) / 15,
}
DECIDED = ("to an integer", "floor", "a comparison with 1", "a quotient")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", AT_A_LIMIT)
def test_a_decision_at_a_limit_that_16_bits_round_to(name: str, dtype: torch.dtype) -> None:
    """In bf16 sigmoid(6) is 1."""
    recorder = Recorder()
    operands = [torch.randn(1, 2, 5, 4, dtype=dtype) for _ in range(3)]
    torch.compile(lambda q, k, v: AT_A_LIMIT[name](q @ k.mT) @ v, backend=recorder)(*operands)
    decides = dtype == torch.bfloat16 and name in DECIDED
    assert len(recorder.matches) == 1 - decides, recorder.why()
    assert not decides or "depends on how its numbers round" in recorder.why()
