"""The backward in one kernel on a GPU: its errors, and equal bits in every run."""

import math

import pytest
import torch
from torch._inductor.utils import run_and_get_code

from gdpa_inductor import lowerings
from gdpa_inductor.ops import operands_of
from gdpa_inductor.reference import reference_backward
from tests.gpu.checks import check_bits

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability()[0] != 9,
        reason="the kernel is taken on compute capability 9.0",
    ),
]
PROGRAM = "gelu_tanh(mul(s,0.08838834764831845))"
BATCH, HEADS, LONGEST, KEYS = 240, 4, 400, 200


def made(side: str) -> tuple[list[torch.Tensor], tuple]:
    """grad_out, query, key, value, and the last arguments of the op."""
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(0, LONGEST + 1, (BATCH,), generator=generator)
    lengths[:3] = torch.tensor([0, 1, LONGEST])
    offsets = torch.zeros(BATCH + 1, dtype=torch.int32)
    offsets[1:] = lengths.cumsum(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(torch.bfloat16).cuda()

    jagged = (int(offsets[-1]) + 37, HEADS, 128)
    cu = offsets.cuda()
    if side == "dense":
        return [draw(BATCH, HEADS, length, 128) for length in (300, 300, KEYS, KEYS)], (
            None, None, 0, 0,
        )  # fmt: skip
    if side == "query":
        keys = [draw(BATCH, HEADS, KEYS, 128) for _ in range(2)]
        return [draw(*jagged), draw(*jagged), *keys], (cu, None, LONGEST, 0)
    return [draw(*jagged) for _ in range(4)], (cu, cu, LONGEST, LONGEST)


def gradients(grad_out, query, key, value, *sides):
    leading = (query, key, value, [], [], PROGRAM, [True] * 3, "kernel=triton,strict=True")
    return torch.ops.gdpa.attention_backward(grad_out, *leading, *sides)


def test_one_compile_serves_other_batches() -> None:
    """Fewer sequences than at capture, longer ones than are taken, rows of no sequence: no address
    is past the table of sequences, and what takes no part stays out."""
    lowerings.register()
    tensors, (cu, *_) = made("both")
    inputs = [*tensors, cu, torch.empty(LONGEST, device="cuda")]
    for t in inputs:
        torch._dynamo.mark_dynamic(t, 0)
    function = torch.compile(
        lambda *x: gradients(*x[:4], x[4], x[4], x[5].shape[0], x[5].shape[0]), fullgraph=True
    )
    _, (code,) = run_and_get_code(function, *inputs)
    assert "SUMS" in code
    lengths = torch.tensor([300, 0, 1, 129, 64, 511, 37, 250, 0, 128, 700, 65], dtype=torch.int32)
    cu = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    taken = torch.zeros(int(cu[-1]) + 70, dtype=torch.bool, device="cuda")
    for start, length in zip(cu.tolist(), lengths.tolist()):
        taken[start : start + min(length, 300)] = True
    others = [torch.randn(len(taken), HEADS, 128, device="cuda").bfloat16() for _ in range(4)]
    clean = [torch.where(taken[:, None, None], t, 0.0).double() for t in others]
    poisoned = [torch.where(taken[:, None, None], t, math.nan) for t in others]
    cu = cu.cuda()
    results = function(*poisoned, cu, torch.empty(300, device="cuda"))
    operands = operands_of(*clean[1:], [], [], PROGRAM, cu, cu, 300, 300)
    for got, want in zip(results, reference_backward(clean[0], operands, [True] * 3), strict=True):
        assert (got.double() - want).norm() <= 5e-3 * want.norm()
        assert (got[~taken] == 0).all()


@pytest.mark.parametrize("side", ["dense", "query", "both"])
def test_gradients_and_equal_bits(side: str) -> None:
    lowerings.register()
    tensors, sides = made(side)
    function = torch.compile(lambda *inputs: gradients(*inputs, *sides))
    results, (code,) = run_and_get_code(function, *tensors)
    assert "SUMS" in code
    grad_out, *rest = (t.double() for t in tensors)
    operands = operands_of(*rest, [], [], PROGRAM, *sides)
    for got, want in zip(results, reference_backward(grad_out, operands, [True] * 3), strict=True):
        assert (got.double() - want).norm() <= 5e-3 * want.norm()
    check_bits(lambda: function(*tensors), 50)
