"""Lowerings: how Inductor runs gdpa::attention and gdpa::attention_backward.

`choose` judges a problem before the rewrite; `register` installs the Inductor lowerings, which hand
the op to the kernel of its device. `begin` has kernels compiled by other processes meanwhile.
Should a lowering fail all the same, the chunked form runs, or the reference formula inlined as
ATen, counted under `fallback`. Nothing of Inductor or Triton is imported before `register`.
"""

from __future__ import annotations

# Defines the ops that generated code calls, also when it comes from a cache and nothing is lowered.
from . import chunked as chunked
from . import cpu as cpu
from . import cute as cute
from .choose import Choice, choose
from .early import begin

__all__ = ["Choice", "begin", "choose", "register"]


def register() -> None:
    """Install the Inductor lowerings of both ops; idempotent."""
    from . import dispatch

    dispatch.register()
