"""What a device is, before anything is asked of it."""

import torch


def nvidia(device: torch.device) -> bool:
    """Whether it is an NVIDIA GPU. A ROCm build of torch calls AMD's "cuda" too."""
    return device.type == "cuda" and torch.version.hip is None
