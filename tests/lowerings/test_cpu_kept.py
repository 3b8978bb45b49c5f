"""`gdpa::kept` in the code that Inductor writes for a GPU. Nothing here runs on one."""

import pytest
import torch
from torch import Tensor

import gdpa_inductor  # noqa: F401

pytest.importorskip("triton")

from tests.kernels.render import wrapper

PADDED = "1568"  # 2 * 2 * 388, to the next multiple of 128 bytes of fp32


def viewed(x: Tensor) -> Tensor:
    kept = torch.ops.gdpa.kept(x.permute(4, 2, 0, 1, 3))
    flat = torch.ops.aten.reshape.default(kept, [96, 2, 2, 388]).permute(2, 1, 3, 0)
    return flat.clone(memory_format=torch.contiguous_format).sin()


def test_views_of_a_kept_tensor_read_where_it_lies():
    """On torch 2.11 they read it by strides that were padded later, and it was not."""
    assert PADDED not in wrapper(viewed, [torch.randn(2, 2, 96, 388, 1)])


def test_a_kept_tensor_lies_as_its_source():
    def kept(x: Tensor) -> tuple[Tensor, Tensor]:
        found = torch.ops.gdpa.kept(x.permute(0, 2, 1), torch.bfloat16)
        return found, found.exp()

    code = wrapper(kept, [torch.randn(3, 400, 300)])
    assert "empty_strided_cuda((3, 300, 400), (120000, 1, 300), torch.bfloat16)" in code
