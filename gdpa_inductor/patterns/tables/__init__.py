"""Change look-ups in learned tables, so that the gradient of the table is summed fast and exactly.

A bias may be looked up in a learned table, as in T5 (docs/masks.md).

lookups        Finds the look-ups that a bias comes from, and reads all ways to write one.
recomputation  Has the backward compute indices again, instead of storing them.
rewriting      `replace_lookups`: what is changed, and why.
"""

from __future__ import annotations

from .lookups import bias_sources, crowded
from .rewriting import replace_lookups

__all__ = ["bias_sources", "crowded", "replace_lookups"]
