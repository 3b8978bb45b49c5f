"""The GPUs that have CuTe kernels, by the major number of their compute capability.

cutlass is not imported here.
"""

import torch

from ..devices import nvidia
from .config import KernelConfig
from .sm90.config import Sm90Config
from .sm100.config import Sm100Config

CONFIGS: dict[int, type[KernelConfig]] = {9: Sm90Config, 10: Sm100Config}


def config_of(device: torch.device) -> type[KernelConfig] | None:
    """The configuration class of a device, or None if it has no kernels.

    A CPU counts as the newest GPU, because the operands of the emulator are on the CPU.
    """
    if device.type != "cuda":
        return CONFIGS[max(CONFIGS)]
    if not nvidia(device):
        return None
    return CONFIGS.get(torch.cuda.get_device_capability(device)[0])
