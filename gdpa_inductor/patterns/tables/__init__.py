"""Change look-ups in learned tables, so that the gradient of the table is summed fast and exactly.

A bias may be looked up in a learned table, as in T5 (docs/masks.md).

calls    Reads all ways to write a look-up in one form.
behind   Finds the look-ups that a bias comes from.
again    Has the backward compute indices again, instead of storing them.
relief   `relieve`: what is changed, and why.
"""

from __future__ import annotations

from .behind import handed_over
from .relief import crowded, relieve

__all__ = ["crowded", "handed_over", "relieve"]
