"""The CuTe DSL backend: kernels for Hopper and Blackwell.

- `rules` says which problems it takes, and which it leaves to Triton.
- `calls` puts calls of its kernels into the generated code, and runs them.
- `weights` calls its kernel of P and dS, which chunks of a backward use.
"""

from ..backends import Backend
from .calls import lower, lower_backward, precompile
from .rules import (
    DOUBTS,
    FRUGAL,
    OF_WEIGHTS,
    PAYS,
    REFUSES,
    WEIGHTS_DOUBTS,
    WEIGHTS_YIELD,
    YIELDS,
)
from .weights import Filling

BACKEND = Backend(
    name="cute",
    devices=("cuda",),
    refuses=REFUSES,
    pays=PAYS,
    frugal=FRUGAL,
    doubts=DOUBTS,
    yields=YIELDS,
    precompile=precompile,
    lower=lambda call: lower_backward(call) if call.backward else lower(call),
    weights=Backend(
        name="cute",
        devices=("cuda",),
        refuses=OF_WEIGHTS,
        pays=(),
        doubts=WEIGHTS_DOUBTS,
        yields=WEIGHTS_YIELD,
        lower=Filling,
    ),
)
