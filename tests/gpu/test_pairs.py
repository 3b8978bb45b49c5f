"""The backward in one kernel on a GPU: its errors, and equal bits in every run."""

import pytest
import torch
from torch._inductor.utils import run_and_get_code

from gdpa_inductor import lowerings
from gdpa_inductor.ops import operands_of, reference_backward

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
    leading = (query, key, value, [], [], PROGRAM, [True] * 3, "strict=True")
    return torch.ops.gdpa.attention_backward(grad_out, *leading, *sides)


@pytest.mark.parametrize("side", ["dense", "query", "both"])
def test_gradients_and_equal_bits(side: str) -> None:
    lowerings.register()
    tensors, sides = made(side)
    function = torch.compile(lambda *given: gradients(*given, *sides))
    found, (code,) = run_and_get_code(function, *tensors)
    assert "SUMS" in code
    grad_out, *rest = (t.double() for t in tensors)
    operands = operands_of(*rest, [], [], PROGRAM, *sides)
    for got, want in zip(found, reference_backward(grad_out, operands, [True] * 3), strict=True):
        assert (got.double() - want).norm() <= 5e-3 * want.norm()
    for _ in range(50):
        assert all(torch.equal(a, b) for a, b in zip(found, function(*tensors), strict=True))
