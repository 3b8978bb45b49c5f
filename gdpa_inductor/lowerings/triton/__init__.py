"""The Triton backend: templates for NVIDIA devices from compute capability 8.0 on.

`rules` says what it takes, and `lower` what each kernel of a call computes. `launch` puts one
kernel into the graph. `emit` writes a score program in Inductor's ops.
"""

from ..backends import Backend
from .lower import lower, lower_backward
from .rules import PAYS, REFUSES

__all__ = ["BACKEND", "lower", "lower_backward"]

BACKEND = Backend(
    name="triton",
    devices=("cuda",),
    refuses=REFUSES,
    pays=PAYS,
    lower=lower,
    lower_backward=lower_backward,
)
