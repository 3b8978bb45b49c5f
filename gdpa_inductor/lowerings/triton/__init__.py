"""The Triton backend: templates for NVIDIA devices from compute capability 8.0 on.

- `rules` says which problems it takes.
- `lower` says which kernels a call needs, and what each computes.
- `plan` says what one kernel reads and visits; `launch` puts it into the graph.
- `emit` writes a score program in Inductor's ops.
- `weights` has the kernel of P and dS, which chunks of a backward use.

Only `rules` is loaded at once. The others are loaded with the first lowering, because a process
that finds its graphs in a cache lowers nothing.
"""

from typing import Any

from ..backends import Backend
from ..call import Call
from .rules import PAYS, REFUSES


def _lower(call: Call) -> Any:
    from .lower import lower

    return lower(call)


BACKEND = Backend(
    name="triton",
    devices=("cuda",),
    refuses=REFUSES,
    pays=PAYS,
    lower=_lower,
    weights=Backend(name="triton", devices=("cuda",), refuses=(), pays=(), lower=lambda _: None),
)
