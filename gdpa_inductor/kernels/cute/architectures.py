"""Which GPUs there are kernels for, by the major number of their compute capability. No cutlass."""

import torch

from ..devices import nvidia
from .config import KernelConfig
from .sm90.config import Sm90Config
from .sm100.config import Sm100Config

CONFIGS: dict[int, type[KernelConfig]] = {9: Sm90Config, 10: Sm100Config}


def config_of(device: torch.device) -> type[KernelConfig] | None:
    """The configurations of a GPU's kernels, None if there are none. A CPU is the newest: the
    emulator's operands lie there."""
    if device.type != "cuda":
        return CONFIGS[max(CONFIGS)]
    if not nvidia(device):
        return None
    return CONFIGS.get(torch.cuda.get_device_capability(device)[0])
