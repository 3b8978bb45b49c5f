"""The GPUs that have CuTe kernels, by their exact compute capability.

Code with the suffix "a" runs on one capability only, and family code ("f") on later ones of the
same major number too. So a capability that is not listed has no kernels. cutlass is not imported
here.
"""

import torch

from ..devices import nvidia
from .config import KernelConfig
from .sm90.config import Sm90Config
from .sm100.config import Sm100Config, Sm100OneCta, Sm103Config, Sm103OneCta

CONFIGS: dict[tuple[int, int], type[KernelConfig]] = {
    (9, 0): Sm90Config,
    (10, 0): Sm100Config,
    (10, 3): Sm103Config,
}
# Where a backward may take pairs of CTAs: the same without them.
ONE_CTA: dict[type[KernelConfig] | None, type[KernelConfig]] = {
    Sm100Config: Sm100OneCta,
    Sm103Config: Sm103OneCta,
}
EMULATED = Sm100Config


def config_of(device: torch.device) -> type[KernelConfig] | None:
    """The configuration class of a device, or None if it has no kernels.

    On a CPU it is that of the emulator, whose operands are there.
    """
    if device.type != "cuda":
        return EMULATED
    if not nvidia(device):
        return None
    return CONFIGS.get(torch.cuda.get_device_capability(device))
