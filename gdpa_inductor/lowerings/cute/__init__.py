"""The CuTe DSL backend: kernels for Hopper and Blackwell.

`rules` says what it takes, and what it leaves to Triton. `calls` puts calls of its kernels into the
generated code, and runs them.
"""

from ..backends import Backend
from .calls import compile_ahead, lower, lower_backward
from .rules import FRUGAL, PAYS, REFUSES, YIELDS

__all__ = ["BACKEND", "lower", "lower_backward"]

BACKEND = Backend(
    name="cute",
    devices=("cuda",),
    refuses=REFUSES,
    pays=PAYS,
    frugal=FRUGAL,
    yields=YIELDS,
    ahead=compile_ahead,
    lower=lower,
    lower_backward=lower_backward,
)
