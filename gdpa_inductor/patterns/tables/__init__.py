"""Learned tables that a bias is looked up in: how its gradient is added up there.

calls    the one form of all spellings of a look-up
behind   the look-ups that a bias comes from
again    indices that the backward makes again
copies   `relieve`: what is changed, and why
"""

from __future__ import annotations

from .behind import handed_over
from .copies import crowded, relieve

__all__ = ["crowded", "handed_over", "relieve"]
