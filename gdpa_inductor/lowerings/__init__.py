"""Lowerings: how Inductor runs gdpa::attention and gdpa::attention_backward.

- `choose` decides before the rewrite which backend runs a problem, or why none does.
- `register` installs the Inductor lowerings. Each hands its op to the chosen backend.
- `begin` has worker processes compile kernels early.
- `cache_tag` tells caches when the choice may be another one.

If a lowering fails all the same, the chunked form runs. If that fails too, the reference formula is
inlined as ATen. Both are counted under `fallback`. Nothing of Inductor or Triton is imported before
`register`.
"""

from __future__ import annotations

from ..kernels.cute import certificates
from ..sources import source_hash

# These modules define the ops that generated code calls. Code from a cache needs them too.
from . import chunked as chunked
from . import cpu as cpu
from . import cute as cute
from .choose import Choice, begin, choose

__all__ = ["Choice", "begin", "cache_tag", "choose", "register"]


def cache_tag() -> str:
    """What the choice of kernels depends on beside the problem, for keys of Inductor's caches."""
    return source_hash() + certificates.state()


def register() -> None:
    """Install the Inductor lowerings of both ops; idempotent."""
    from . import dispatch

    dispatch.register()
