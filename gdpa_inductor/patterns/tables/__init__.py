"""Change look-ups in learned tables, so that the gradient of the table is summed fast and exactly.

A bias may be looked up in a learned table, as in T5 (docs/masks.md).
"""

from __future__ import annotations

from .lookups import bias_sources, crowded
from .rewriting import replace_lookups

__all__ = ["bias_sources", "crowded", "replace_lookups"]
