"""What `_compat.device` asks of a CUDA device. Its symbols need a GPU; a CPU has the rest."""

import pytest
import torch

from gdpa_inductor._compat import device


@pytest.mark.cuda
def test_current_stream():
    number = torch.cuda.current_device()
    assert device.current_stream(number) == torch.cuda.current_stream().cuda_stream
    with torch.cuda.stream(torch.cuda.Stream()) as _:
        stream = device.current_stream(number)
        assert stream == torch.cuda.current_stream().cuda_stream != 0
    assert device.current_stream(number) != stream


def test_current_stream_of_builds_without_cuda():
    """Asking for the function is no error there, and nothing calls it."""
    assert device._asks() is None or callable(device._asks())


@pytest.mark.cuda
def test_empty():
    for place in (torch.device("cuda", torch.cuda.current_device()), torch.device("cpu")):
        tensor = device.empty(torch.Size([3, 4]), torch.bfloat16, place)
        assert tensor.device == place and tensor.dtype == torch.bfloat16
        assert tensor.shape == (3, 4) and tensor.is_contiguous() and not tensor.requires_grad


def test_empty_on_a_cpu():
    tensor = device.empty([3, 4], torch.float16, torch.device("cpu"))
    assert tensor.shape == (3, 4) and tensor.is_contiguous() and tensor.dtype == torch.float16


@pytest.mark.cuda
def test_empty_strided():
    tensor = device.empty_strided((3, 4), (1, 3), torch.float32)
    assert tensor.shape == (3, 4) and tensor.stride() == (1, 3) and tensor.dtype == torch.float32
    assert tensor.device == torch.device("cuda", torch.cuda.current_device())
    tensor.fill_(2.0)
    assert tensor.sum().item() == 24.0
