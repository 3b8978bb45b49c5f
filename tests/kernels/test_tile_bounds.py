"""Bounds of operands by blocks, against every element."""

import itertools

import pytest
import torch

from gdpa_inductor.kernels.triton.device_tables import BOUNDS_TILE, tile_bounds

from .render import kernels, wrapper

SHAPES = [(3, 70, 100), (2, 32, 64), (1, 1, 33), (2, 5, 1)]


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int32, torch.int64, torch.float32, torch.bfloat16]
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bounds_are_those_of_the_elements(shape: tuple[int, ...], dtype: torch.dtype):
    torch.manual_seed(0)
    operand = (torch.randn(shape) * 9).to(dtype) if dtype != torch.bool else torch.rand(shape) < 0.9
    result = tile_bounds(operand, 1, 2)
    assert result.dtype == dtype
    blocks = [range(-(-size // BOUNDS_TILE)) for size in shape[1:]]
    assert result.shape == (2, shape[0], *map(len, blocks))
    for i, j in itertools.product(*blocks):
        tile = operand[
            :, i * BOUNDS_TILE : (i + 1) * BOUNDS_TILE, j * BOUNDS_TILE : (j + 1) * BOUNDS_TILE
        ].flatten(1)
        wide = tile.long() if dtype == torch.bool else tile
        assert torch.equal(result[0, :, i, j], wide.amin(1).to(dtype))
        assert torch.equal(result[1, :, i, j], wide.amax(1).to(dtype))


def test_one_dimension_and_either_order():
    operand = torch.randn(70, 40)
    assert tile_bounds(operand, None, 1).shape == (2, 70, 2)
    assert torch.equal(tile_bounds(operand, 1, 0), tile_bounds(operand, 0, 1))


def test_a_nan_makes_its_block_nan():
    operand = torch.zeros(40)
    operand[35] = torch.nan
    result = tile_bounds(operand, 0, None)
    assert result[:, 0].eq(0).all() and result[:, 1].isnan().all()


@pytest.mark.parametrize("n", [256, 200])
def test_one_kernel_looks_at_a_mask(n: int):
    def masked(q, k, v, mask):
        program = "a0:b[q_idx,kv_idx]; where(a0,silu(s),0.0)"
        return torch.ops.gdpa.attention(q, k, v, [mask], [], program, "")

    q = torch.empty(2, 2, n, 64, dtype=torch.bfloat16)
    result = kernels(wrapper(masked, [q, q, q, torch.empty(n, n, dtype=torch.bool)]))
    looking = [name for name in result if not name.startswith("triton_tem")]
    assert len(result) == 2 and len(looking) == 1
