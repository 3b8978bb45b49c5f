"""Facts about a GPU that decide which kernel runs."""

from typing import Any

import torch


def nvidia(device: torch.device) -> bool:
    """Whether it is an NVIDIA GPU. A ROCm build of torch calls AMD's "cuda" too."""
    return device.type == "cuda" and torch.version.hip is None


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a CTA may have."""
    properties: Any = torch.cuda.get_device_properties(device)  # its type leaves this one out
    return int(properties.shared_memory_per_block_optin)


def processors(device: torch.device) -> int:
    """How many multiprocessors there are."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def capability(device: torch.device) -> int:
    """The compute capability as one number: 80, 90, 100."""
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def float32_precision() -> str:
    """The precision of fp32 products in Triton: "ieee" or "tf32", as in torch's own matmul."""
    setting = torch.backends.cuda.matmul.fp32_precision
    if setting == "none":
        return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    return "ieee" if setting == "ieee" else "tf32"
