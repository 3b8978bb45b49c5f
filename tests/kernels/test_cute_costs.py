"""Which kernels compute a backward on Blackwell: one for all gradients, or one for each side."""

import pytest

from gdpa_inductor.kernels.cute.sm100.config import BOTH, SIDES, Sm100Config

from .cute_account import BIAS, CAUSAL, GELU, RELU2, SILU

LONG = (512, 512)


@pytest.mark.parametrize(
    ("program", "head_dim", "most", "one"),
    [
        (SILU, 32, LONG, True),
        (RELU2, 32, LONG, True),
        (SILU, 64, LONG, False),  # adding dQ bounds a step
        (GELU, 64, LONG, True),  # ten multiply-adds for each score
        (CAUSAL, 64, LONG, True),  # two special functions
        (BIAS, 64, LONG, True),
        (SILU, 128, LONG, True),  # a pair of CTAs
        (CAUSAL, 128, LONG, True),
        (SILU, 96, LONG, False),  # it would multiply 128 channels
        (SILU, 128, (257, 512), True),
        (SILU, 128, (256, 513), False),  # tiles have 256 keys
        (CAUSAL, 64, (512, 513), False),  # key tiles would wait for their turns
        (CAUSAL, 64, (40, 128), True),
        (CAUSAL, 64, (4096, 64), True),
    ],
)
def test_kernels(program: str, head_dim: int, most: tuple[int, int], one: bool) -> None:
    config = Sm100Config("bfloat16", head_dim, head_dim, program, ("float32",))
    kernels = [x.kernel for x in config.backward_kernels(True, None, most)]
    assert kernels == ([BOTH] if one else [*SIDES])


def test_a_bias_is_stored_by_the_kernel_of_both_sides_or_of_the_rows() -> None:
    config = Sm100Config("bfloat16", 64, 64, BIAS, ("bfloat16",))
    (both,) = config.backward_kernels(True, 0, LONG)
    assert both.stored == 0 and both.tiling.by_keys
    stored = [x.stored for x in config.backward_kernels(True, 0, (128, 512))]
    assert stored == [None, 0]
