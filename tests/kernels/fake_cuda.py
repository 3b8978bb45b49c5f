"""A CUDA device that is not there: enough of it for Inductor to write code, and for Triton to
compile cubins.

Nothing runs on it. Inductor asks for the device's properties and for Triton's target, and that is
all that is faked.
"""

import contextlib
import subprocess
import types
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import torch

# compute capability: multiprocessors, shared memory per program
DEVICES = {
    80: (108, 166912), 90: (132, 232448), 100: (148, 232448), 103: (148, 232448), 110: (20, 232448),
    120: (170, 101376), 121: (48, 101376),
}  # fmt: skip


class _Driver:
    """What Inductor and Triton ask of the active driver when they compile."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_device_interface(self):
        return torch.cuda

    def is_active(self) -> bool:
        return True


@contextlib.contextmanager
def fake_cuda(capability: int, processors: int = 0) -> Iterator[None]:
    """Inside, `cuda:0` is a device of this compute capability, one of `DEVICES`. processors: how
    many multiprocessors it has, 0 for as many as such a device has."""
    import torch._inductor.scheduler
    import triton
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor.runtime import triton_helpers
    from torch._inductor.runtime.hints import DeviceProperties

    count, shared = DEVICES[capability]
    major, minor = divmod(capability, 10)
    properties = types.SimpleNamespace(
        name="fake", major=major, minor=minor, multi_processor_count=processors or count,
        warp_size=32, shared_memory_per_block=49152, shared_memory_per_block_optin=shared,
        total_memory=80 << 30, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048,
        max_threads_per_block=1024, L2_cache_size=50 << 20, gcnArchName="",
    )  # fmt: skip

    def answer(value):
        return staticmethod(lambda *_: value)

    patches = [
        (torch.cuda, "get_device_capability", lambda *_: (major, minor)),
        (torch.cuda, "get_device_properties", lambda *_: properties),
        (torch.cuda, "current_device", lambda: 0),
        (CudaInterface, "get_device_properties", answer(properties)),
        (CudaInterface, "get_compute_capability", answer(capability)),
        (CudaInterface, "raise_if_triton_unavailable", answer(None)),
        (CudaInterface.Worker, "get_device_properties", answer(properties)),
        (CudaInterface.Worker, "current_device", answer(0)),
        (triton_helpers, "set_driver_to_gpu", lambda: None),
        (torch._inductor.scheduler, "has_triton", lambda *_: True),
    ]
    DeviceProperties.create.cache_clear()
    triton.runtime.driver.set_active(_Driver(capability))
    try:
        with contextlib.ExitStack() as stack:
            for owner, name, value in patches:
                stack.enter_context(mock.patch.object(owner, name, value))
            yield
    finally:
        DeviceProperties.create.cache_clear()
        with contextlib.suppress(Exception):  # a machine with no GPU has no driver to go back to
            triton.runtime.driver.reset_active()


def tool(name: str, *arguments: str) -> str:
    """What one of NVIDIA's tools in Triton's package prints."""
    import triton

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout
